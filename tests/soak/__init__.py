"""Hours of faults, kills and resumes: ``python -m tests.soak --minutes 60``."""
