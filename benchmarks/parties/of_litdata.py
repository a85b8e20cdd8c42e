"""litdata: reads chunks that its own ``optimize`` has written."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.generate import SAMPLES, Source, bytes_to_pixels

BATCH_SIZE = 32


def samples(source: Source, *, shuffle: bool = True) -> Iterable[Any]:
    """A StreamingDataset, sample by sample."""
    return _dataset(source, shuffle=shuffle)


def samples_as_bytes(source: Source) -> Iterable[Any]:
    """With bytes that are the sample's own, as the others give them, and not a view of the file."""
    return _dataset(source, shuffle=True, transform=_with_bytes)


def batches(source: Source, workers: int, *, keep: bool = False, shuffle: bool = True) -> Any:
    """A StreamingDataset in its own StreamingDataLoader."""
    import litdata  # type: ignore[import-not-found]

    return litdata.StreamingDataLoader(
        _dataset(source, shuffle=shuffle, transform=_TRANSFORMS.get(source.kind)),
        batch_size=BATCH_SIZE,
        num_workers=workers,
        persistent_workers=keep and workers > 0,
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
    """Its StreamingDataset can be indexed."""
    return _dataset(source, shuffle=False)


def write(source: Source, samples: Sequence[Mapping[str, Any]], out: Path, workers: int = 2) -> None:
    """``optimize`` of samples that the forked workers inherit; each is given stretches of them."""
    import litdata

    _INHERITED[:] = samples
    step = max(1, len(samples) // (8 * workers))
    litdata.optimize(
        _stretch,
        [(begin, min(begin + step, len(samples))) for begin in range(0, len(samples), step)],
        str(out),
        chunk_bytes=source.shard_nbytes,
        num_workers=workers,
        start_method="fork",
        verbose=False,
    )


def stored(source: Source, out: Path) -> Iterable[Any]:
    """What ``write`` has written."""
    import litdata

    return litdata.StreamingDataset(str(out))


_INHERITED: list[Mapping[str, Any]] = []


def _stretch(bounds: tuple[int, int]) -> Iterator[Mapping[str, Any]]:
    yield from _INHERITED[slice(*bounds)]


def _dataset(source: Source, *, shuffle: bool, transform: Any = None) -> Any:
    import litdata

    arguments = {} if transform is None else {"transform": transform}
    return litdata.StreamingDataset(str(_chunks(source)), shuffle=shuffle, **arguments)


def _chunks(source: Source) -> Path:
    """Make the chunks unless they are there: in the unmeasured run, the first one."""
    place = source.place("litdata")
    if not (place / "index.json").exists():
        import litdata

        shutil.rmtree(place, ignore_errors=True)
        stretches = range(0, source.count, 1000)
        litdata.optimize(
            _made,
            [(source.kind, begin, min(begin + 1000, source.count)) for begin in stretches],
            str(place),
            chunk_bytes=source.shard_nbytes,
            num_workers=2,
            verbose=False,
        )
    return place


def _made(stretch: tuple[str, int, int]) -> Iterator[Mapping[str, Any]]:
    kind, begin, end = stretch
    yield from SAMPLES[kind][1](end, begin)


def _with_pixels(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "pixels": bytes_to_pixels(sample["picture"])}


def _with_bytes(sample: Mapping[str, Any]) -> dict[str, Any]:
    return {**sample, "blob": bytes(sample["blob"])}


_TRANSFORMS = {"photo": _with_pixels, "blob": _with_bytes}  # its collate takes no views
