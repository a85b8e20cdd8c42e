"""Repairing a dataset in a directory: what is lost is fetched again, rebuilt, or cut away and listed."""
