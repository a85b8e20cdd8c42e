"""A JSONL of very many lines: what planning its conversion takes, in memory above all."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.machine import ROOT
from benchmarks.memory import private_nbytes_of_all

_LINES = 100_000_000
_LINE_NBYTES = 200
_LINES_AT_ONCE = 10_000
_SECONDS_BETWEEN_LOOKS = 0.1


def planning(setting: Setting) -> Iterator[Contest]:
    """A tenth, then all of 100 million lines of 200 bytes each: text without images, ids of their own."""
    for count in (setting.count(_LINES // 10), setting.count(_LINES)):
        yield Contest(
            f"convert --dry-run: JSONL of {count:,} lines of {_LINE_NBYTES} bytes",
            "benchmarks.bench_planning",
            [Party(f"{OURS} --dry-run --workers 2", "planned")],
            "peak_private_mb",
            False,
            {"directory": str(setting.directory), "count": count},
            checked=False,
            most_runs=1,
        )


def lines_of_text(directory: Path, count: int) -> Path:
    """Make a JSONL whose lines hold an id, a text and a number and have ``_LINE_NBYTES`` each, unless it is there."""
    place = directory / f"lines-{count}.jsonl"
    if place.exists():
        return place
    part = place.with_suffix(".part")
    with part.open("w", encoding="ascii", newline="\n") as file:
        for begin in range(0, count, _LINES_AT_ONCE):
            letters = hashlib.shake_128(begin.to_bytes(8, "little")).hexdigest(_LINES_AT_ONCE)
            file.write(
                "".join(
                    _line(n, letters[n - begin :]) for n in range(begin, min(count, begin + _LINES_AT_ONCE))
                )
            )
    part.replace(place)
    return place


def _line(number: int, letters: str) -> str:
    head = f'{{"id": "line-{number:09}", "length": {number % 997:3}, "text": "'
    return f'{head}{letters[: _LINE_NBYTES - len(head) - 3]}"}}\n'


def planned(directory: str, count: int) -> dict[str, float]:
    """``streamshard convert --dry-run``, and the most private memory that its processes had together."""
    source = lines_of_text(Path(directory), count)
    command = [str(Path(sys.executable).parent / "streamshard"), "convert", os.fspath(source)]
    command += [
        "--out",
        os.fspath(Path(directory) / "never-written"),
        "--dry-run",
        "--workers",
        "2",
        "--quiet",
    ]
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, private_nbytes_of_all(process.pid))
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    seconds = time.perf_counter() - begin
    if process.returncode:
        raise RuntimeError(f"streamshard convert --dry-run ended with {process.returncode}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "peak_private_mb": peak / 1e6,
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "lines_per_s": count / seconds,
        "input_mb": source.stat().st_size / 1e6,
    }
