"""Measurements of streamshard beside its peers and beside what the machine can do. See README.md."""
