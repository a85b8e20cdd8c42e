"""Programs that get ready, and then begin at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def run_at_once(program: str, *arguments: str, processes: int = 2) -> list[str]:
    """Run a program that says ``ready`` and waits for a line in several processes; what each printed afterwards."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(processes)
    ]
    for process in running:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in running:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * processes
    return printed
