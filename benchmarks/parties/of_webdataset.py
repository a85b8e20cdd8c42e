"""webdataset: reads tar files that its own ShardWriter has written. Shuffles shards, and samples in a buffer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.generate import SAMPLES, Source, to_pixels

BATCH_SIZE = 32
_BUFFER = 1000
_FIELDS = {"number": "id", "text": "txt", "blob": "bin", "name": "txt", "picture": "jpg"}


def samples(source: Source, *, shuffle: bool = True) -> Iterable[Any]:
    """A WebDataset, sample by sample."""
    return _dataset(source, shuffle=shuffle)


def batches(source: Source, workers: int, *, keep: bool = False) -> Any:
    """Batched in the workers, as its documentation recommends, by a WebLoader."""
    import webdataset  # type: ignore[import-not-found]
    from torch.utils.data import default_collate

    made = _dataset(source).batched(BATCH_SIZE, collation_fn=default_collate)
    return webdataset.WebLoader(
        made, batch_size=None, num_workers=workers, persistent_workers=keep and workers > 0
    )


def write(source: Source, samples: Iterable[Mapping[str, Any]], out: Path) -> None:
    """A ShardWriter; each value is a file in the tar, named by its kind."""
    _write(samples, out, maxsize=source.shard_nbytes)


def stored(source: Source, out: Path) -> Iterable[Any]:
    """What ``write`` has written."""
    import webdataset

    made = webdataset.WebDataset(sorted(map(str, out.glob("*.tar"))), shardshuffle=False, empty_check=False)
    return made.decode().to_tuple(*_fields(source.kind)).map(_NAMED[source.kind])


def _write(samples: Iterable[Mapping[str, Any]], out: Path, **limits: int) -> None:
    import webdataset

    out.mkdir(parents=True)
    with webdataset.ShardWriter(f"{out}/%06d.tar", verbose=0, **limits) as writer:
        for sample in samples:
            fields = {_FIELDS[name]: value for name, value in sample.items()}
            writer.write({"__key__": f"{sample['number']:09}", **fields})


def _dataset(source: Source, *, shuffle: bool = True) -> Any:
    import webdataset

    tars = sorted(map(str, _tars(source).glob("*.tar")))
    made = webdataset.WebDataset(tars, shardshuffle=len(tars) if shuffle else False)
    if shuffle:
        made = made.shuffle(_BUFFER)
    return made.decode("pil").to_tuple(*_fields(source.kind)).map(_NAMED[source.kind])


def _tars(source: Source) -> Path:
    """Make the tar files unless they are there; eight at least, for the workers."""
    place = source.place("webdataset")
    if not place.exists():
        samples = SAMPLES[source.kind][1](source.count)
        shutil.rmtree(making := place.with_name(place.name + "-making"), ignore_errors=True)
        _write(samples, making, maxsize=source.shard_nbytes, maxcount=-(-source.count // 8))
        making.rename(place)
    return place


def _fields(kind: str) -> tuple[str, ...]:
    return tuple(_FIELDS[name] for name in SAMPLES[kind][0])


def _text(values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(SAMPLES["text"][0], values, strict=True))


def _blob(values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(SAMPLES["blob"][0], values, strict=True))


def _photo(values: tuple[Any, ...]) -> dict[str, Any]:
    return {"number": values[0], "pixels": to_pixels(values[1])}


_NAMED = {"text": _text, "blob": _blob, "photo": _photo}
