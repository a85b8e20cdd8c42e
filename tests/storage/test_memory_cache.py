"""The cache in memory: whole, checked files within a limit, and nothing on the disk."""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import CacheTooSmallError, ChecksumError, WrongSizeError
from streamshard.storage import Blob, RetryPolicy
from streamshard.storage.memory_cache import MemoryCache
from streamshard.storage.memory_store import MemoryStore
from tests.support.cache_client import blob_of, body_of
from tests.support.interrupting import interrupted

NBYTES = 5000
NAMES = [f"shard.{number:05}.mds" for number in range(6)]
QUICK = RetryPolicy(attempts=3, timeout_s=5, backoff_s=0.001)


class Counting(MemoryStore):
    """Counts what is read, and may be wrong the first times."""

    def __init__(self, url: str, wrong: int = 0) -> None:
        super().__init__(url)
        self.reads: list[str] = []
        self.wrong = wrong
        self.go_on = threading.Event()
        self.go_on.set()

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        self.reads.append(key)
        self.go_on.wait(60)
        payload = super().read_range(key, begin, end)
        self.wrong -= 1
        return payload if self.wrong < 0 else bytes(len(payload))


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Counting:
    store = Counting(f"memory://{request.node.name}")
    for name in NAMES:
        store.put_bytes(name, body_of(name, NBYTES))
    return store


def cache_of(store: Counting, **options: Any) -> MemoryCache:
    return MemoryCache(store, retry=QUICK, **options)


def content(cache: MemoryCache, name: str) -> bytes:
    with cache.open(blob_of(name, NBYTES)) as file:
        return os.pread(file.fileno(), NBYTES + 1, 0)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_file_is_fetched_once_and_has_its_content(store: Counting) -> None:
    cache = cache_of(store)
    for name in NAMES * 2:
        assert content(cache, name) == body_of(name, NBYTES)
    assert sorted(store.reads) == NAMES
    assert cache.has_file(blob_of(NAMES[0], NBYTES))


def test_what_is_needed_furthest_in_the_future_goes_when_the_limit_is_reached(store: Counting) -> None:
    cache = cache_of(store, limit_bytes=3 * NBYTES, next_use=lambda name: float(NAMES.index(name)))
    for name in NAMES:
        cache.ensure(blob_of(name, NBYTES))
    assert [name for name in NAMES if cache.has_file(blob_of(name, NBYTES))] == [NAMES[0], NAMES[1], NAMES[5]]


def test_an_open_file_is_read_after_it_was_given_up_and_then_freed(store: Counting) -> None:
    before = open_files()
    cache = cache_of(store, limit_bytes=NBYTES)
    with cache.open(blob_of(NAMES[0], NBYTES)) as file:
        cache.ensure(blob_of(NAMES[1], NBYTES))
        assert not cache.has_file(blob_of(NAMES[0], NBYTES))
        assert os.pread(file.fileno(), NBYTES, 0) == body_of(NAMES[0], NBYTES)
    assert open_files() == before + 1
    cache.close()
    assert open_files() == before


def test_a_limit_below_one_file_is_refused_with_both_numbers(store: Counting) -> None:
    with pytest.raises(CacheTooSmallError, match=r"limit is 4999 bytes.*alone needs 5000.*cache_limit="):
        cache_of(store, limit_bytes=NBYTES - 1).ensure(blob_of(NAMES[0], NBYTES))


@pytest.mark.parametrize(("wrong", "reads"), [(2, 3), (3, 3)])
def test_b073_wrong_content_is_fetched_again_and_in_the_end_an_error(
    store: Counting, wrong: int, reads: int
) -> None:
    store.wrong = wrong
    cache, before = cache_of(store), open_files()
    if wrong < QUICK.attempts:
        assert content(cache, NAMES[0]) == body_of(NAMES[0], NBYTES)
    else:
        with pytest.raises(ChecksumError, match="the same after 3 attempts"):
            content(cache, NAMES[0])
        assert open_files() == before
        assert content(cache, NAMES[0]) == body_of(NAMES[0], NBYTES)  # nothing of the failure stays
        reads += 1
    assert len(store.reads) == reads


def test_another_size_is_an_error_naming_both(store: Counting) -> None:
    for nbytes in (NBYTES - 1, NBYTES + 1):
        with pytest.raises(WrongSizeError, match=f"has {NBYTES} bytes, expected {nbytes}"):
            cache_of(store).ensure(Blob(NAMES[0], nbytes, NAMES[0], nbytes))


def test_a_packed_file_is_unpacked(store: Counting) -> None:
    packed = zlib.compress(body_of("raw", NBYTES))
    store.put_bytes("packed", packed)

    def unpack(source: Path, target: Path) -> None:
        target.write_bytes(zlib.decompress(source.read_bytes()))

    blob = Blob("raw", NBYTES, "packed", len(packed), unpack=unpack)
    with cache_of(store).open(blob) as file:
        assert os.pread(file.fileno(), NBYTES + 1, 0) == body_of("raw", NBYTES)


def test_many_threads_make_one_fetch_and_fetches_under_way_count(store: Counting) -> None:
    store.go_on.clear()
    cache = cache_of(store, limit_bytes=2 * NBYTES)
    wanted = [NAMES[0]] * 4 + [NAMES[1]] * 2 + [NAMES[2]] * 2
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(content(cache, name) == body_of(name, NBYTES)))
        for name in wanted
    ]
    for thread in threads:
        thread.start()
    while len(store.reads) < 2:
        store.go_on.wait(0.001)
    assert len(store.reads) == 2  # the limit has no room for a third
    store.go_on.set()
    for thread in threads:
        thread.join(60)
    assert found == [True] * len(wanted)


def test_a_forked_child_and_a_pickled_copy_keep_files_of_their_own(store: Counting) -> None:
    cache = cache_of(store)
    cache.ensure(blob_of(NAMES[0], NBYTES))
    pid = os.fork()
    if not pid:
        before = open_files()
        good = not cache.has_file(blob_of(NAMES[0], NBYTES)) and open_files() == before - 1
        os._exit(0 if good and content(cache, NAMES[0]) == body_of(NAMES[0], NBYTES) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert content(cache, NAMES[0]) == body_of(NAMES[0], NBYTES)
    assert len(store.reads) == 1
    store.go_on = None  # type: ignore[assignment] events cannot be pickled
    assert not pickle.loads(pickle.dumps(cache)).has_file(blob_of(NAMES[0], NBYTES))


def test_a_file_that_was_found_cannot_be_given_up_before_it_is_open(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = MemoryCache(store, retry=QUICK)
    blob = blob_of(NAMES[0], NBYTES)
    cache.ensure(blob)
    begin = MemoryCache._begin
    others: list[bool] = []

    def with_another_thread(self: MemoryCache, held: Any, blob: Blob, caller: Any) -> bool:
        may_fetch = begin(self, held, blob, caller)
        thread = threading.Thread(target=lambda: others.append(held.changed.acquire(blocking=False)))
        thread.start()
        thread.join()
        return may_fetch

    monkeypatch.setattr(MemoryCache, "_begin", with_another_thread)
    cache.open(blob).close()
    assert others == [False]
    cache.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("function", [MemoryCache.open, MemoryCache._begin, MemoryCache._download])
def test_a_file_whose_fetch_was_interrupted_anywhere_is_fetched_again(
    store: Counting, function: Callable[..., Any]
) -> None:
    for line in itertools.count():
        cache = cache_of(store, limit_bytes=2 * NBYTES)
        with interrupted(function, line) as came:
            content(cache, NAMES[0])
        for name in NAMES[:3]:
            assert content(cache, name) == body_of(name, NBYTES)
        if not came.yes:
            break
    assert line > 5
