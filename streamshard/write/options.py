"""What a writer is asked to do, checked before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamshard._sizes import parse_bytes
from streamshard.format.compression import parse_compression
from streamshard.format.hashing import check_hash_name

DEFAULT_SIZE_LIMIT = "64mb"
DEFAULT_HASHES = ("xxh64",)


def parse_size_limit(size_limit: int | str | None) -> int | None:
    """Turn ``"64mb"`` (1024-based), an int or None (cut only before 4 GiB) into bytes or None.

    Raises:
        ValueError: no size, 0, negative, or 2**32 and more: offsets in a shard are u32.
    """
    if size_limit is None:
        return None
    nbytes = parse_bytes(size_limit, name="size_limit")
    if not 0 < nbytes < 2**32:
        raise ValueError(
            f"size_limit={size_limit!r}: {nbytes} bytes; expected 1 to 2**32 - 1, since offsets in a "
            "shard are u32 "
            "(None cuts only where 4 GiB would be passed)"
        )
    return nbytes


def parse_hashes(hashes: Sequence[str] | None) -> tuple[str, ...]:
    """Check hash names and sort them; None means the default, ``[]`` none.

    Raises:
        ValueError: not a list of known names, or one twice.
    """
    if hashes is None:
        return DEFAULT_HASHES
    if isinstance(hashes, str) or not all(isinstance(name, str) for name in hashes):
        raise ValueError(f"hashes={hashes!r}: expected a list of names, such as ['xxh64']")
    if len(set(hashes)) != len(hashes):
        raise ValueError(f"hashes={list(hashes)!r}: a name occurs twice")
    return tuple(sorted(check_hash_name(name) for name in hashes))


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """How shards are cut and stored. Made by :meth:`parse`."""

    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    samples_per_shard: int | None
    sample_hash: str | None = None

    @classmethod
    def parse(
        cls,
        *,
        compression: str | None,
        hashes: Sequence[str] | None,
        size_limit: int | str | None,
        samples_per_shard: int | None,
        sample_hash: str | None = None,
    ) -> ShardOptions:
        """Check what a user wrote; raises ValueError."""
        codec = parse_compression(compression)
        if samples_per_shard is not None:
            check_count(samples_per_shard, "samples_per_shard", least=1)
        return cls(
            codec.name if codec else None,
            parse_hashes(hashes),
            parse_size_limit(size_limit),
            samples_per_shard,
            None if sample_hash is None else check_hash_name(sample_hash),
        )


def check_count(value: int, name: str, *, least: int) -> int:
    """Give an integer of at least ``least`` back; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: expected an integer of at least {least}")
    return value
