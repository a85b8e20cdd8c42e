"""The table of an index's shards as bytes that can be mapped: what one process parsed, others need not parse again.

    bytes  0-15   magic ``streamshard idx\\n``
    bytes 16-31   digest of the text of the index (BLAKE2b, 16 bytes)
    bytes 32-47   XXH3-128 of all that follows byte 47
    u64 (6 times) version, S shards, T strings, C costs, M bytes of text, J bytes of JSON
    i64[S]        samples of each shard
    i64[S + 1]    begins
    i64[S]        size of the raw file
    i64[S]        size of the compressed file, or -1
    i64[S]        number of the first string
    i64[T + 1]    begins of strings
    i64[C][S]     costs
    i32[S]        kind
    u8[S][D]      digests of the side files with hashes of samples, D bytes by their algorithm, 0 where there are none
    u8[M]         text
    u8[J]         JSON: {"costs": their names, "facts": what the index says besides, "kinds": an entry for each kind,
                  "sample_hashes": the algorithm or null}

Little-endian, no padding. This is a private form of one version of this package: whoever meets another one parses
``index.json``, which stays the truth.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from streamshard.errors import FormatError
from streamshard.format.costs import check_cost_name
from streamshard.format.entries import EntryParser, shard_entry
from streamshard.format.hashing import check_hash_name
from streamshard.format.sample_hashes import SampleHashes, digest_nbytes
from streamshard.format.shard_table import Kind, ShardTable, first_strings

if TYPE_CHECKING:
    from streamshard.format.index import Index

MAGIC = b"streamshard idx\n"
VERSION = 2
_DIGEST = slice(16, 32)
_SUM = slice(32, 48)
_COUNTS = struct.Struct("<6Q")
_HEAD_NBYTES = 48 + _COUNTS.size


@dataclass(frozen=True, eq=False)
class Unpacked:
    """What the binary form holds; ``facts``, ``costs`` and ``sample_hashes`` are those of ``Index``."""

    table: ShardTable
    facts: dict[str, Any]
    costs: dict[str, NDArray[np.int64]]
    sample_hashes: SampleHashes | None


def pack_table(index: Index, digest: bytes) -> list[bytes]:
    """Give the parts of the binary form, to be written one after another.

    Args:
        index: what is packed.
        digest: BLAKE2b of its text, 16 bytes.
    """
    table = index.table
    # An entry of the first shard of each kind says all about the kind.
    first = table.first_of_kinds()
    renumbered = np.zeros(max(1, len(table.kinds)), dtype=np.int32)
    renumbered[table.kind[first]] = np.arange(len(first))
    kinds = [shard_entry(table.info(shard)) for shard in first]
    hashes = index.sample_hashes
    tail = json.dumps(
        {
            "costs": list(index.costs),
            "facts": index.facts,
            "kinds": kinds,
            "sample_hashes": None if hashes is None else hashes.algorithm,
        }
    ).encode()
    columns = (
        table.num_samples,
        table.begins,
        table.raw_nbytes,
        table.compressed_nbytes,
        table.first_string,
        table.string_begins,
        *index.costs.values(),
    )
    counts = _COUNTS.pack(
        VERSION,
        table.num_shards,
        table.string_begins.size - 1,
        len(index.costs),
        table.text.size,
        len(tail),
    )
    parts = [counts, *(column.astype("<i8").tobytes() for column in columns)]
    digests = b"" if hashes is None else hashes.digests.tobytes()
    parts += [renumbered[table.kind].astype("<i4").tobytes(), digests, table.text.tobytes(), tail]
    total = xxhash.xxh3_128()
    for part in parts:
        total.update(part)
    return [MAGIC + digest + total.digest(), *parts]


def unpack_table(view: memoryview, digest: bytes) -> Unpacked:
    """Give the table in a buffer, with arrays that are views of it.

    Raises:
        FormatError: not the table of the index with this digest, of another version, cut, or damaged.
    """
    if len(view) < _HEAD_NBYTES or view[: len(MAGIC)] != MAGIC:
        raise FormatError(f"no table of shards: {len(view)} bytes that begin otherwise")
    if view[_DIGEST] != digest:
        raise FormatError("the table of another index")
    if xxhash.xxh3_128(view[_SUM.stop :]).digest() != view[_SUM]:
        raise FormatError("the checksum is another: the table was damaged")
    version, shards, strings, costs, text, tail = _COUNTS.unpack(view[_SUM.stop : _HEAD_NBYTES])
    if version != VERSION:
        raise FormatError(f"version {version}, expected {VERSION}")
    # Python's integers, so that no count can make the sum small again.
    expected = _HEAD_NBYTES + 8 * (5 * shards + strings + 2 + costs * shards) + 4 * shards + text + tail
    if len(view) < expected:
        raise FormatError(f"{len(view)} bytes, by its head there should be at least {expected}")
    kinds, facts, names, algorithm = _parse_facts(bytes(view[len(view) - tail :]))
    expected += shards * (0 if algorithm is None else digest_nbytes(algorithm))
    if len(view) != expected:
        raise FormatError(f"{len(view)} bytes, by its head there should be {expected}")
    at = _HEAD_NBYTES

    def column(kind: str, count: int) -> NDArray[Any]:
        nonlocal at
        values = np.frombuffer(view, dtype=kind, count=count, offset=at)
        values.flags.writeable = False
        at += values.nbytes
        return values

    num_samples, begins = column("<i8", shards), column("<i8", shards + 1)
    raw_nbytes, compressed_nbytes = column("<i8", shards), column("<i8", shards)
    first_string, string_begins = column("<i8", shards), column("<i8", strings + 1)
    sums = column("<i8", costs * shards)
    kind = column("<i4", shards)
    sample_hashes = None
    if algorithm is not None:
        nbytes = digest_nbytes(algorithm)
        sample_hashes = SampleHashes(algorithm, column("u1", shards * nbytes).reshape(shards, nbytes))
    content = column("u1", text)
    if len(names) != costs:
        raise FormatError(f"{costs} costs, of which {len(names)} have a name")
    table = ShardTable(
        kinds=kinds,
        kind=kind,
        num_samples=num_samples,
        begins=begins,
        raw_nbytes=raw_nbytes,
        compressed_nbytes=compressed_nbytes,
        first_string=first_string,
        string_begins=string_begins,
        text=content,
    )
    _check(table)
    if (sums < 0).any():
        raise FormatError("negative costs")
    by_name = dict(zip(names, sums.reshape(costs, shards), strict=True))
    return Unpacked(table, facts, by_name, sample_hashes)


def _parse_facts(tail: bytes) -> tuple[tuple[Kind, ...], dict[str, Any], list[str], str | None]:
    try:
        document = json.loads(tail)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"its kinds are no JSON ({error})") from error
    if not isinstance(document, dict) or document.keys() != {"costs", "facts", "kinds", "sample_hashes"}:
        raise FormatError("other keys than costs, facts, kinds and sample_hashes")
    names, facts, entries = document["costs"], document["facts"], document["kinds"]
    if not isinstance(names, list) or not isinstance(facts, dict) or not isinstance(entries, list):
        raise FormatError("costs, facts or kinds of another type")
    try:
        costs = list(dict.fromkeys(map(check_cost_name, names)))
        algorithm = document["sample_hashes"]
        if algorithm is not None:
            check_hash_name(algorithm)
    except ValueError as error:
        raise FormatError(str(error)) from error
    parser = EntryParser()
    return tuple(Kind.of(parser.entry(entry)) for entry in entries), facts, costs, algorithm


def _check(table: ShardTable) -> None:
    """See that no number in a table leads out of it, and that its numbers are those of shards."""
    kinds, kind = table.kinds, table.kind
    if kind.size and not 0 <= int(kind.min()) <= int(kind.max()) < len(kinds):
        raise FormatError("a kind that is not there")
    is_compressed = np.array([each.compressed_hashes is not None for each in kinds] or [False])[kind]
    string_begins = table.string_begins
    sound = (
        (table.num_samples >= 0).all()
        and (table.raw_nbytes < 1 << 32).all()
        and (table.num_samples <= (table.raw_nbytes - 8) // 4).all()
        and (table.compressed_nbytes >= -1).all()
        and ((table.compressed_nbytes >= 0) == is_compressed).all()
        and table.begins[0] == 0
        and (np.diff(table.begins) == table.num_samples).all()
        and (table.first_string == first_strings(kinds, kind)).all()
        and string_begins.size - 1 == sum(each.num_strings * n for each, n in table.counts_of_kinds())
        and string_begins[0] == 0
        and string_begins[-1] == table.text.size
        and (string_begins[1:] >= string_begins[:-1]).all()
    )
    if not sound:
        raise FormatError("numbers that contradict each other")
