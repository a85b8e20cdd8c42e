"""What every store promises. A test class for one store inherits ``StoreContract`` and gives it a ``store``."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import BlobNotFoundError, StorageError

BODY = bytes(range(256)) * 40
AWKWARD_KEYS = [
    "a b.bin",
    "a+b.bin",
    "a=b/c=d.bin",
    "100%.bin",
    "a%20b.bin",
    "größe/日本.bin",
    "x:y@z&w.bin",
    "#1?.bin",
]
ESCAPES = ["../x", "a/../../x", "/etc/hostname", "a//b", "", ".", "..", "a/..", "./a", "a\0b", "a/"]


class StoreContract:
    """Inherit, and define the fixture ``store``: an empty store."""

    gives_tags = True

    def test_what_was_put_is_read_back_whole(self, store: Any, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(BODY)
        store.put("sub/a.bin", source)
        store.put_bytes("b.bin", BODY[:10])
        assert store.read("sub/a.bin") == BODY
        assert store.size("sub/a.bin") == len(BODY)
        assert store.read("b.bin") == BODY[:10]

    def test_putting_again_replaces(self, store: Any) -> None:
        store.put_bytes("a", b"first")
        store.put_bytes("a", b"second one")
        assert store.read("a") == b"second one"
        assert store.size("a") == 10

    def test_an_empty_file_is_a_file(self, store: Any, tmp_path: Path) -> None:
        store.put_bytes("empty", b"")
        assert store.size("empty") == 0
        assert store.read("empty") == b""
        assert store.read_range("empty", 0, 0) == b""
        assert store.fetch_to("empty", tmp_path / "got", nbytes=0) == 0
        assert (tmp_path / "got").read_bytes() == b""

    def test_a_small_file_is_read_whole(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        assert store.read_small("a", len(BODY) + 1) == BODY
        assert store.read_small("a", len(BODY)) is None
        with pytest.raises(BlobNotFoundError):
            store.read_small("b", 10)

    def test_a_range_gives_exactly_its_bytes(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        for begin, end in ((0, 1), (0, 10_240), (5, 5), (10_239, 10_240), (17, 9_000)):
            assert store.read_range("a", begin, end) == BODY[begin:end]

    def test_a_range_that_leaves_the_file_is_refused(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        for begin, end in ((0, 10_241), (10_240, 10_241), (20_000, 20_001), (-1, 5), (5, 4)):
            with pytest.raises(StorageError):
                store.read_range("a", begin, end)

    def test_a_file_beyond_the_limit_is_not_read(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        assert store.read("a", limit=len(BODY)) == BODY
        with pytest.raises(StorageError, match="10240 bytes, at most 10239"):
            store.read("a", limit=len(BODY) - 1)

    def test_fetching_shows_progress_and_the_whole_file(self, store: Any, tmp_path: Path) -> None:
        store.put_bytes("a", BODY)
        seen: list[int] = []
        assert store.fetch_to("a", tmp_path / "got", progress=seen.append) == len(BODY)
        assert (tmp_path / "got").read_bytes() == BODY
        assert sum(seen) == len(BODY)
        assert [path.name for path in tmp_path.iterdir()] == ["got"]

    def test_b068_fetching_a_file_of_another_size_is_refused_and_leaves_nothing(
        self, store: Any, tmp_path: Path
    ) -> None:
        store.put_bytes("a", BODY)
        for nbytes in (1, 10_239, 10_241, 1 << 40):
            with pytest.raises(StorageError, match=f"10240 bytes, expected {nbytes}"):
                store.fetch_to("a", tmp_path / "got", nbytes=nbytes)
        assert list(tmp_path.iterdir()) == []

    def test_fetching_replaces_what_is_there(self, store: Any, tmp_path: Path) -> None:
        store.put_bytes("a", BODY)
        (tmp_path / "got").write_bytes(b"old")
        store.fetch_to("a", tmp_path / "got", nbytes=len(BODY))
        assert (tmp_path / "got").read_bytes() == BODY

    def test_b150_missing_is_said_at_once_with_the_url(self, store: Any, tmp_path: Path) -> None:
        for attempt in (
            lambda: store.size("nope.bin"),
            lambda: store.read("nope.bin"),
            lambda: store.read_range("nope.bin", 0, 1),
            lambda: store.fetch_to("nope.bin", tmp_path / "got"),
            lambda: store.fetch_to("nope.bin", tmp_path / "got", nbytes=5),
            lambda: store.delete("nope.bin"),
        ):
            with pytest.raises(BlobNotFoundError) as caught:
                attempt()
            assert store.url in str(caught.value)
            assert "nope.bin" in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_is_not_a_file(self, store: Any) -> None:
        store.put_bytes("dir/a", b"1")
        assert not store.exists("dir")
        with pytest.raises(BlobNotFoundError):
            store.read("dir")

    def test_listing_gives_all_keys_with_the_prefix(self, store: Any) -> None:
        assert store.list() == []
        for key in ("b", "a/2", "a/1", "ab", "a/x/y"):
            store.put_bytes(key, b"1")
        assert store.list() == ["a/1", "a/2", "a/x/y", "ab", "b"]
        assert store.list("a/") == ["a/1", "a/2", "a/x/y"]
        assert store.list("a") == ["a/1", "a/2", "a/x/y", "ab"]
        assert store.list("a/x") == ["a/x/y"]
        assert store.list("zzz/") == []

    def test_a_version_is_another_one_as_soon_as_the_content_is(self, store: Any) -> None:
        store.put_bytes("versioned", b"one")
        before = store.version("versioned")
        assert before == store.version("versioned")
        assert before.nbytes == 3
        assert (before.tag is not None) is self.gives_tags
        store.put_bytes("versioned", b"two")
        after = store.version("versioned")
        assert after.nbytes == 3
        assert (after != before) is self.gives_tags
        with pytest.raises(BlobNotFoundError):
            store.version("missing")

    def test_a_change_is_seen_at_once(self, store: Any) -> None:
        assert not store.exists("d/a")
        store.put_bytes("d/a", b"1")
        assert store.exists("d/a")
        assert store.list() == ["d/a"]
        store.put_bytes("d/b", b"1")
        assert store.list() == ["d/a", "d/b"]
        store.delete("d/a")
        assert not store.exists("d/a")
        assert store.list() == ["d/b"]

    def test_b042_awkward_names_survive(self, store: Any, tmp_path: Path) -> None:
        for number, key in enumerate(AWKWARD_KEYS):
            store.put_bytes(key, b"%d" % number)
        assert store.list() == sorted(AWKWARD_KEYS)
        for number, key in enumerate(AWKWARD_KEYS):
            assert store.read(key) == b"%d" % number
            assert store.fetch_to(key, tmp_path / "got", nbytes=1) == 1
            assert (tmp_path / "got").read_bytes() == b"%d" % number
        store.delete("100%.bin")
        assert not store.exists("100%.bin")

    def test_a_key_cannot_leave_the_root(self, store: Any, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"x")
        attempts: list[Callable[[str], Any]] = [
            store.size,
            store.read,
            lambda key: store.read_range(key, 0, 1),
            lambda key: store.fetch_to(key, tmp_path / "got"),
            lambda key: store.put(key, tmp_path / "source"),
            lambda key: store.put_bytes(key, b"x"),
            store.exists,
            store.delete,
            store.local_path,
        ]
        for key in ESCAPES:
            for attempt in attempts:
                with pytest.raises(StorageError, match="no plain relative path"):
                    attempt(key)

    def test_a_prefix_cannot_leave_the_root(self, store: Any) -> None:
        for prefix in ("../", "/etc/", "a/../../"):
            with pytest.raises(StorageError):
                store.list(prefix)

    def test_it_can_be_pickled_after_use(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        copy = pickle.loads(pickle.dumps(store))
        assert copy.url == store.url
        assert copy.read("a") == BODY

    def test_many_threads_may_use_it(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        barrier = threading.Barrier(8)

        def read(number: int) -> bytes:
            barrier.wait(20)
            return bytes(store.read_range("a", number, number + 5000))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(read, range(8))) == [BODY[n : n + 5000] for n in range(8)]

    def test_a_forked_child_reads_with_the_store_its_parent_used(self, store: Any) -> None:
        store.put_bytes("a", BODY)
        assert store.read("a") == store.read_small("a", 1 << 20) == BODY
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            verdict = b"no"
            try:
                right = store.read("a") == store.read_small("a", 1 << 20) == BODY and store.size("a") == len(
                    BODY
                )
                verdict = b"ok" if right else b"wrong"
            finally:
                os.write(writing, verdict)
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read() == b"ok"
        os.waitpid(child, 0)
        assert store.read("a") == BODY
