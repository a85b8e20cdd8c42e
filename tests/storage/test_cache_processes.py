"""The node cache between processes: one download, shared limits, and death at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from streamshard.storage import NodeCache, RetryPolicy
from streamshard.storage.cache_directory import CacheDirectory
from tests.support.cache_client import Client, SlowStore, blob_of, body_of, fill, ours_in

NBYTES = 20_000


class Node:
    """A source of files and a cache directory for clients."""

    def __init__(self, root: Path, count: int, nbytes: int = NBYTES) -> None:
        self.source = root / "source"
        self.directory = root / "cache"
        self.log = root / "downloads"
        self.nbytes = nbytes
        self.names = fill(self.source, count, nbytes)

    def order(self, names: list[str], **more: Any) -> dict[str, Any]:
        return {
            "source": str(self.source),
            "directory": str(self.directory),
            "log": str(self.log),
            "nbytes": self.nbytes,
            "names": names,
            **more,
        }

    @property
    def downloads(self) -> list[str]:
        return self.log.read_text().split() if self.log.exists() else []

    def cached(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name != ".streamshard")

    def sweep(self) -> None:
        """Do what the next user does who fetches: the survivors may have had nothing more to fetch."""
        CacheDirectory(self.directory).sweep()

    def jobs(self) -> list[str]:
        place = self.directory / ".streamshard" / "jobs"
        return sorted(os.listdir(place)) if place.exists() else []


class Watch:
    """Measures the most bytes that a directory held, while in the ``with`` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most = 0

    def _run(self) -> None:
        while not self._stop.wait(0.005):
            self.most = max(self.most, ours_in(self._directory))

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def test_b069_b092_eight_processes_on_an_empty_cache_download_each_file_once(tmp_path: Path) -> None:
    node = Node(tmp_path, 5)
    clients = [Client(node.order(node.names, seconds=0.1)) for _ in range(8)]
    assert all(client.finish() == node.names for client in clients)
    assert sorted(node.downloads) == node.names
    assert node.cached() == node.names
    assert node.jobs() == []


def test_b084_b088_b089_four_processes_share_a_limit_of_three_files(tmp_path: Path) -> None:
    node = Node(tmp_path, 8)
    clients = []
    with Watch(node.directory) as watch:
        for seed in range(4):
            names = node.names * 4
            random.Random(seed).shuffle(names)
            clients.append(
                (names, Client(node.order(names, limit_bytes=3 * NBYTES, seconds=0.005, hold_s=0.005)))
            )
        for names, client in clients:
            assert client.finish() == names
    assert 3 * NBYTES <= watch.most <= (3 + 4) * NBYTES
    assert len(node.cached()) <= 3 + 4
    # Once they have gone, the limit holds without any allowance.
    cache = NodeCache(
        node.directory, SlowStore(node.source, node.log), digest="digest", limit_bytes=3 * NBYTES
    )
    (node.source / "one-more").write_bytes(body_of("one-more", NBYTES))
    cache.ensure(blob_of("one-more", NBYTES))
    assert len(node.cached()) == 3


def test_a_waiter_whose_peer_has_stopped_downloads_its_own_copy(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    stuck = Client(node.order(node.names, seconds=60))
    try:
        _until(lambda: node.downloads == node.names)
        stuck.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        cache = NodeCache(
            node.directory,
            SlowStore(node.source, node.log),
            digest="digest",
            retry=RetryPolicy(timeout_s=0.5),
        )
        path = cache.ensure(blob_of(node.names[0], NBYTES))
        assert path.read_bytes() == body_of(node.names[0], NBYTES)
        assert 0.4 < time.monotonic() - begin < 10
        assert len(node.downloads) == 2
    finally:
        stuck.kill()


def test_a_waiter_is_patient_with_a_peer_that_gets_on(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    slow = Client(node.order(node.names, seconds=2.0))
    _until(lambda: node.downloads == node.names)
    cache = NodeCache(
        node.directory, SlowStore(node.source, node.log), digest="digest", retry=RetryPolicy(timeout_s=0.7)
    )
    cache.ensure(blob_of(node.names[0], NBYTES))
    assert slow.finish() == node.names
    assert len(node.downloads) == 1


def test_b140_a_killed_downloader_blocks_nobody_and_leaves_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    victim = Client(node.order(node.names, seconds=60))
    _until(lambda: node.downloads == node.names)
    victim.kill()
    assert len(node.jobs()) == 1
    begin = time.monotonic()
    cache = NodeCache(node.directory, SlowStore(node.source, node.log), digest="digest")
    assert cache.ensure(blob_of(node.names[0], NBYTES)).read_bytes() == body_of(node.names[0], NBYTES)
    assert time.monotonic() - begin < 5
    assert node.jobs() == []


def test_a_lock_that_a_forked_child_inherited_dies_with_the_parents_download(tmp_path: Path) -> None:
    node = Node(tmp_path, 2)
    program = f"""
import os, sys, threading, time
from pathlib import Path
from streamshard.storage import NodeCache
from tests.support.cache_client import SlowStore, blob_of
store = SlowStore(Path({str(node.source)!r}), Path({str(node.log)!r}), 0.5)
cache = NodeCache(Path({str(node.directory)!r}), store, digest="digest")
fetching = threading.Thread(target=cache.ensure, args=(blob_of({node.names[0]!r}, {NBYTES}),))
fetching.start()
time.sleep(0.2)
if os.fork() == 0:
    cache.ensure(blob_of({node.names[1]!r}, {NBYTES}))
    cache.ensure(blob_of({node.names[0]!r}, {NBYTES}))
    os._exit(0)
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], timeout=30)
    cache = NodeCache(node.directory, SlowStore(node.source, node.log), digest="digest")
    begin = time.monotonic()
    for name in node.names:
        assert cache.ensure(blob_of(name, NBYTES)).read_bytes() == body_of(name, NBYTES)
    assert time.monotonic() - begin < 10


@pytest.mark.slow
def test_b095_b098_processes_killed_at_random_moments_leave_right_data_and_nothing_else(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, 12, nbytes=400_000)
    rng = random.Random(7)
    for turn in range(25):
        names = node.names * 2
        rng.shuffle(names)
        limit = {"limit_bytes": 4 * node.nbytes} if turn % 2 else {}
        clients = [Client(node.order(names, seconds=0.01, **limit)) for _ in range(2)]
        for client in clients:
            client.wait_until_ready()
        time.sleep(rng.random() * 0.4)
        for client in clients:
            client.kill()
        for name in node.cached():
            assert (node.directory / name).read_bytes() == body_of(name, node.nbytes)
    assert Client(node.order(node.names)).finish() == node.names
    assert node.cached() == node.names
    node.sweep()
    assert node.jobs() == []
    assert sorted(os.listdir(node.directory / ".streamshard/alive")) == []
    # Every file that is there is known to be ours: with a limit all of them can go.
    assert Client(node.order(node.names[:1], limit_bytes=node.nbytes)).finish() == node.names[:1]
    assert len(node.cached()) == 1


@pytest.mark.slow
def test_survivors_of_random_kills_read_right_data_under_a_shared_limit(tmp_path: Path) -> None:
    node = Node(tmp_path, 8, nbytes=100_000)
    rng = random.Random(11)
    for _ in range(8):
        names = node.names * 3
        rng.shuffle(names)
        clients = [Client(node.order(names, seconds=0.005, limit_bytes=3 * node.nbytes)) for _ in range(3)]
        for client in clients:
            client.wait_until_ready()
        time.sleep(rng.random() * 0.3)
        clients[0].kill()
        for client in clients[1:]:
            assert client.finish() == names
        node.sweep()
        assert node.jobs() == []
    assert ours_in(node.directory) <= (3 + 3) * node.nbytes


def _until(condition: Any, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
