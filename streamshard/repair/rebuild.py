"""An index made anew from the shards: their headers say what the lost one said of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.errors import BlobNotFoundError, FormatError, StreamshardError
from streamshard.format.compression import LEVELS, decompress_file
from streamshard.format.entries import EntryParser
from streamshard.format.hashing import HASHLIB_NAMES, XXHASH_NAMES, hash_bytes, hash_file, known_hashes
from streamshard.format.index import INDEX_BASENAME, Index, ShardInfo
from streamshard.format.sample_hashes import (
    SAMPLE_HASHES_KEY,
    digest_nbytes,
    sample_hashes_entry,
    side_basename,
)
from streamshard.format.shard import ShardHeader, parse_header
from streamshard.read.raw_file import RawFile, open_regular
from streamshard.read.sample_check import SampleCheck

_SHARD = re.compile(rf"shard\.([0-9]{{5,}})\.mds(?:\.({'|'.join(LEVELS)}))?")
# Of several algorithms with digests of one length, the likeliest first.
_LIKELIEST_FIRST = ("xxh64", "xxh3_64", "xxh128", "xxh3_128", "xxh32", "sha256", "md5", "sha1")


@dataclass(slots=True)
class Rebuilt:
    """An index made from files, and what could not be put into it.

    ``lost``: name of each shard file that says nothing of itself any more -> why.
    """

    index: Index
    lost: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def rebuild_index(
    directory: Path,
    scratch: Callable[[], Path],
    *,
    place: str | None = None,
    names: Iterable[str] | None = None,
    bring: Callable[[list[str]], AbstractContextManager[None]] | None = None,
) -> Rebuilt:
    """Make the index of the shards that lie directly in ``directory``, in the order of their numbers.

    Sizes, counts and columns are those of the shards, hashes are computed anew by the algorithms that each
    shard names. Side files with hashes of samples are taken in where all shards have them. What only the index
    knew (costs, how it was made) is lost.

    Args:
        directory: where ``shard.00000.mds``, ``shard.00000.mds.zstd`` and so on lie.
        scratch: gives the path of a temporary file that may be written to.
        place, names, bring: where the shards are elsewhere: the place for messages, all names there, and what brings
            files of these names into ``directory`` for the length of a block.

    Raises:
        BlobNotFoundError: no shard is there.
        FormatError: there are shards, but none of which anything can be said.
    """
    place = place or str(directory)
    numbered = _numbered_files((path.name for path in directory.iterdir()) if names is None else names)
    if not numbered:
        below = sorted(path.parent.name for path in directory.glob(f"*/{INDEX_BASENAME}"))
        hint = (
            f"; there are datasets in folders ({', '.join(below[:3])}): 'streamshard merge' makes an index over them"
            if below
            else "; check the path, or fetch the dataset again"
        )
        raise BlobNotFoundError(
            f"{place}: no index, and no file named like a shard (shard.00000.mds) to make one from{hint}"
        )
    parser = EntryParser()
    shards: list[ShardInfo] = []
    sides: list[_Side | None] = []
    rebuilt = Rebuilt(Index(()))
    for number in sorted(numbered):
        files = numbered[number]
        try:
            side_name = side_basename(files[0] if files[0].endswith(".mds") else files[0].rpartition(".")[0])
            with nullcontext() if bring is None else bring([*files, side_name]):
                info, side = _entry_of(directory, files, parser, scratch)
        except (StreamshardError, OSError) as error:
            rebuilt.lost[files[-1]] = str(error)
            continue
        shards.append(info)
        sides.append(side)
    if not shards:
        name, reason = next(iter(rebuilt.lost.items()))
        raise FormatError(f"{place}: no index can be made from its shards; of {name!r}: {reason}")
    gaps = [number for number in range(max(numbered)) if number not in numbered]
    rebuilt.notes += [
        f"shard.{number:05d}.mds is not there: if it was part of the dataset, its samples are lost"
        for number in gaps[:100]
    ]
    if len(gaps) > 100:
        rebuilt.notes.append(f"{len(gaps) - 100:,} more numbers are missing")
    rebuilt.notes.append("what only the index knew is lost: costs, and how the dataset was made")
    extra = _sample_hashes(sides, rebuilt.notes)
    rebuilt.index = Index(shards, extra)
    return rebuilt


def _numbered_files(names: Iterable[str]) -> dict[int, list[str]]:
    """Shard files by number, the raw one before the compressed one."""
    found: dict[int, list[str]] = {}
    for name in sorted(names):
        match = _SHARD.fullmatch(name)
        if match is not None and len(match[1]) <= 12:
            found.setdefault(int(match[1]), []).append(name)
    return found


@dataclass(frozen=True, slots=True)
class _Side:
    """The side file of a shard, and which algorithms could have made it."""

    digests: dict[str, str]


def _entry_of(
    directory: Path, names: list[str], parser: EntryParser, scratch: Callable[[], Path]
) -> tuple[ShardInfo, _Side | None]:
    compressed = names[-1] if not names[-1].endswith(".mds") else None
    if sum(not name.endswith(".mds") for name in names) > 1:
        raise FormatError(f"{' and '.join(map(repr, names))}: which one is the shard cannot be told")
    raw_name = names[0] if compressed is None else compressed.rpartition(".")[0]
    path = directory / raw_name
    if compressed is not None:
        path = scratch()
        opened = os.fdopen(open_regular(directory / compressed, shard=compressed), "rb")
        with opened as source, path.open("wb") as target:
            decompress_file(source, target, compressed.rpartition(".")[2], raw_nbytes=None)
    nbytes = path.stat().st_size
    raw = RawFile(path, nbytes, shard=raw_name)
    try:
        header = parse_header(raw.read, nbytes, shard=raw_name, expected=None)
        entry = _described(directory, path, raw_name, compressed, header)
        return parser.entry(entry), _side_of(directory / side_basename(raw_name), header, raw)
    finally:
        raw.close()


def _described(
    directory: Path, raw: Path, raw_name: str, compressed: str | None, header: ShardHeader
) -> dict[str, Any]:
    config = header.config
    named = config.get("hashes")
    names = [name for name in named if name in known_hashes()] if isinstance(named, list) else []

    def file(path: Path, basename: str) -> dict[str, Any]:
        hashes = {}
        for name in names:
            with path.open("rb") as opened:
                hashes[name] = hash_file(name, opened)
        return {"basename": basename, "bytes": path.stat().st_size, "hashes": hashes}

    compression = config.get("compression")
    if compressed is None:
        compression = None
    elif not isinstance(compression, str) or compression.partition(":")[0] != compressed.rpartition(".")[2]:
        raise FormatError(f"{compressed!r}: the shard inside says compression {compression!r:.40}")
    return {
        **{
            key: config.get(key) for key in ("column_encodings", "column_names", "column_sizes", "size_limit")
        },
        "compression": compression,
        "format": "mds",
        "hashes": names,
        "raw_data": file(raw, raw_name),
        "samples": header.num_samples,
        "version": 2,
        "zip_data": None if compressed is None else file(directory / compressed, compressed),
    }


def _side_of(path: Path, header: ShardHeader, raw: RawFile) -> _Side | None:
    """Find the algorithms whose digests of this shard's samples the side file holds, each with its own digest."""
    count = header.num_samples
    try:
        fd = open_regular(path, shard=path.name)
    except (StreamshardError, OSError):
        return None
    with os.fdopen(fd, "rb") as file:
        content = file.read(64 * count + 1)
    bounds = header.offsets.tolist()
    found = {}
    for algorithm in _likeliest_first():
        if len(content) == count * digest_nbytes(algorithm):
            check = SampleCheck(algorithm, content)
            # Whole or not at all: without the index nothing says which of the two is damaged.
            if all(check.is_good(row, raw.read(bounds[row], bounds[row + 1])) for row in range(count)):
                found[algorithm] = hash_bytes(algorithm, content)
    return _Side(found)


def _likeliest_first() -> list[str]:
    rest = [name for name in (*XXHASH_NAMES, *HASHLIB_NAMES) if name not in _LIKELIEST_FIRST]
    return [*_LIKELIEST_FIRST, *rest]


def _sample_hashes(sides: list[_Side | None], notes: list[str]) -> dict[str, Any]:
    known = [side for side in sides if side is not None]
    if not known:
        return {}
    for algorithm in _likeliest_first():
        if all(side is not None and algorithm in side.digests for side in sides):
            digests = [side.digests[algorithm] for side in known]
            return {SAMPLE_HASHES_KEY: sample_hashes_entry(algorithm, digests)}
    wrong = int(np.count_nonzero([side is None or not side.digests for side in sides]))
    notes.append(
        f"hashes of samples are left out: of {wrong:,} shards the side file is missing or fits other samples, and "
        "nothing says which of the two is damaged"
    )
    return {}
