"""The least that Python can do for the same: slice the same bytes in the same order, make the same dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.generate import Source

BATCH_SIZE = 32


def samples(source: Source) -> Iterable[dict[str, Any]]:
    """In streamshard's order, known beforehand, from memory."""
    return _Loop(source.place("mds"), source.kind)


class _Loop:
    """All that is not slicing and making dicts is done by the constructor."""

    def __init__(self, directory: Path, kind: str) -> None:
        import numpy as np

        from streamshard.format.index import INDEX_BASENAME, parse_index
        from streamshard.order.batches import BatchPlan
        from streamshard.order.epoch import Order
        from streamshard.order.walk import Walk

        index = parse_index((directory / INDEX_BASENAME).read_bytes(), source=INDEX_BASENAME)
        order = Order([Walk(index.samples_per_shard, seed=9176)])
        plan = BatchPlan(num_samples=index.num_samples, global_batch_size=BATCH_SIZE, ranks=1)
        samples = order.rank_batches(plan, 0, 0, plan.num_batches).samples
        self._files = [(directory / shard.raw.basename).read_bytes() for shard in index.shards]
        offsets = [
            np.frombuffer(file, "<u4", shard.num_samples + 1, 4)
            for file, shard in zip(self._files, index.shards, strict=True)
        ]
        begins = np.concatenate([each[:-1] for each in offsets])
        ends = np.concatenate([each[1:] for each in offsets])
        shards = np.repeat(np.arange(index.num_shards), index.samples_per_shard)
        self._places = [each[samples].tolist() for each in (shards, begins, ends)]
        self._walk = {"text": self._text, "blob": self._blob}[kind]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._walk()

    def _text(self) -> Iterator[dict[str, Any]]:
        # length of text | number | text
        files, number = self._files, int.from_bytes
        for shard, begin, end in zip(*self._places, strict=True):
            file = files[shard]
            yield {
                "number": number(file[begin + 4 : begin + 12], "little", signed=True),
                "text": file[begin + 12 : end].decode(),
            }

    def _blob(self) -> Iterator[dict[str, Any]]:
        # lengths of blob and name | blob | name | number
        files, number = self._files, int.from_bytes
        for shard, begin, end in zip(*self._places, strict=True):
            file = files[shard]
            cut = begin + 8 + number(file[begin : begin + 4], "little")
            yield {
                "blob": file[begin + 8 : cut],
                "name": file[cut : end - 8].decode(),
                "number": number(file[end - 8 : end], "little", signed=True),
            }
