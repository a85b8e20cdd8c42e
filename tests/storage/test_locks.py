"""Advisory locks: between processes, across forks, and where there are none."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamshard.storage.locks import FileLock, try_lock
from tests.support.interrupting import interrupted


def lock_at(tmp_path: Path) -> FileLock:
    return FileLock(tmp_path / "lock", place=tmp_path)


def test_a_lock_is_held_by_one_and_free_after_closing(tmp_path: Path) -> None:
    first, second = lock_at(tmp_path), lock_at(tmp_path)
    assert first.try_acquire()
    assert not second.try_acquire()
    first.close()
    first.close()
    assert second.try_acquire()
    second.close()
    assert (tmp_path / "lock").exists()


def test_a_lock_whose_release_was_interrupted_anywhere_is_free_when_its_owner_is_gone(tmp_path: Path) -> None:
    for line in itertools.count():
        lock = lock_at(tmp_path)
        assert lock.try_acquire()
        with interrupted(FileLock.close, line) as came:
            lock.close()
        del lock
        other = lock_at(tmp_path)
        assert other.try_acquire()
        other.close()
        if not came.yes:
            break
    assert line > 3


def test_readers_share_and_keep_a_deleter_out(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1")
    readers = [os.open(path, os.O_RDONLY) for _ in range(2)]
    deleter = os.open(path, os.O_RDWR)
    assert all(try_lock(reader, shared=True, place=tmp_path) for reader in readers)
    assert not try_lock(deleter, shared=False, place=tmp_path)
    for reader in readers:
        os.close(reader)
    assert try_lock(deleter, shared=False, place=tmp_path)
    os.close(deleter)


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "lock").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        lock_at(tmp_path)


def test_the_heartbeat_is_seen_by_others(tmp_path: Path) -> None:
    holder, waiter = lock_at(tmp_path), lock_at(tmp_path)
    os.utime(tmp_path / "lock", ns=(1, 1))
    before = waiter.last_beat()
    holder.beat()
    assert waiter.last_beat() > before
    holder.close()
    waiter.close()


PROGRAM = """
import os, sys
from pathlib import Path
from streamshard.storage.locks import FileLock

def lock(name):
    return FileLock(Path(sys.argv[1]) / name, place=Path(sys.argv[1]))

held = lock("lock")
assert held.try_acquire()
looked, tell_looked = os.pipe()
released, tell_released = os.pipe()
child = os.fork()
if child == 0:
    os.close(tell_released)
    # The parent's lock is not ours: we can neither keep it nor give it up, whatever numbers files get here.
    fresh = lock("other")
    assert fresh.try_acquire()
    held.close()
    assert not lock("other").try_acquire()
    assert not lock("lock").try_acquire()
    os.write(tell_looked, b"1")
    os.read(released, 1)
    os._exit(0 if lock("lock").try_acquire() else 3)
os.close(tell_looked)
assert os.read(looked, 1) == b"1"
held.close()
os.close(tell_released)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


def test_a_forked_child_neither_keeps_nor_breaks_its_parents_lock(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=20, cwd=Path(__file__).parents[2]
    )
