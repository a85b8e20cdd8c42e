"""One measurement in a process of its own: ``python -m benchmarks.child RESULT MODULE FUNCTION OPTIONS``.

Runs in the interpreter of whoever is measured, so neither this file nor a ``bench_*`` module imports anything but
the standard library at its top. RESULT is a file: libraries are free to print.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT

_TAIL = 400


class FailedError(Exception):
    """A measurement ended with an error, or not in time."""


def call(
    python: str, module: str, function: str, options: Mapping[str, Any], *, limit_s: float | None = None
) -> Any:
    """Call ``module.function(**options)`` in an interpreter's own process and give what it returns.

    The process has a session of its own: when its time is over, what it has started ends with it.

    Raises:
        FailedError: the call raised, its process ended, or it took longer than ``limit_s``; with its last words.
    """
    with tempfile.TemporaryDirectory() as directory:
        result, said = Path(directory) / "result.json", Path(directory) / "stderr"
        command = [python, "-m", "benchmarks.child", str(result), module, function, json.dumps(dict(options))]
        with said.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )
            try:
                status = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise FailedError(f"took more than {limit_s:,.0f} s") from None
            finally:
                _end_all(process)
        if status != 0 or not result.exists():
            raise FailedError(f"exit status {status}: {_last_words(said.read_text(errors='replace'))}")
        return json.loads(result.read_text())


def _end_all(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line and not line.startswith("File ")]
    return (errors or lines or ["no message"])[-1][-_TAIL:].replace(str(ROOT), "…")


def main() -> None:
    result, module, function, options = sys.argv[1:]
    found = getattr(import_module(module), function)(**json.loads(options))
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
