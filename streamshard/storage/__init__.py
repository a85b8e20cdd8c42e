"""Places: stores, the node cache, prefetching, retries. Knows no shard and no sample."""
