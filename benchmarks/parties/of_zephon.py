"""zephon: reads the same files as streamshard, by means of mosaicml-streaming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.generate import Source, bytes_to_pixels, to_pixels

BATCH_SIZE = 32


def samples(source: Source, *, shuffle: bool = True) -> Iterable[Any]:
    """A Pipeline with the runner that it chooses itself: threads."""
    return (record.payload for batch in _pipeline(source, shuffle=shuffle) for record in batch.records)


def batches(source: Source, workers: int, *, keep: bool = False) -> Any:
    """A Pipeline in another process, as its documentation recommends for training; pictures by more of them."""
    return _Tensors(_pipeline(source, workers=workers))


def save(loader: Any) -> Any:
    """A checkpoint."""
    return loader.pipeline.checkpoint()


def resume(source: Source, workers: int, state: Any) -> Any:
    """A new Pipeline that goes on from a checkpoint."""
    loader = batches(source, workers)
    loader.pipeline.restore(state)
    return loader


def _pipeline(source: Source, *, shuffle: bool = True, workers: int = 0) -> Any:
    from zephon import Pipeline  # type: ignore[import-not-found]
    from zephon.io import Dataset  # type: ignore[import-not-found]
    from zephon.work import MixtureSpec, StaticMixtureWorkSource  # type: ignore[import-not-found]

    work = StaticMixtureWorkSource(
        datasets=[Dataset.from_path("train", str(source.place("mds")), fmt="mds")],
        mixture=MixtureSpec({"train": 1.0}),
        seed=9176,
        chunk_size=_chunk_size(source.count),
        shuffle_shards=shuffle,
        shuffle_within_shard=shuffle,
        shuffle_block_size="auto" if shuffle else None,
        exhausted_policy="stop",
    )
    made = Pipeline(work)
    if source.kind == "photo":
        made = made.map_transform(_with_pixels, parallelism=workers or 1)
    made = made.batch(microbatch_size=BATCH_SIZE, drop_last=False)
    if workers:
        runner = {"runner": "process", "max_workers": workers} if source.kind == "photo" else {}
        made = made.options(mtp_mode=True, **runner)
    return made


def _chunk_size(count: int) -> int:
    """The largest up to its default that divides the epoch: "stop" leaves out what does not fill a chunk."""
    return next(size for size in range(min(16_384, count), 0, -1) if count % size == 0)


class _Tensors:
    """Its batches hold records; what a model takes is made of them here, as its documentation says."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Iterator[dict[str, Any]]:
        import torch

        for batch in self.pipeline:
            records = [record.payload for record in batch.records]
            columns = {name: [record[name] for record in records] for name in records[0]}
            columns["number"] = torch.tensor(columns["number"])
            if "pixels" in columns:
                columns["pixels"] = torch.stack(list(map(torch.as_tensor, columns["pixels"])))
            yield columns


def _with_pixels(sample: Any) -> dict[str, Any]:
    picture = sample["picture"]
    pixels = bytes_to_pixels(picture) if isinstance(picture, bytes) else to_pixels(picture)
    return {"number": sample["number"], "pixels": pixels}
