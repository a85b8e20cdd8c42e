"""Writing: samples become shards and an index, published atomically."""
