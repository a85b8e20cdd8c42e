"""Starting: what importing the package and asking the command for help cost beside a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.contest import OURS, Contest, Party, Setting

MOSAIC = "mosaicml-streaming"
_TURNS = 7


def start(setting: Setting) -> Iterator[Contest]:
    """Whole processes, from start to end; the least of some turns, so that other programs disturb little."""
    module = "benchmarks.bench_start"
    yield Contest(
        "start: wall time of a process",
        module,
        [
            Party(f"import {OURS}", "start_import", options={"package": OURS}),
            Party("bare python", "start_bare"),
            Party(f"{OURS} --help", "start_help"),
            Party("import streaming (mosaicml-streaming)", "start_import", MOSAIC, {"package": "streaming"}),
        ],
        "milliseconds",
        False,
        {"turns": setting.count(_TURNS)},
        cache="warm",
        checked=False,
    )


def start_bare(turns: int) -> dict[str, float]:
    """Start Python and end it."""
    return _least([sys.executable, "-c", "pass"], turns)


def start_import(package: str, turns: int) -> dict[str, float]:
    """Import a package and end."""
    return _least([sys.executable, "-c", f"import {package}"], turns)


def start_help(turns: int) -> dict[str, float]:
    """Run ``streamshard --help`` as installed."""
    return _least([str(Path(sys.executable).parent / "streamshard"), "--help"], turns)


def _least(command: Sequence[str], turns: int) -> dict[str, float]:
    seconds = []
    for _ in range(turns):
        begin = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds.append(time.perf_counter() - begin)
    return {"milliseconds": min(seconds) * 1e3}
