"""Writing from samples in memory to a finished dataset. What is written is byte for byte the same."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.digest import digest_of_files
from benchmarks.generate import SAMPLES

MOSAIC = "mosaicml-streaming"
_COUNTS = {"text": 500_000, "blob": 15_000}
_SHAPES = {"text": "{int, 150-byte str}", "blob": "{int, 20-60 kB bytes, str}"}


def write(setting: Setting) -> Iterator[Contest]:
    """Text and blobs with xxh64, 64 MiB shards. streamshard makes files durable (fsync), its peer does not."""
    for kind, default in _COUNTS.items():
        count = setting.count(default)
        if kind == "blob":
            count = min(count, default)  # 600 MB in memory
        yield Contest(
            f"write: {count:,} × {_SHAPES[kind]}",
            "benchmarks.bench_write",
            [
                Party(OURS + ", no fsync", "write_streamshard", options={"durable": False}),
                Party(OURS, "write_streamshard", options={"durable": True}),
                Party(MOSAIC, "write_mosaic", MOSAIC),
                Party("plain write", "write_plain"),
            ],
            "samples_per_s",
            True,
            {"kind": kind, "count": count, "directory": str(setting.directory)},
            cache="warm: only with fsync is anything surely on the disk",
        )


def write_streamshard(kind: str, count: int, directory: str, durable: bool, *, check: bool) -> dict[str, Any]:
    """Write with MDSWriter; not durable: with an fsync that does nothing."""
    from streamshard import MDSWriter

    if not durable:
        os.fsync = lambda fd: None
    return _timed(MDSWriter, kind, count, directory, check=check)


def write_mosaic(kind: str, count: int, directory: str, *, check: bool) -> dict[str, Any]:
    """Write with the MDSWriter of mosaicml-streaming."""
    from streaming import MDSWriter  # type: ignore[import-not-found]

    return _timed(MDSWriter, kind, count, directory, check=check)


def write_plain(kind: str, count: int, directory: str, *, check: bool) -> dict[str, Any]:
    """Write the finished files' bytes, already in memory, and do nothing else."""
    from streamshard import MDSWriter

    columns, samples = SAMPLES[kind]
    with _empty(directory) as place:
        with MDSWriter(out=str(Path(place) / "made"), columns=columns, hashes=["xxh64"]) as writer:
            for sample in samples(count):
                writer.write(sample)
        files = {path.name: path.read_bytes() for path in (Path(place) / "made").iterdir()}
        shutil.rmtree(Path(place) / "made")
        out = Path(place) / "out"
        out.mkdir()
        os.sync()
        cpu, start = time.process_time(), time.perf_counter()
        for name, content in files.items():
            (out / name).write_bytes(content)
        seconds = time.perf_counter() - start
        return _report(out, count, seconds, time.process_time() - cpu, check=check)


def _timed(writer_class: Any, kind: str, count: int, directory: str, *, check: bool) -> dict[str, Any]:
    columns, make = SAMPLES[kind]
    samples = list(make(count))
    with _empty(directory) as place:
        with writer_class(out=str(Path(place) / "first"), columns=columns, hashes=["xxh64"]) as writer:
            writer.write(samples[0])  # what is imported when first used is no part of writing
        out = Path(place) / "out"
        os.sync()  # what others left unwritten must not be paid for here
        cpu, start = time.process_time(), time.perf_counter()
        with writer_class(out=str(out), columns=columns, hashes=["xxh64"]) as writer:
            for sample in samples:
                writer.write(sample)
        seconds = time.perf_counter() - start
        return _report(out, count, seconds, time.process_time() - cpu, check=check)


def _report(out: Path, count: int, seconds: float, cpu: float, *, check: bool) -> dict[str, Any]:
    if check:
        return {"digest": digest_of_files(out)}
    nbytes = sum(path.stat().st_size for path in out.iterdir())
    return {
        "samples_per_s": count / seconds,
        "mb_per_s": nbytes / seconds / 1e6,
        "cpu_s_per_million": cpu / count * 1e6,
    }


def _empty(directory: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=directory)
