"""Converting: JSONL + images become a dataset, in any number of processes, restartable."""
