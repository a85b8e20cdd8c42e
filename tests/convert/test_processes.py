"""Worker processes end with their parent, whatever they are doing, and say why they fail."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from streamshard.convert import processes
from streamshard.convert.processes import Workers
from streamshard.convert.scan import ScanTask
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import Source
from streamshard.convert.worker import Reports


def _scan(path: Path, target: Path) -> ScanTask:
    return ScanTask(
        Source(path.name, str(path), 10, str(path.parent)),
        0,
        10,
        str(target),
        str(path.parent),
        Shaping(),
        True,
        1000,
        False,
    )


def test_a_worker_in_the_middle_of_a_task_dies_when_its_pipe_ends(tmp_path: Path) -> None:
    # Opening a pipe that nobody writes to keeps the worker busy for ever.
    os.mkfifo(tmp_path / "fifo")
    worker = processes._Worker()
    worker._send(("scan", _scan(tmp_path / "fifo", tmp_path / "a.npz")))
    process = worker._process
    with pytest.raises(processes.subprocess.TimeoutExpired):
        process.wait(1)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(20)
    worker.stop(at_once=True)


def test_an_unexpected_error_keeps_its_class_and_carries_the_workers_traceback(tmp_path: Path) -> None:
    tasks = [_scan(tmp_path / "nope", tmp_path / f"{number}.npz") for number in range(2)]
    with Workers(2) as workers, pytest.raises(FileNotFoundError) as caught:
        workers.run("scan", tasks, lambda *_: None, lambda _: None)
    assert "in scan_chunk" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("code", "words"),
    [(-signal.SIGKILL, "out-of-memory"), (-signal.SIGSEGV, "killed by SIGSEGV"), (3, "exit code 3")],
)
def test_the_way_a_worker_died_is_told(code: int, words: str) -> None:
    text = processes._death_text(7, code, "writing shard.00003.mds")
    assert words in text
    assert "process 7" in text
    assert "while writing shard.00003.mds" in text


def test_reports_add_up() -> None:
    sent: list[tuple[int, int]] = []
    reports = Reports(lambda nbytes, samples: sent.append((nbytes, samples)))
    for _ in range(1000):
        reports.advance(3, 1)
    reports.flush()
    reports.flush()
    assert sum(nbytes for nbytes, _ in sent) == 3000
    assert sum(samples for _, samples in sent) == 1000
    assert len(sent) < 50
