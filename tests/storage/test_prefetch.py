"""Fetching ahead: order, bounds, errors, and a quick end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import BlobNotFoundError, StorageError
from streamshard.storage import Blob, NodeCache, Prefetcher, RetryPolicy, open_store
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.seaweedfs import SeaweedServer

pytestmark = pytest.mark.timeout(60)


def blob(number: int, nbytes: int = 10) -> Blob:
    return Blob(f"b{number}", nbytes, f"b{number}", nbytes)


class Fetches:
    """A fetch that notes its begin and end, and waits for a gate if one is set."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.running = 0
        self.most = 0
        self.gate = threading.Event()
        self.gate.set()
        self.errors: dict[str, Exception] = {}
        self._changed = threading.Condition()

    def __call__(self, wanted: Blob) -> Path:
        with self._changed:
            self.begun.append(wanted.name)
            self.running += 1
            self.most = max(self.most, self.running)
            self._changed.notify_all()
        try:
            if not self.gate.wait(30):
                raise TimeoutError("the test forgot the gate")
            if wanted.name in self.errors:
                raise self.errors[wanted.name]
            return Path(wanted.name)
        finally:
            with self._changed:
                self.running -= 1
                self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 10) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)


@pytest.fixture
def fetches() -> Iterator[Fetches]:
    fetches = Fetches()
    yield fetches
    fetches.gate.set()


def threads_left() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamshard-prefetch"]


def test_one_thread_fetches_in_the_order_of_wanting(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10_000)
    order = [5, 3, 9, 1, 7]
    for key in order:
        prefetcher.want(key, blob(key))
    for key in order:
        prefetcher.wait(key)
    prefetcher.close()
    assert fetches.begun == [f"b{key}" for key in order]


def test_no_more_bytes_are_ahead_than_allowed(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=4, ahead_bytes=35)
    for key in range(10):
        prefetcher.want(key, blob(key))
    prefetcher.wait(2)
    time.sleep(0.1)  # time for a thread to do wrong
    assert sorted(fetches.begun) == ["b0", "b1", "b2"]
    prefetcher.done_with(0)
    prefetcher.wait(3)
    assert sorted(fetches.begun) == ["b0", "b1", "b2", "b3"]
    prefetcher.close()


def test_a_blob_larger_than_the_bound_still_comes(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=2, ahead_bytes=0)
    for key in range(5):
        prefetcher.want(key, blob(key, 1000))
    for key in range(5):
        prefetcher.wait(key)
        prefetcher.done_with(key)
    prefetcher.close()


def test_waiting_for_a_later_key_never_deadlocks_on_the_bound(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10)
    for key in range(5):
        prefetcher.want(key, blob(key))
    prefetcher.wait(4)
    assert "b4" in fetches.begun
    prefetcher.close()


def test_threads_work_at_once_and_are_no_more_than_asked_for(fetches: Fetches) -> None:
    fetches.gate.clear()
    prefetcher = Prefetcher(fetches, threads=3, ahead_bytes=10_000)
    for key in range(8):
        prefetcher.want(key, blob(key))
    assert fetches.wait_for(lambda: fetches.running == 3)
    assert len(threads_left()) == 3
    assert all(thread.daemon for thread in threads_left())
    fetches.gate.set()
    for key in range(8):
        prefetcher.wait(key)
    assert fetches.most == 3
    prefetcher.close()
    assert threads_left() == []


def test_no_thread_runs_before_anything_is_wanted(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=3, ahead_bytes=10)
    assert threads_left() == []
    prefetcher.close()


def test_the_first_error_is_raised_in_its_own_type_wherever_somebody_waits(fetches: Fetches) -> None:
    fetches.errors["b2"] = BlobNotFoundError("s3://bucket/b2: not found")
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10_000)
    for key in range(6):
        prefetcher.want(key, blob(key))
    prefetcher.wait(1)
    for _ in range(2):
        with pytest.raises(BlobNotFoundError, match="s3://bucket/b2"):
            prefetcher.wait(2)
    with pytest.raises(BlobNotFoundError, match="s3://bucket/b2"):
        prefetcher.wait(5)
    prefetcher.wait(1)  # what came before the error is there
    prefetcher.close()
    assert threads_left() == []


def test_what_was_wanted_before_the_one_that_failed_is_still_brought_and_nothing_after_it(
    fetches: Fetches,
) -> None:
    fetches.gate.clear()
    fetches.errors["b2"] = BlobNotFoundError("s3://bucket/b2: not found")
    prefetcher = Prefetcher(fetches, threads=4, ahead_bytes=30)
    # Three fit; the one that fails is among the first.
    for key in (2, 0, 1):
        prefetcher.want(key, blob(key))
    assert fetches.wait_for(lambda: fetches.running == 3)
    for key in (3, 4):
        prefetcher.want(key, blob(key))
    fetches.gate.set()
    with pytest.raises(BlobNotFoundError):
        prefetcher.wait(2)
    with pytest.raises(BlobNotFoundError):
        prefetcher.wait(4)
    assert sorted(fetches.begun) == ["b0", "b1", "b2"]
    prefetcher.done_with(2)
    prefetcher.wait(3)
    prefetcher.close()
    assert "b3" in fetches.begun


def test_an_early_error_of_a_late_key_does_not_keep_the_keys_before_it_away(fetches: Fetches) -> None:
    fetches.errors["b5"] = BlobNotFoundError("s3://bucket/b5: not found")
    prefetcher = Prefetcher(fetches, threads=2, ahead_bytes=0)
    for key in range(6):
        prefetcher.want(key, blob(key))
    with pytest.raises(BlobNotFoundError):
        prefetcher.wait(5)
    for key in range(5):
        prefetcher.wait(key)
        prefetcher.done_with(key)
    prefetcher.close()


def test_an_error_wakes_those_who_wait_already(fetches: Fetches) -> None:
    fetches.gate.clear()
    fetches.errors["b0"] = OSError("broken")
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10_000)
    prefetcher.want(0, blob(0))
    prefetcher.want(1, blob(1))
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            prefetcher.wait(1)
        except OSError as error:
            caught.append(error)

    assert fetches.wait_for(lambda: fetches.begun == ["b0"])  # else b1, which is waited for, comes before it
    waiter = threading.Thread(target=wait)
    waiter.start()
    fetches.gate.set()
    waiter.join(10)
    prefetcher.close()
    assert [str(error) for error in caught] == ["broken"]


def test_what_is_done_with_before_its_turn_is_not_fetched(fetches: Fetches) -> None:
    fetches.gate.clear()
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10_000)
    for key in range(3):
        prefetcher.want(key, blob(key))
    assert fetches.wait_for(lambda: fetches.running == 1)
    prefetcher.done_with(0)
    prefetcher.done_with(1)
    fetches.gate.set()
    prefetcher.wait(2)
    prefetcher.close()
    assert fetches.begun == ["b0", "b2"]


def test_a_key_can_be_wanted_again_after_it_was_done_with(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10)
    for _ in range(3):
        prefetcher.want(7, blob(7))
        prefetcher.want(7, blob(7))
        prefetcher.wait(7)
        prefetcher.done_with(7)
    prefetcher.close()
    assert fetches.begun == ["b7"] * 3


def test_waiting_for_what_nobody_wants_is_an_error_not_a_hang(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10)
    with pytest.raises(StorageError, match=r"wait\(3\).*not wanted"):
        prefetcher.wait(3)
    prefetcher.close()
    with pytest.raises(StorageError, match="closed"):
        prefetcher.want(1, blob(1))
    with pytest.raises(StorageError, match="closed"):
        prefetcher.wait(1)
    prefetcher.close()


def test_closing_wakes_those_who_wait(fetches: Fetches) -> None:
    fetches.gate.clear()
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=10)
    prefetcher.want(0, blob(0))
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            prefetcher.wait(0)
        except StorageError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert fetches.wait_for(lambda: fetches.running == 1)
    closer = threading.Thread(target=prefetcher.close)
    closer.start()
    waiter.join(10)
    fetches.gate.set()
    closer.join(10)
    assert "closed" in str(caught[0])
    assert threads_left() == []


def test_a_prefetcher_that_is_dropped_ends_its_threads(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=2, ahead_bytes=100)
    prefetcher.want(0, blob(0))
    prefetcher.wait(0)
    threads = threads_left()
    del prefetcher
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_one_whose_thread_was_interrupted_at_its_start_can_be_closed(
    fetches: Fetches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=100)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            prefetcher.want(0, blob(0))
    prefetcher.close()


def test_a_forked_child_that_drops_its_parents_does_not_wait_for_its_locks(fetches: Fetches) -> None:
    prefetcher = Prefetcher(fetches, threads=1, ahead_bytes=100)
    held, let_go, changed = threading.Event(), threading.Event(), prefetcher._work.changed

    def hold() -> None:
        with changed:
            held.set()
            let_go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(30)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)  # ends one that hangs
        del prefetcher
        gc.collect()
        os._exit(0)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        let_go.set()
        thread.join()


@pytest.mark.parametrize(("threads", "ahead_bytes"), [(0, 1), (-1, 1), (1, -1)])
def test_nonsense_is_refused(fetches: Fetches, threads: int, ahead_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"threads=|ahead_bytes="):
        Prefetcher(fetches, threads=threads, ahead_bytes=ahead_bytes)


def test_a_forked_child_gets_an_error_instead_of_a_hang() -> None:
    program = """
import os
from pathlib import Path
from streamshard.errors import StorageError
from streamshard.storage import Blob, Prefetcher
blob = Blob("a", 1, "a", 1)
prefetcher = Prefetcher(lambda blob: Path("a"), threads=2, ahead_bytes=10)
prefetcher.want(0, blob)
prefetcher.wait(0)
child = os.fork()
if child == 0:
    try:
        prefetcher.wait(0)
    except StorageError:
        prefetcher.close()
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
prefetcher.close()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20, cwd=Path(__file__).parents[2])


def test_a_process_that_forgets_to_close_can_still_end() -> None:
    program = """
import threading
from streamshard.storage import Blob, Prefetcher
never = threading.Event()
prefetcher = Prefetcher(lambda blob: never.wait(), threads=2, ahead_bytes=10)
prefetcher.want(0, Blob("a", 1, "a", 1))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20, cwd=Path(__file__).parents[2])


def test_closing_ends_a_download_that_waits_for_another_process(tmp_path: Path) -> None:
    from streamshard.storage.cache_directory import shared_directory

    store: Any = open_store("memory://prefetch-close")
    store.put_bytes("b0", b"0123456789")
    cache = NodeCache(tmp_path, store, digest="d", retry=RetryPolicy(timeout_s=60))
    lock = shared_directory(tmp_path).lock_for("b0")
    assert lock.try_acquire()
    prefetcher = Prefetcher(cache.ensure, threads=1, ahead_bytes=100)
    prefetcher.want(0, blob(0))
    time.sleep(0.1)
    begin = time.monotonic()
    prefetcher.close()
    assert time.monotonic() - begin < 2
    assert threads_left() == []
    lock.close()


def test_closing_ends_a_download_whose_server_has_fallen_silent(
    s3: SeaweedServer, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    url = s3.make_bucket()
    open_store(url, storage_options=s3.storage_options).put_bytes("b0", b"0123456789" * 1000)
    s3_proxy.arm(Fault(stall_after=0, method="GET"), times=99)
    store = open_store(url, storage_options=s3.options_for(s3_proxy.endpoint_url), retry=RetryPolicy())
    cache = NodeCache(tmp_path, store, digest="d")
    prefetcher = Prefetcher(cache.ensure, threads=1, ahead_bytes=100)
    prefetcher.want(0, blob(0, 10_000))
    deadline = time.monotonic() + 20
    while not s3_proxy.count("GET", "b0"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begin = time.monotonic()
    prefetcher.close()
    assert time.monotonic() - begin < 2
    assert threads_left() == []
    assert [path for path in tmp_path.iterdir() if path.name != ".streamshard"] == []
