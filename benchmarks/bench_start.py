"""Starting: what importing the package and asking the command for help cost beside a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.bench_read import LITDATA, MOSAIC, WEBDATASET, ZEPHON
from benchmarks.contest import OURS, Contest, Party, Setting

_PACKAGES = {MOSAIC: "streaming", LITDATA: "litdata", WEBDATASET: "webdataset", ZEPHON: "zephon"}
_TURNS = 7


def start(setting: Setting) -> Iterator[Contest]:
    """Whole processes, from start to end; the least of some turns, so that other programs disturb little."""
    module = "benchmarks.bench_start"
    yield Contest(
        "start: wall time of a process",
        module,
        [
            Party(f"import {OURS}", "start_import", options={"package": OURS}),
            Party("bare Python", "start_bare"),
            Party(f"{OURS} --help", "start_help"),
            *(
                Party(f"{peer}, import {package}", "start_import", peer, {"package": package, "turns": 2})
                for peer, package in _PACKAGES.items()
            ),
        ],
        "milliseconds",
        False,
        {"turns": _TURNS},
        checked=False,
        work="start",
        bounds={f"import {OURS}": ("added_ms", 20.0), f"{OURS} --help": ("times_bare", 3.0)},
    )


def start_bare(turns: int) -> dict[str, float]:
    """Start Python and end it."""
    return _beside_bare(_BARE, turns)


def start_import(package: str, turns: int) -> dict[str, float]:
    """Import a package and end."""
    return _beside_bare([sys.executable, "-c", f"import {package}"], turns)


def start_help(turns: int) -> dict[str, float]:
    """Run ``streamshard --help`` as installed."""
    return _beside_bare([str(Path(sys.executable).parent / "streamshard"), "--help"], turns)


_BARE = [sys.executable, "-c", "pass"]


def _beside_bare(command: Sequence[str], turns: int) -> dict[str, float]:
    """Run a command and a bare interpreter in turn, and take the least of each."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(turns):
        for bare in seconds:
            begin = time.perf_counter()
            subprocess.run(_BARE if bare else command, check=True, capture_output=True)
            seconds[bare].append(time.perf_counter() - begin)
    least, other = min(seconds[True]), min(seconds[False])
    return {
        "milliseconds": other * 1e3,
        "added_ms": max(0.0, (other - least) * 1e3),
        "times_bare": other / least,
    }
