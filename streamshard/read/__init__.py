"""Reading: random access to samples of finished shards. No torch."""
