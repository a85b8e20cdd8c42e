"""summarise_dataset: what an index says, in numbers, and a guess of how large each column's values are."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streamshard.errors import StreamshardError
from streamshard.read.catalog import load_index
from streamshard.read.spot import SpotReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from streamshard.format.index import Index
    from streamshard.format.schema import Schema
    from streamshard.storage.store import Store

_GUESS_SAMPLES = 32
# Of a remote sample only so much is read for the guess of sizes, and no compressed shard beyond this is
# fetched.
_GUESS_NBYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ColumnSummary:
    """One column. ``nbytes``: size of each value where fixed, else the mean of a few (None: not read)."""

    name: str
    encoding: str
    fixed: bool
    nbytes: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, median, mean, and greatest of a number over the shards."""

    least: int
    median: float
    mean: float
    greatest: int


@dataclass(frozen=True, slots=True)
class Summary:
    """What ``streamshard info`` shows. ``costs``: total by name; ``extra``: else under the key "streamshard"."""

    source: str
    digest: str
    num_samples: int
    num_shards: int
    raw_nbytes: int
    compressed_nbytes: int | None
    columns: tuple[ColumnSummary, ...]
    num_schemas: int
    compressions: dict[str, int]
    hashes: dict[str, int]
    shard_nbytes: Spread | None
    shard_samples: Spread | None
    costs: dict[str, int]
    extra: dict[str, Any]
    guess_note: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain lists, dicts, strings and numbers."""
        return asdict(self)


def summarise_dataset(store: Store, *, split: str | None = None) -> Summary:
    """Read the index and a few samples and sum up the dataset.

    Raises:
        BlobNotFoundError, FormatError, StorageError: the index cannot be read. Trouble with the few samples
            is no error: ``guess_note`` says what it was.
    """
    index, digest = load_index(store, split=split)
    nbytes = index.table.raw_nbytes
    compressed = index.table.compressed_nbytes[index.table.compressed_nbytes >= 0]
    kinds = index.table.counts_of_kinds()
    means, note = _guess_sizes(store, split, index)
    schema = index.schemas[0] if index.num_shards else None
    return Summary(
        source=store.url.rstrip("/") + (f"/{split.strip('/')}" if split else ""),
        digest=digest,
        num_samples=index.num_samples,
        num_shards=len(index.shards),
        raw_nbytes=int(nbytes.sum()),
        compressed_nbytes=sum(compressed.tolist()) if compressed.size else None,
        columns=_columns(schema, means),
        num_schemas=len(index.schemas),
        compressions=_added((kind.compression or "none", count) for kind, count in kinds),
        hashes=_added((name, count) for kind, count in kinds for name in kind.hashes),
        shard_nbytes=_spread(nbytes),
        shard_samples=_spread(index.samples_per_shard),
        costs={name: int(sums.sum()) for name, sums in sorted(index.costs.items())},
        extra=index.facts,
        guess_note=note,
    )


def _added(counts: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for name, count in counts:
        total[name] += count
    return dict(total)


def _columns(schema: Schema | None, means: dict[str, float]) -> tuple[ColumnSummary, ...]:
    if schema is None:
        return ()
    return tuple(
        ColumnSummary(name, encoding, size is not None, means.get(name) if size is None else size)
        for name, encoding, size in zip(schema.names, schema.encodings, schema.sizes, strict=True)
    )


def _guess_sizes(store: Store, split: str | None, index: Index) -> tuple[dict[str, float], str | None]:
    """Return the mean size of variable columns over some samples of the first shard that has any."""
    if not index.num_samples:
        return {}, None
    shard_id = int(np.flatnonzero(index.samples_per_shard)[0])
    info = index.shards[shard_id]
    schema = info.schema
    variable = [name for name, size in zip(schema.names, schema.sizes, strict=True) if size is None]
    if not variable:
        return {}, None
    if (
        info.compressed is not None
        and store.local_path(info.compressed.basename) is None
        and info.compressed.nbytes > _GUESS_NBYTES
    ):
        return {}, "sizes of values are not known: the shards are compressed, large, and elsewhere"
    head = 4 * len(variable)
    total = np.zeros(len(variable))
    rows = np.unique(np.linspace(0, info.num_samples - 1, _GUESS_SAMPLES).astype(np.int64)).tolist()
    try:
        with SpotReader(store, index, split=split) as reader:
            for row in rows:
                # A sample begins with one u32 length for each column without a fixed size.
                words = reader.raw(shard_id, row, limit=head)
                if len(words) < head:
                    return {}, f"sizes of values are not known: row {row} of the first shard is malformed"
                total += np.frombuffer(words, "<u4")
    except (StreamshardError, OSError) as error:
        return {}, f"sizes of values are not known: {error}"
    return dict(zip(variable, (total / len(rows)).tolist(), strict=True)), None


def _spread(values: NDArray[np.int64]) -> Spread | None:
    if not values.size:
        return None
    return Spread(int(values.min()), float(np.median(values)), float(values.mean()), int(values.max()))
