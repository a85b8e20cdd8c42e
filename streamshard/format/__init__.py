"""Bytes: encodings, schema, shard, index, compression, hashes. Knows no files, URLs or torch."""
