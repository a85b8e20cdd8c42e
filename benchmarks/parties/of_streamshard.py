"""streamshard."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.generate import SAMPLES, Source

BATCH_SIZE = 32


def samples(source: Source, *, shuffle: bool = True) -> Iterable[Any]:
    """A StreamingDataset, sample by sample."""
    return _dataset(source, shuffle=shuffle)


def columns(source: Source) -> Iterable[Any]:
    """The same by batches of columns."""
    return _dataset(source, batch_transform=_same)


def batches(source: Source, workers: int, *, keep: bool = False) -> Any:
    """A StreamingDataLoader."""
    from streamshard import StreamingDataLoader

    photo = {"decode_images": False, "transform": _with_pixels} if source.kind == "photo" else {}
    return StreamingDataLoader(
        _dataset(source, **photo), num_workers=workers, persistent_workers=keep and workers > 0
    )


def save(loader: Any) -> Any:
    """The state as a checkpoint holds it."""
    return json.loads(json.dumps(loader.state_dict()))


def resume(source: Source, workers: int, state: Any) -> Any:
    """A new loader that goes on from a state."""
    loader = batches(source, workers)
    loader.load_state_dict(state)
    return loader


def access(source: Source) -> Any:
    """A LocalDataset."""
    from streamshard import LocalDataset

    return LocalDataset(source.place("mds"))


def write(source: Source, samples: Iterable[Mapping[str, Any]], out: Path) -> None:
    """An MDSWriter with xxh64."""
    from streamshard import MDSWriter

    columns = SAMPLES[source.kind][0]
    with MDSWriter(out=str(out), columns=columns, hashes=["xxh64"], size_limit=source.size_limit) as writer:
        for sample in samples:
            writer.write(sample)


def stored(source: Source, out: Path) -> Iterable[Any]:
    """What ``write`` has written."""
    from streamshard import LocalDataset

    return LocalDataset(out, decode_images=False)


def _dataset(source: Source, *, shuffle: bool = True, **arguments: Any) -> Any:
    from streamshard import StreamingDataset

    return StreamingDataset(
        local=str(source.place("mds")), shuffle=shuffle, batch_size=BATCH_SIZE, **arguments
    )


def _with_pixels(sample: dict[str, Any]) -> dict[str, Any]:
    from streamshard import pixels_of

    return {"number": sample["number"], "pixels": pixels_of(sample["picture"], (224, 224))}


def _same(batch: Any) -> Any:
    return batch
