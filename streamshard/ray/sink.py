"""An MDS dataset as a Ray Data sink: a folder of shards for each write task, one index at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ray.data.block import Block, BlockAccessor
from ray.data.datasource import Datasink, WriteResult

from streamshard.format.encodings import SCALARS
from streamshard.write.arrow_values import encoding_of, row_converter
from streamshard.write.parts import PartedDataset, WrittenPart

if TYPE_CHECKING:
    from ray.data import Dataset
    from ray.data.datasource.datasink import TaskContext

_OPTIONS = ("compression", "hashes", "size_limit", "samples_per_shard", "costs", "sample_hash", "retry")


class MDSDatasink(Datasink):  # type: ignore[misc] # Ray's classes are not known to the type checker
    """See :func:`streamshard.ray.write_mds`."""

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        columns: Mapping[str, str],
        exist_ok: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        min_rows_per_file: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        unknown = sorted(set(options or {}) - set(_OPTIONS))
        if unknown:
            raise ValueError(f"{unknown[0]}=: no such option; there are {', '.join(_OPTIONS)}")
        self._parts = PartedDataset.of(url, columns, options or {}, storage_options)
        self._exist_ok = exist_ok
        self._min_rows = min_rows_per_file
        self._begun = False
        self._num_samples: int | None = None
        row_converter(columns)  # an encoding that there is not is named here, before any task runs

    def get_name(self) -> str:
        """The name of the write tasks."""
        return "MDS"

    @property
    def min_rows_per_write(self) -> int | None:
        """Rows that Ray brings together for a task."""
        return self._min_rows

    def on_write_start(self, schema: Any = None) -> None:
        """Make room, in the driver, before any task writes."""
        if not self._begun:
            self._parts.begin(exist_ok=self._exist_ok)
            self._begun = True

    def write(self, blocks: Iterable[Block], ctx: TaskContext) -> WrittenPart | None:
        """Write the rows of one task, on its node."""
        return self._parts.write(ctx.task_idx, self._rows(blocks))

    def on_write_complete(self, write_result: WriteResult[WrittenPart | None]) -> None:
        """Publish the index over what the tasks that count have written."""
        self.on_write_start()
        written = [part for part in write_result.write_returns if part is not None]
        index = self._parts.commit(written, num_rows=int(write_result.num_rows))
        self._num_samples = index.num_samples

    def on_write_failed(self, error: Exception) -> None:
        """Take back what this run has written."""
        if self._begun:
            self._parts.abandon()

    def finished(self) -> int:
        """The samples of the dataset. A Ray dataset without any block has started no write: an empty one is made."""
        if self._num_samples is None:
            self.on_write_start()
            self._num_samples = self._parts.commit([]).num_samples
        return self._num_samples

    def _rows(self, blocks: Iterable[Block]) -> Iterator[dict[str, Any]]:
        convert = row_converter(self._parts.columns)
        for block in blocks:
            for row in BlockAccessor.for_block(block).iter_rows(public_row_format=True):
                yield convert(row)


def columns_of_dataset(dataset: Dataset) -> dict[str, str]:
    """The encodings for the types of a Ray dataset's columns.

    Raises:
        ValueError: a dataset whose types are not known.
    """
    schema = dataset.schema()
    if schema is None:
        raise ValueError("columns: the dataset has no rows that tell its types; give column name → encoding")
    columns = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        number = _number_of_tensor(kind) if "Tensor" in type(kind).__name__ else ""
        if number in SCALARS:
            columns[str(name)] = f"ndarray:{number}"
        else:
            columns[str(name)] = encoding_of(kind)
    return columns


def _number_of_tensor(kind: Any) -> str:
    """The encoding of a tensor's numbers, by what it is stored as: Ray's own names for it change with its releases."""
    storage = kind.storage_type
    if str(storage).startswith("struct<"):  # tensors of different shapes
        storage = storage.field("data").type
    return encoding_of(storage.value_type)
