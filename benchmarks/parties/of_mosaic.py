"""mosaicml-streaming: reads the same files as streamshard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.generate import SAMPLES, Source, to_pixels

BATCH_SIZE = 32


def samples(source: Source, *, shuffle: bool = True) -> Iterable[Any]:
    """A StreamingDataset, sample by sample."""
    return _dataset(source, shuffle=shuffle)


def batches(source: Source, workers: int, *, keep: bool = False) -> Any:
    """A StreamingDataset in its own StreamingDataLoader."""
    from streaming import StreamingDataLoader  # type: ignore[import-not-found]

    return StreamingDataLoader(
        _dataset(source), batch_size=BATCH_SIZE, num_workers=workers, persistent_workers=keep and workers > 0
    )


def save(loader: Any) -> Any:
    """The state as a checkpoint holds it."""
    return loader.state_dict()


def resume(source: Source, workers: int, state: Any) -> Any:
    """A new loader that goes on from a state."""
    loader = batches(source, workers)
    loader.load_state_dict(state)
    return loader


def access(source: Source) -> Any:
    """A LocalDataset."""
    from streaming import LocalDataset

    return LocalDataset(local=str(source.place("mds")))


def write(source: Source, samples: Iterable[Mapping[str, Any]], out: Path) -> None:
    """An MDSWriter with xxh64."""
    from streaming import MDSWriter

    columns = SAMPLES[source.kind][0]
    with MDSWriter(out=str(out), columns=columns, hashes=["xxh64"], size_limit=source.size_limit) as writer:
        for sample in samples:
            writer.write(sample)


def stored(source: Source, out: Path) -> Iterable[Any]:
    """What ``write`` has written."""
    from streaming import LocalDataset

    return LocalDataset(local=str(out))


def _dataset(source: Source, *, shuffle: bool = True) -> Any:
    import streaming

    class WithPixels(streaming.StreamingDataset):  # type: ignore[misc, name-defined]
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return {"number": sample["number"], "pixels": to_pixels(sample["picture"])}

    made = WithPixels if source.kind == "photo" else streaming.StreamingDataset
    arguments = {"local": str(source.place("mds")), "shuffle": shuffle, "batch_size": BATCH_SIZE}
    try:
        return made(**arguments)
    except (FileExistsError, ValueError):  # shared memory that a run left which was ended amid its work
        streaming.base.util.clean_stale_shared_memory()
        return made(**arguments)
