"""An MDS dataset as a Ray Data source: shards shared out to read tasks, each task's rows in blocks."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from streamshard.errors import BlobNotFoundError
from streamshard.format.index import Index
from streamshard.ray.blocks import BlockTypes
from streamshard.read.catalog import load_index, shard_blob
from streamshard.read.keys import key_in
from streamshard.read.shard_reader import ShardReader
from streamshard.storage.cache import NodeCache
from streamshard.storage.opening import is_local, local_directory, open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from streamshard.format.index import ShardInfo

# A block is put together from rows of about this many bytes.
_BLOCK_NBYTES = 32 << 20
_MOST_ROWS = 1 << 16


@dataclass(frozen=True)
class _Place:
    """Where a dataset is, and what is wanted of it."""

    url: str
    split: str | None
    columns: tuple[str, ...] | None
    decode_images: bool
    allow_unsafe_types: bool
    validate_hash: str | bool | None
    digest: str = ""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def types(self, info: ShardInfo) -> BlockTypes:
        return BlockTypes.of(
            info.schema,
            self.columns,
            decode_images=self.decode_images,
            allow_unsafe_types=self.allow_unsafe_types,
        )


class MDSDatasource(Datasource):  # type: ignore[misc] # Ray's classes are not known to the type checker
    """See :func:`streamshard.ray.read_mds`."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        split: str | None = None,
        decode_images: bool = False,
        allow_unsafe_types: bool = False,
        validate_hash: str | bool | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        text = os.fspath(url)
        if text.startswith("memory://"):
            raise ValueError(f"url={text!r}: exists in one process alone, but the readers are many")
        # Another node has another current directory.
        place = str(local_directory(text).absolute()) if is_local(text) else text
        index, digest = load_index(open_store(place, storage_options=storage_options), split=split)
        self._index: Index = index
        self._place = _Place(
            place,
            split,
            _names(columns),
            decode_images,
            allow_unsafe_types,
            validate_hash,
            digest,
            storage_options,
        )
        infos = index.shards
        # Columns and encodings are refused here, in the driver, not in a task.
        for schema in index.schemas:
            self._place.types(next(info for info in infos if info.schema == schema))

    def get_name(self) -> str:
        """The name of the read tasks."""
        return "MDS"

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of the raw shards. With a choice of columns or decoded images it is an estimate."""
        return sum(info.raw.nbytes for info in self._index.shards)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """Share the shards out, in order, to at most ``parallelism`` tasks of about as many bytes."""
        infos = list(self._index.shards)
        begins = self._index.begins
        tasks = []
        for begin, end in shared_out([info.raw.nbytes for info in infos], parallelism):
            mine = tuple(infos[begin:end])
            metadata = BlockMetadata(
                num_rows=int(begins[end] - begins[begin]),
                size_bytes=sum(info.raw.nbytes for info in mine),
                input_files=[key_in(self._place.split, info.stored.basename) for info in mine],
                exec_stats=None,
            )
            tasks.append(
                ReadTask(
                    _ReadShards(self._place, mine, int(begins[begin])),
                    metadata,
                    schema=self._schema(),
                    per_task_row_limit=per_task_row_limit,
                )
            )
        return tasks

    def _schema(self) -> pa.Schema | None:
        return self._place.types(self._index.shards[0]).schema() if self._index.num_shards else None


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    # A text is one name too few or too many: the decoder refuses it with the names that there are.
    return None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns)


def shared_out(sizes: Sequence[int], tasks: int) -> list[tuple[int, int]]:
    """Divide items in order into at most ``tasks`` runs ``(begin, end)``, none empty, of near-equal sums."""
    count = min(max(1, tasks), len(sizes))
    if not count:
        return []
    ends = np.cumsum(np.array(sizes, np.int64) + 1)
    runs, begin = [], 0
    for number in range(1, count + 1):
        wanted = int(ends[-1]) * number // count
        end = max(begin + 1, int(np.searchsorted(ends, wanted, side="right")))
        end = min(end, len(sizes) - (count - number))
        runs.append((begin, end))
        begin = end
    return runs


@dataclass(frozen=True)
class _ReadShards:
    """What a read task runs: some shards, one after another."""

    place: _Place
    infos: tuple[ShardInfo, ...]
    first_sample: int

    def __call__(self) -> Iterator[pa.Table]:
        first = self.first_sample
        for info in self.infos:
            types = self.place.types(info)
            with tempfile.TemporaryDirectory(prefix="streamshard-ray-") as folder:
                path = self._here(info, Path(folder))
                reader = ShardReader(path, info, types.decoder, first_sample_id=first)
                rows = min(_MOST_ROWS, max(1, _BLOCK_NBYTES * info.num_samples // max(1, info.raw.nbytes)))
                for begin in range(0, info.num_samples, rows):
                    yield types.table(reader.samples(np.arange(begin, min(begin + rows, info.num_samples))))
                del reader
            first += info.num_samples

    def _here(self, info: ShardInfo, folder: Path) -> Path:
        """The raw file of a shard: in place where that is possible, else fetched and checked."""
        place = self.place
        store = open_store(place.url, storage_options=place.storage_options)
        blob = shard_blob(info, split=place.split, validate_hash=place.validate_hash)
        path = store.local_path(key_in(place.split, info.raw.basename))
        if path is not None and info.compressed is None:
            if not path.exists():
                raise BlobNotFoundError(
                    f"{path} is not there on this node; give a directory that all nodes share, or a URL"
                )
            if place.validate_hash not in (None, False) and blob.check is not None:
                blob.check(path)
            return path
        return NodeCache(folder, store, digest=place.digest).ensure(blob)
