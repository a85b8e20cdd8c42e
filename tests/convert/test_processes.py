"""Worker processes end with their parent, whatever they are doing, and say why they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from streamshard.convert import copies, processes, worker
from streamshard.convert.processes import Workers
from streamshard.convert.scan import ScanTask
from streamshard.convert.shaping import Shaping
from streamshard.convert.sources import Source
from streamshard.convert.supply import ImageSettings
from streamshard.convert.worker import Reports
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import run, write_lines


def _scan(path: Path, target: Path) -> ScanTask:
    return ScanTask(
        Source(path.name, str(path), 10, str(path.parent)),
        0,
        10,
        str(target),
        str(path.parent),
        Shaping(),
        True,
        ImageSettings(str(path.parent / "kept"), 1000),
    )


_IN_ONE_THREAD = """
import subprocess, sys
from pathlib import Path
from streamshard.convert import copies, processes
from streamshard.convert.processes import Workers
from tests.convert.test_processes import _scan

def scan(name):
    return _scan(folder / name, folder / f"{name}.tally")

folder = Path(sys.argv[1])
assert copies.may_copy()
"""


def _in_one_thread(tmp_path: Path, code: str) -> str:
    """Run code in a process that may be copied: this one has the threads of numerical libraries."""
    done = subprocess.run(
        [sys.executable, "-c", _IN_ONE_THREAD + code, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
def test_a_copied_worker_dies_when_its_pipe_ends_and_holds_no_file_of_its_parent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    shown = _in_one_thread(
        tmp_path,
        """
import fcntl, os
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
first, second = processes._Worker(), processes._Worker()
for worker in (first, second):
    assert type(worker._process) is copies.CopiedProcess
    worker._send(("scan", scan("fifo")))
try:
    first._process.wait(0.5)
except subprocess.TimeoutExpired:
    print("busy")
# The pipe of the first ends although the second was made after it, and nothing but ours keeps the lock.
first._process.stdin.close()
print(first._process.wait(20))
held = {os.readlink(f"/proc/{second._process.pid}/fd/{n}") for n in os.listdir(f"/proc/{second._process.pid}/fd")}
print(any(name.endswith("lock") for name in held))
second._process.kill()
print(second._process.wait(20), second._process.wait())
""",
    )
    assert shown.split() == ["busy", "1", "False", "-9", "-9"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are copied on Linux alone")
def test_copied_workers_do_their_tasks_and_pass_on_their_errors(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}").write_text('{"a": 1}\n')
    shown = _in_one_thread(
        tmp_path,
        """
print("waits in the buffer")
import gc
from streamshard.convert import worker
worker.FUNCTIONS["collections"] = lambda *_: gc.get_threshold()[0] if gc.get_freeze_count() > 10_000 else 0
found = []
with Workers(2) as workers:
    workers.run("collections", [scan("a"), scan("b")], lambda *_: None, found.append)
print(found, gc.get_threshold()[0] < 10_000)
with Workers(3) as workers:
    workers.run("scan", [scan(str(n)) for n in range(6)], lambda *_: None, lambda _: None)
    try:
        workers.run("scan", [scan("nope"), scan("no")], lambda *_: None, lambda _: None)
    except FileNotFoundError as error:
        print("in scan_chunk" in str(error.__cause__))
print(len(list(folder.glob("*.tally"))))
""",
    )
    assert shown.splitlines() == ["waits in the buffer", "[10000, 10000] True", "True", "6"]


def test_a_process_with_threads_is_not_copied() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not copies.may_copy()
        worker = processes._Worker()
        assert type(worker._process) is subprocess.Popen
        worker.stop(at_once=True)
        worker.wait()
    finally:
        stop.set()
        thread.join()


def test_a_worker_in_the_middle_of_a_task_dies_when_its_pipe_ends(tmp_path: Path) -> None:
    # Opening a pipe that nobody writes to keeps the worker busy for ever.
    os.mkfifo(tmp_path / "fifo")
    worker = processes._Worker()
    worker._send(("scan", _scan(tmp_path / "fifo", tmp_path / "a.tally")))
    process = worker._process
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(20)
    worker.stop(at_once=True)
    worker.wait()


def test_an_unexpected_error_keeps_its_class_and_carries_the_workers_traceback(tmp_path: Path) -> None:
    tasks = [_scan(tmp_path / "nope", tmp_path / f"{number}.tally") for number in range(2)]
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


def test_a_task_that_runs_out_of_memory_says_what_it_was_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}])

    def fail(*_: Any) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setitem(worker.FUNCTIONS, "write", fail)
        with pytest.raises(ConvertError, match=r"no memory was left while writing shard.* fewer --workers"):
            run(source, tmp_path / "A")
    assert run(source, tmp_path / "A").samples == 1
