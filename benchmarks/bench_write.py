"""Writing from samples in memory to a finished dataset. MDS files are byte for byte the same, whoever writes."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench_read import LITDATA, MOSAIC, WEBDATASET, ZEPHON
from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.digest import digest_of_files, digest_of_samples
from benchmarks.generate import SAMPLES, SHAPES, Source
from benchmarks.machine import memory_directory
from benchmarks.timing import cpu_s, function_of

_COUNTS = {"text": 500_000, "blob": 15_000}
_MODULE = "benchmarks.bench_write"


def write(setting: Setting) -> Iterator[Contest]:
    """Text and blobs, 64 MiB shards, to tmpfs, where a disk is no limit; then blobs to a disk, with fsync apart."""
    memory = memory_directory(setting.directory)
    yield _writing(setting, "text", memory, "write text", {MOSAIC: 2.5})
    yield _writing(setting, "blob", memory, "write blob", {MOSAIC: 1.5, "plain write": 0.5})
    yield _writing(setting, "blob", setting.directory, "write blob to a disk", {})


def _writing(setting: Setting, kind: str, directory: Path, work: str, goals: Mapping[str, float]) -> Contest:
    count = setting.count(_COUNTS[kind])
    if kind == "blob":
        count = min(count, _COUNTS[kind])  # 600 MB in memory
    fewer = max(1, count // 10) if kind == "text" else count
    durable = directory == setting.directory  # elsewhere, in memory, fsync has nothing to do
    ours = [Party(f"{OURS}, no fsync", "write_streamshard", options={"durable": False})] if durable else []
    return Contest(
        f"{work}: {count:,} × {SHAPES[kind]}",
        _MODULE,
        [
            *ours,
            Party(OURS, "write_streamshard", options={"durable": True, "also": fewer}),
            Party(MOSAIC, "write_with", MOSAIC, {"party": "mosaic"}),
            Party(f"{LITDATA}, optimize with 2 workers", "write_with", LITDATA, {"party": "litdata"}),
            Party(WEBDATASET, "write_with", WEBDATASET, {"party": "webdataset", "count": fewer}),
            Party("plain write", "write_plain"),
        ],
        "samples_per_s",
        True,
        {"kind": kind, "count": count, "directory": str(directory)},
        cache="warm: only with fsync is anything surely on the disk" if durable else "none: tmpfs",
        work=work,
        goals=goals,
        unable={ZEPHON: "has no writer"},
    )


def write_streamshard(
    kind: str, count: int, directory: str, durable: bool, also: int = 0, *, check: bool
) -> dict[str, Any]:
    """Write with MDSWriter; not durable: with an fsync that does nothing."""
    if not durable:
        os.fsync = os.fdatasync = lambda fd: None
    found = write_with("streamshard", kind, count, directory, check=check)
    if check and also not in (0, count):
        found |= write_with("streamshard", kind, also, directory, check=True)
    return found


def write_with(party: str, kind: str, count: int, directory: str, *, check: bool) -> dict[str, Any]:
    """Write with a party of ``benchmarks.parties``."""
    source = Source(kind, count, directory)
    samples = list(SAMPLES[kind][1](count))
    writing = function_of(party, "write")
    with _empty(directory) as place:
        writing(source, samples[:1], Path(place) / "first")  # what is imported when first used
        return _timed(source, lambda out: writing(source, samples, out), Path(place), party, check=check)


def write_plain(kind: str, count: int, directory: str, *, check: bool) -> dict[str, Any]:
    """Write the finished files' bytes, already in memory, and do nothing else."""
    source = Source(kind, count, directory)
    with _empty(directory) as place:
        made = Path(place) / "made"
        function_of("streamshard", "write")(source, SAMPLES[kind][1](count), made)
        files = {path.name: path.read_bytes() for path in made.iterdir()}
        shutil.rmtree(made)

        def writing(out: Path) -> None:
            out.mkdir()
            for name, content in files.items():
                (out / name).write_bytes(content)

        return _timed(source, writing, Path(place), "streamshard", check=check)


def _timed(
    source: Source, writing: Callable[[Path], None], place: Path, party: str, *, check: bool
) -> dict[str, Any]:
    out = place / "out"
    os.sync()  # what others left unwritten must not be paid for here
    cpu, start = cpu_s(), time.perf_counter()
    writing(out)
    seconds = time.perf_counter() - start
    used = cpu_s() - cpu
    if check:
        stored: Iterable[Any] = function_of(party, "stored")(source, out)
        found = {f"digest of {source.count:,} samples": digest_of_samples(stored)}
        if (out / "index.json").exists() and any(out.glob("*.mds")):
            found[f"digest of the files of {source.count:,} samples"] = digest_of_files(out)
        return found
    nbytes = sum(path.stat().st_size for path in out.iterdir())
    return {
        "samples_per_s": source.count / seconds,
        "mb_per_s": nbytes / seconds / 1e6,
        "cpu_s_per_million": used / source.count * 1e6,
    }


def _empty(directory: str) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir=directory)
