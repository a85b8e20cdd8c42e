"""The shard file: ``u32 n``, ``u32 offsets[n + 1]`` (absolute), config text (JSON), samples.

No magic, no padding, no trailer: ``offsets[0]`` is ``8 + 4 n + len(config)``, ``offsets[n]`` the file's size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamshard.errors import FormatError, ShardTooLargeError
from streamshard.format.entries import unique_keys
from streamshard.format.index import ShardInfo
from streamshard.format.schema import Schema

# Offsets are u32, and the last one is the size of the file.
MAX_SHARD_NBYTES = 2**32 - 1
# A config holds names and encodings of columns; this bounds what a hostile file can have parsed.
_MAX_CONFIG_NBYTES = 1 << 24
_MANY_SAMPLES = 1 << 22
# Shards of a dataset have one config: it is parsed once, and found again by its text.
_REMEMBERED_NBYTES = 1 << 12
_MOST_REMEMBERED = 64
_GOOD_CONFIGS: dict[bytes, tuple[Schema, dict[str, Any]]] = {}


@dataclass(frozen=True)
class ShardHeader:
    """What stands in front of the samples. Sample i is at ``[offsets[i], offsets[i + 1])`` of the file."""

    num_samples: int
    offsets: NDArray[np.uint32]
    config: dict[str, Any]


def config_text(
    schema: Schema,
    *,
    compression: str | None,
    hashes: Sequence[str],
    size_limit: int | None,
) -> bytes:
    """Write the JSON text that a shard carries, with the bytes that mosaicml-streaming writes."""
    return json.dumps(config_entry(schema, compression, hashes, size_limit), sort_keys=True).encode()


def config_entry(
    schema: Schema, compression: str | None, hashes: Sequence[str], size_limit: int | None
) -> dict[str, Any]:
    """Give the keys that a shard's config and its entry in the index share."""
    return {
        "column_encodings": list(schema.encodings),
        "column_names": list(schema.names),
        "column_sizes": list(schema.sizes),
        "compression": compression,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": size_limit,
        "version": 2,
    }


def packed_size(num_samples: int, payload_bytes: int, config: bytes) -> int:
    """Give the size in bytes of a shard with these samples."""
    return 8 + len(config) + 4 * num_samples + payload_bytes


def pack_shard(samples: Sequence[bytes], config: bytes) -> list[bytes | memoryview]:
    """Lay out a shard as buffers to be written one after another; the samples are not copied.

    Raises:
        ShardTooLargeError: 4 GiB or more in all, beyond what the offsets can address.
    """
    return [shard_head(np.fromiter(map(len, samples), np.int64, len(samples)), config), *samples]


def shard_head(sizes: NDArray[np.int64], config: bytes) -> bytes:
    """Give what stands in front of samples of these sizes: number, offsets, config.

    Args:
        sizes: bytes of each sample, int64[num_samples].

    Raises:
        ShardTooLargeError: 4 GiB or more in all, beyond what the offsets can address.
    """
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    offsets += packed_size(len(sizes), 0, config)
    if offsets[-1] > MAX_SHARD_NBYTES:
        raise ShardTooLargeError(
            f"a shard of {len(sizes)} samples would take {offsets[-1]} bytes; its offsets are u32, "
            "so it must "
            "stay below 4 GiB: set a smaller size_limit"
        )
    return np.array([len(sizes)], "<u4").tobytes() + offsets.astype("<u4").tobytes() + config


class ShardCutter:
    """Where one shard ends and the next begins: MDS's rule, which only the sizes of samples decide.

    A shard is cut before the sample that would take it past ``size_limit`` bytes, ``samples_per_shard``
    samples, or 4 GiB. A sample larger than the limit gets a shard of its own; no shard is empty.

    Attributes:
        whole_room: bytes that the samples of a shard and their offsets may take.
    """

    def __init__(
        self, config_nbytes: int, *, size_limit: int | None, samples_per_shard: int | None = None
    ) -> None:
        self._empty_nbytes = 8 + config_nbytes
        limit = MAX_SHARD_NBYTES if size_limit is None else min(size_limit, MAX_SHARD_NBYTES)
        self.whole_room = limit - self._empty_nbytes
        self._max_samples = samples_per_shard or 2**32
        self._room = self.whole_room
        self.num_samples = 0

    @property
    def nbytes(self) -> int:
        """Size of the shard that is being filled."""
        return self._empty_nbytes + self.whole_room - self._room

    def fits(self, sample_nbytes: int) -> bool:
        """Say whether a sample of this size still belongs to the shard that is being filled.

        Raises:
            ShardTooLargeError: a sample that no shard can hold.
        """
        if sample_nbytes + 4 <= self._room and self.num_samples < self._max_samples:
            return True
        self.check(sample_nbytes)
        return not self.num_samples

    def check(self, sample_nbytes: int) -> None:
        """Refuse a sample that no shard can hold.

        Raises:
            ShardTooLargeError: as said.
        """
        if self._empty_nbytes + sample_nbytes + 4 > MAX_SHARD_NBYTES:
            raise ShardTooLargeError(
                f"a sample of {sample_nbytes} bytes; a shard's offsets are u32, so that a sample must "
                "stay below "
                f"{MAX_SHARD_NBYTES - self._empty_nbytes - 3} bytes here"
            )

    def add(self, sample_nbytes: int) -> None:
        """Count a sample into the shard."""
        self.num_samples += 1
        self._room -= sample_nbytes + 4

    def reset(self) -> None:
        """Begin the next shard."""
        self.num_samples = 0
        self._room = self.whole_room

    def add_all(self, sizes: NDArray[np.int64]) -> list[int]:
        """Count samples of these sizes in, cutting where it has to be; gives the places in ``sizes`` of the cuts.

        Raises:
            ShardTooLargeError: a sample that no shard can hold.
        """
        cuts = []
        ends = np.cumsum(sizes + 4)
        place = before = 0
        while place < len(sizes):
            fitting = int(np.searchsorted(ends, before + self._room, side="right"))
            end = min(fitting, place + self._max_samples - self.num_samples)
            if end > place:
                self.num_samples += end - place
                self._room -= int(ends[end - 1]) - before
            elif self.fits(int(sizes[place])):
                end = place + 1
                self.add(int(sizes[place]))
            else:
                cuts.append(place)
                self.reset()
                continue
            place, before = end, int(ends[end - 1])
        return cuts


def parse_header(
    read: Callable[[int, int], bytes | memoryview],
    nbytes: int,
    *,
    shard: str,
    expected: ShardInfo | None,
) -> ShardHeader:
    """Read and check all that stands in front of a shard's samples.

    Args:
        read: gives the bytes [begin, end) of the raw shard.
        nbytes: size of the raw shard as it was found.
        shard: its name, for messages.
        expected: its entry in the index, which must agree; None where there is no index.

    Raises:
        FormatError: anything that contradicts the format or the index. Nothing is allocated from a count
            before the file's size has confirmed it.
    """
    if expected is not None and nbytes != expected.raw.nbytes:
        raise FormatError(
            f"shard {shard!r}: the index says {expected.raw.nbytes} bytes, the file has {nbytes}; "
            "fetch it again, or write the dataset again"
        )
    if nbytes < 8:
        raise FormatError(f"shard {shard!r}: {nbytes} bytes, a shard has at least 8")
    num_samples = int.from_bytes(_exact(read, 0, 4, shard), "little")
    if expected is not None and num_samples != expected.num_samples:
        raise FormatError(
            f"shard {shard!r}: the index says {expected.num_samples} samples, the file has {num_samples}"
        )
    head_nbytes = 8 + 4 * num_samples
    if head_nbytes > nbytes:
        raise FormatError(
            f"shard {shard!r}: {num_samples} samples need {head_nbytes} bytes of header, the file has "
            f"{nbytes}"
        )
    if num_samples > _MANY_SAMPLES:
        # Before gigabytes are read for a table that a hole in a file may make up.
        _check_ends(
            int(np.frombuffer(_exact(read, 4, 8, shard), "<u4")[0]),
            int(np.frombuffer(_exact(read, head_nbytes - 4, head_nbytes, shard), "<u4")[0]),
            head_nbytes,
            nbytes,
            shard,
        )
    offsets = np.frombuffer(_exact(read, 4, head_nbytes, shard), "<u4")
    first = int(offsets[0])
    _check_ends(first, int(offsets[-1]), head_nbytes, nbytes, shard)
    falling = offsets[1:] < offsets[:-1]
    if falling.any():
        row = int(falling.argmax())
        raise FormatError(
            f"shard {shard!r}: sample {row} is said to end at {offsets[row + 1]}, before it begins at "
            f"{offsets[row]}"
        )
    if first - head_nbytes > _MAX_CONFIG_NBYTES:
        raise FormatError(
            f"shard {shard!r}: a config of {first - head_nbytes} bytes; at most {_MAX_CONFIG_NBYTES} are read"
        )
    return ShardHeader(
        num_samples, offsets, _config_of(_exact(read, head_nbytes, first, shard), shard, expected)
    )


def _check_ends(first: int, last: int, head_nbytes: int, nbytes: int, shard: str) -> None:
    if not head_nbytes <= first <= nbytes:
        raise FormatError(
            f"shard {shard!r}: the first sample is said to begin at {first}, behind a header of "
            f"{head_nbytes} "
            f"bytes, in a file of {nbytes}"
        )
    if last != nbytes:
        raise FormatError(
            f"shard {shard!r}: the last sample is said to end at {last}, the file has {nbytes} bytes"
        )


def _exact(
    read: Callable[[int, int], bytes | memoryview], begin: int, end: int, shard: str
) -> bytes | memoryview:
    found = read(begin, end)
    if len(found) != end - begin:
        raise FormatError(
            f"shard {shard!r}: {end - begin} bytes wanted at {begin}, {len(found)} found: it is cut short"
        )
    return found


def _config_of(text: bytes | memoryview, shard: str, expected: ShardInfo | None) -> dict[str, Any]:
    if expected is None:
        return _parse_config(text, shard)
    known = _GOOD_CONFIGS.get(bytes(text)) if len(text) <= _REMEMBERED_NBYTES else None
    if known is not None and (known[0] is expected.schema or known[0] == expected.schema):
        return dict(known[1])
    config = _parse_config(text, shard)
    _check_schema(config, expected.schema, shard)
    if len(text) <= _REMEMBERED_NBYTES:
        for eldest in list(_GOOD_CONFIGS)[: max(0, len(_GOOD_CONFIGS) - _MOST_REMEMBERED + 1)]:
            _GOOD_CONFIGS.pop(eldest, None)
        _GOOD_CONFIGS[bytes(text)] = (expected.schema, dict(config))
    return config


def _parse_config(text: bytes | memoryview, shard: str) -> dict[str, Any]:
    try:
        config = json.loads(str(text, "utf-8"), object_pairs_hook=unique_keys)
    except FormatError as error:
        raise FormatError(f"shard {shard!r}: its config: {error}") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"shard {shard!r}: its config of {len(text)} bytes is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise FormatError(f"shard {shard!r}: its config is a {type(config).__name__}, expected an object")
    if config.get("format") != "mds" or config.get("version") != 2:
        raise FormatError(
            f"shard {shard!r}: format {config.get('format')!r:.40} version {config.get('version')!r:.40}, "
            "expected 'mds' version 2"
        )
    return config


def _check_schema(config: dict[str, Any], schema: Schema, shard: str) -> None:
    for key, wanted in (
        ("column_names", schema.names),
        ("column_encodings", schema.encodings),
        ("column_sizes", schema.sizes),
    ):
        if config.get(key) != list(wanted):
            raise FormatError(
                f"shard {shard!r}: {key} are {config.get(key)!r:.200} in the file, "
                f"{list(wanted)!r:.200} in the index"
            )
