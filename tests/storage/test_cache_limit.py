"""A cache with a limit: what is deleted, when, and what is not."""

from __future__ import annotations

import itertools
import math
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import CacheTooSmallError
from streamshard.storage import Blob, NodeCache, RetryPolicy
from streamshard.storage.eviction import CachedEntry, plan_eviction
from streamshard.storage.local_store import LocalStore
from tests.support.cache_client import SlowStore, blob_of, body_of, fill, ours_in

NBYTES = 10_000
QUICK = RetryPolicy(attempts=2, timeout_s=1, backoff_s=0.001)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    fill(tmp_path / "source", 20, NBYTES)
    return tmp_path / "source"


@pytest.fixture
def names(source: Path) -> list[str]:
    return sorted(os.listdir(source))


def cache_at(tmp_path: Path, files: float, **options: Any) -> NodeCache:
    return NodeCache(
        tmp_path / "cache",
        LocalStore(tmp_path / "source"),
        digest="d",
        retry=options.pop("retry", QUICK),
        limit_bytes=int(files * NBYTES),
        **options,
    )


def cached(tmp_path: Path) -> list[str]:
    return sorted(name for name in os.listdir(tmp_path / "cache") if name != ".streamshard")


def test_b086_disk_use_never_passes_the_limit(tmp_path: Path, names: list[str]) -> None:
    cache = cache_at(tmp_path, 3)
    for name in names * 3:
        with cache.open(blob_of(name, NBYTES)) as file:
            assert os.pread(file.fileno(), NBYTES, 0) == body_of(name, NBYTES)
            assert ours_in(tmp_path / "cache") <= 3 * NBYTES
    assert len(cached(tmp_path)) == 3


def test_b087_files_of_an_earlier_run_without_limit_count_and_go(tmp_path: Path, names: list[str]) -> None:
    free = NodeCache(tmp_path / "cache", LocalStore(tmp_path / "source"), digest="d", retry=QUICK)
    for name in names:
        free.ensure(blob_of(name, NBYTES))
    assert len(cached(tmp_path)) == 20
    cache = cache_at(tmp_path, 5)
    (tmp_path / "source" / "extra.mds").write_bytes(body_of("extra.mds", NBYTES))
    cache.ensure(blob_of("extra.mds", NBYTES))
    assert len(cached(tmp_path)) == 5
    for name in names:
        assert cache.ensure(blob_of(name, NBYTES)).read_bytes() == body_of(name, NBYTES)
    assert len(cached(tmp_path)) == 5


def test_b084_a_limit_below_one_file_is_refused_with_both_numbers(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(CacheTooSmallError, match=r"9000 bytes.*10000.*cache_limit="):
        cache_at(tmp_path, 0.9).ensure(blob_of(names[0], NBYTES))


def test_b084_a_kept_source_counts(tmp_path: Path, names: list[str]) -> None:
    def copy(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes())

    blob = Blob("a", NBYTES, names[0], NBYTES, unpack=copy, keep_source=True)
    with pytest.raises(CacheTooSmallError, match=r"15000 bytes.*20000"):
        cache_at(tmp_path, 1.5).ensure(blob)
    cache_at(tmp_path, 2).ensure(blob)
    assert cached(tmp_path) == sorted(["a", names[0]])
    cache_at(tmp_path, 2).ensure(blob_of(names[1], NBYTES))
    assert len(cached(tmp_path)) == 2


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, names: list[str]) -> None:
    cache = cache_at(tmp_path, 3)
    for name in names[:3]:
        cache.open(blob_of(name, NBYTES)).close()
        time.sleep(0.02)  # the file system's clock has steps
    cache.open(blob_of(names[0], NBYTES)).close()
    time.sleep(0.02)
    cache.open(blob_of(names[3], NBYTES)).close()
    assert cached(tmp_path) == [names[0], names[2], names[3]]


def test_what_is_needed_furthest_in_the_future_goes_first(tmp_path: Path, names: list[str]) -> None:
    distance = {names[0]: 1.0, names[1]: 9.0, names[2]: 5.0}
    cache = cache_at(tmp_path, 3, next_use=lambda name: distance.get(name, math.inf))
    for name in names[:3]:
        cache.ensure(blob_of(name, NBYTES))
    cache.ensure(blob_of(names[3], NBYTES))
    assert cached(tmp_path) == [names[0], names[2], names[3]]
    cache.ensure(blob_of(names[4], NBYTES))  # names[3] is not needed again
    assert cached(tmp_path) == [names[0], names[2], names[4]]


def test_a_held_file_stays(tmp_path: Path, names: list[str]) -> None:
    cache = cache_at(tmp_path, 2)
    with cache.open(blob_of(names[0], NBYTES)) as held:
        for name in names[1:]:
            cache.ensure(blob_of(name, NBYTES))
            assert held.path.exists()
            assert len(cached(tmp_path)) == 2
    cache.ensure(blob_of(names[1], NBYTES))
    cache.ensure(blob_of(names[2], NBYTES))
    assert cached(tmp_path) == names[1:3]


def test_one_file_may_pass_the_limit_when_all_others_are_held_and_a_second_waits_in_vain(
    tmp_path: Path, names: list[str]
) -> None:
    cache = cache_at(tmp_path, 2)
    held = [cache.open(blob_of(name, NBYTES)) for name in names[:3]]
    begin = time.monotonic()
    with pytest.raises(CacheTooSmallError, match=r"limit is 20000 bytes, but 30000 are held.*10000 more"):
        cache.open(blob_of(names[3], NBYTES))
    assert 0.9 < time.monotonic() - begin < 5
    held[0].close()
    cache.open(blob_of(names[3], NBYTES)).close()
    for file in held:
        file.close()
    cache.open(blob_of(names[4], NBYTES)).close()
    assert len(cached(tmp_path)) == 2


def test_a_second_file_beyond_the_limit_comes_as_soon_as_one_is_released(
    tmp_path: Path, names: list[str]
) -> None:
    cache = cache_at(tmp_path, 1, retry=RetryPolicy(timeout_s=20))
    held = [cache.open(blob_of(name, NBYTES)) for name in names[:2]]
    timer = threading.Timer(0.3, held[1].close)
    timer.start()
    with cache.open(blob_of(names[2], NBYTES)) as file:
        assert os.pread(file.fileno(), NBYTES, 0) == body_of(names[2], NBYTES)
    timer.join()
    held[0].close()


def test_downloads_in_flight_count(tmp_path: Path, names: list[str]) -> None:
    store = SlowStore(tmp_path / "source", tmp_path / "log", seconds=0.1)
    cache = NodeCache(tmp_path / "cache", store, digest="d", limit_bytes=4 * NBYTES)
    most = [0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            most[0] = max(most[0], ours_in(tmp_path / "cache"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda name: cache.ensure(blob_of(name, NBYTES)), names))
    stop.set()
    watcher.join()
    assert NBYTES < most[0] <= 4 * NBYTES
    assert len(cached(tmp_path)) <= 4


def test_the_limit_and_the_hook_travel_with_the_cache(tmp_path: Path, names: list[str]) -> None:
    cache = pickle.loads(pickle.dumps(cache_at(tmp_path, 2)))
    for name in names:
        cache.ensure(blob_of(name, NBYTES))
    assert len(cached(tmp_path)) == 2


ENTRIES = st.lists(
    st.builds(CachedEntry, st.text("abc", min_size=1, max_size=3), st.integers(0, 99), st.integers(0, 9)),
    unique_by=lambda entry: entry.name,
    max_size=12,
)


@given(ENTRIES, st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(0, 5)))
def test_the_plan_is_a_permutation_by_distance_then_age(
    entries: list[CachedEntry], distance: dict[str, int]
) -> None:
    def next_use(name: str) -> float:
        return distance.get(name, math.inf)

    plan = plan_eviction(entries, next_use)
    assert sorted(entry.name for entry in plan) == sorted(entry.name for entry in entries)
    for first, second in itertools.pairwise(plan):
        far, near = distance.get(first.name, 99), distance.get(second.name, 99)
        assert far > near or (far == near and first.last_used_ns <= second.last_used_ns)
    assert plan == plan_eviction(list(reversed(entries)), next_use)


def test_another_jobs_files_are_kept_while_they_are_in_use_there_and_go_first_later() -> None:
    minute = 60 * 10**9
    entries = [
        CachedEntry("theirs, used now", 1, 100 * minute),
        CachedEntry("theirs, used long ago", 1, 80 * minute),
        CachedEntry("ours, in use", 1, 100 * minute),
        CachedEntry("ours, needed soon", 1, 100 * minute),
        CachedEntry("ours, needed later", 1, 100 * minute),
        CachedEntry("ours, not needed", 1, 100 * minute),
    ]
    uses = {
        "ours, in use": 0.2,
        "ours, needed soon": 9.0,
        "ours, needed later": 99.0,
        "ours, not needed": math.inf,
    }
    assert [entry.name for entry in plan_eviction(entries, uses.get)] == [
        "theirs, used long ago",
        "ours, not needed",
        "ours, needed later",
        "ours, needed soon",
        "theirs, used now",
        "ours, in use",
    ]


def test_without_a_hook_the_plan_is_least_recently_used() -> None:
    entries = [CachedEntry("a", 1, 30), CachedEntry("b", 1, 10), CachedEntry("c", 1, 20)]
    assert [entry.name for entry in plan_eviction(entries)] == ["b", "c", "a"]


def test_b087_a_run_that_downloads_nothing_also_comes_under_its_limit(
    tmp_path: Path, names: list[str]
) -> None:
    free = NodeCache(tmp_path / "cache", LocalStore(tmp_path / "source"), digest="d", retry=QUICK)
    for name in names:
        free.ensure(blob_of(name, NBYTES))
    cache_at(tmp_path, 4).ensure(blob_of(names[0], NBYTES))
    assert len(cached(tmp_path)) == 4
    assert names[0] in cached(tmp_path)
