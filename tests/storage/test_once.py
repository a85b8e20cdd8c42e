"""What processes of a node need at the same time is made by one; failing, dying and silent ones hold up nobody."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from streamshard.storage import once as module
from streamshard.storage.locks import FileLock, LocksUnsupportedError
from streamshard.storage.once import once


class Work:
    """Something that is made once and then found, by threads in place of processes: each opens the lock for itself."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.begun = threading.Event()
        self.may_end = threading.Event()
        self.fails: list[Exception] = []
        self.made: list[int] = []
        self.found: str | None = None
        self.together: threading.Barrier | None = None

    def make(self, beat: Callable[[], None]) -> str:
        beat()
        self.made.append(threading.get_ident())
        self.begun.set()
        assert self.may_end.wait(60)
        if self.fails:
            raise self.fails.pop()
        if self.together is not None:
            self.together.wait(60)  # breaks unless all are here
        self.found = "it"
        return "it"

    def ask(self) -> str:
        return once(self.directory / "lock", place=self.directory, ready=lambda: self.found, make=self.make)

    def ask_in_threads(self, count: int) -> tuple[list[threading.Thread], list[str | Exception]]:
        results: list[str | Exception] = []

        def run() -> None:
            try:
                results.append(self.ask())
            except OSError as error:
                results.append(error)

        threads = [threading.Thread(target=run) for _ in range(count)]
        for thread in threads:
            thread.start()
        return threads, results


def test_one_makes_it_and_the_others_find_it(tmp_path: Path) -> None:
    work = Work(tmp_path)
    threads, results = work.ask_in_threads(6)
    assert work.begun.wait(60)
    work.may_end.set()
    for thread in threads:
        thread.join(60)
    assert results == ["it"] * 6
    assert len(work.made) == 1
    work.may_end.clear()  # what is there is not waited for
    assert work.ask() == "it"


def test_after_a_failure_the_others_try_for_themselves_and_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path)
    work.together = threading.Barrier(3)
    waiting: set[int] = set()
    real = module.pause

    def pause(seconds: float) -> None:
        waiting.add(threading.get_ident())
        if len(waiting) == 3:
            work.may_end.set()
        real(seconds)

    monkeypatch.setattr(module, "pause", pause)
    work.fails = [OSError("no such bucket")]
    first, failed = work.ask_in_threads(1)
    assert work.begun.wait(60)
    threads, results = work.ask_in_threads(3)
    for thread in (*first, *threads):
        thread.join(60)
    assert [str(error) for error in failed] == ["no such bucket"]
    assert results == ["it"] * 3
    assert len(work.made) == 4


def test_one_that_is_silent_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    silent = FileLock(tmp_path / "lock", place=tmp_path)
    assert silent.try_acquire()
    work = Work(tmp_path)
    work.may_end.set()
    with caplog.at_level(logging.WARNING):
        assert work.ask() == "it"
    assert "not waiting any longer" in caplog.text
    silent.close()


def test_one_that_gives_signs_of_life_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    working = FileLock(tmp_path / "lock", place=tmp_path)
    assert working.try_acquire()
    work = Work(tmp_path)
    beats = iter(range(40))

    def pause(seconds: float) -> None:
        clock[0] += 0.9 * module.PATIENCE_S
        if next(beats, None) is None:
            work.found = "theirs"
            working.close()
        else:
            ticks[0] += 1

    clock, ticks = [0.0], [0]
    monkeypatch.setattr(module, "pause", pause)
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(FileLock, "last_beat", lambda self: ticks[0])
    assert work.ask() == "theirs"
    assert work.made == []


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from streamshard.storage.locks import FileLock\n"
        "lock = FileLock(Path(sys.argv[1]) / 'lock', place=Path(sys.argv[1]))\n"
        "print(lock.try_acquire(), flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    work = Work(tmp_path)
    work.may_end.set()
    threads, results = work.ask_in_threads(1)
    assert not work.begun.wait(0.05)
    holder.kill()
    holder.communicate()
    threads[0].join(60)
    assert results == ["it"]


@pytest.mark.parametrize("trouble", ["no locks", "no file"])
def test_where_nothing_can_be_locked_each_works_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    work = Work(tmp_path / "missing" if trouble == "no file" else tmp_path)
    work.may_end.set()
    if trouble == "no locks":

        def refuse(self: FileLock) -> bool:
            raise LocksUnsupportedError

        monkeypatch.setattr(FileLock, "try_acquire", refuse)
    assert work.ask() == "it"
