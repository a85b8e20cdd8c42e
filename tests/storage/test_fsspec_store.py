"""What the store does with file systems of fsspec that misbehave."""

from __future__ import annotations

import errno
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    MissingDependencyError,
    StorageError,
)
from streamshard.storage import RetryPolicy, clients, open_store
from streamshard.storage.store import Version
from streamshard.storage.windows import remote_version
from tests.support.store_contract import StoreContract
from tests.support.stub_filesystem import StubFileSystem

QUICK = RetryPolicy(attempts=3, timeout_s=5, backoff_s=0.001)


@pytest.fixture(autouse=True)
def stub() -> Iterator[type[StubFileSystem]]:
    StubFileSystem.reset()
    yield StubFileSystem
    StubFileSystem.released.set()


def open_stub(**options: Any) -> Any:
    return open_store("stub://bucket/data", storage_options=options, retry=QUICK)


class TestContractOnAFileSystemWithoutAsync(StoreContract):
    gives_tags = False

    @pytest.fixture
    def store(self) -> Any:
        return open_stub()


def fail_times(times: int, error: Exception, call: str = "read") -> None:
    left = [times]

    def behave(fs: StubFileSystem, name: str, path: str) -> None:
        if name == call and left[0] > 0:
            left[0] -= 1
            raise error

    StubFileSystem.behave = behave


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("reset"),
        TimeoutError("slow"),
        OSError(errno.EBUSY, "SlowDown"),
        OSError("without a number"),
        EOFError("short"),
    ],
)
def test_a_transient_error_is_tried_again(error: Exception) -> None:
    store = open_stub()
    store.put_bytes("a", b"content")
    fail_times(2, error)
    assert store.read("a") == b"content"


def test_a_lasting_error_names_url_attempts_and_cause() -> None:
    store = open_stub()
    store.put_bytes("a", b"content")
    fail_times(99, ConnectionResetError("by peer"))
    with pytest.raises(StorageError) as caught:
        store.read_range("a", 0, 3)
    assert "stub://bucket/data/a" in str(caught.value)
    assert "3 attempts" in str(caught.value)
    assert "ConnectionResetError: by peer" in str(caught.value)
    assert isinstance(caught.value.__cause__, ConnectionResetError)


def test_b151_the_number_of_attempts_is_the_one_that_was_asked_for() -> None:
    for attempts in (1, 2, 7):
        StubFileSystem.reset()
        store = open_store("stub://bucket", retry=RetryPolicy(attempts=attempts, backoff_s=0.0))
        store.put_bytes("a", b"content")
        StubFileSystem.calls.clear()
        fail_times(99, ConnectionResetError())
        with pytest.raises(StorageError):
            store.read_range("a", 0, 3)
        assert StubFileSystem.calls.count("read") == attempts


def test_b150_missing_is_asked_for_once() -> None:
    store = open_stub()
    with pytest.raises(BlobNotFoundError):
        store.size("index.json")
    assert StubFileSystem.calls == ["info"]


def test_b144_denied_says_permission_and_is_not_retried_beyond_new_credentials() -> None:
    store = open_stub()
    store.put_bytes("a", b"content")
    fail_times(99, PermissionError("Forbidden"))
    StubFileSystem.calls.clear()
    with pytest.raises(AccessDeniedError, match=r"permission denied.*requester_pays"):
        store.read_range("a", 0, 3)
    assert StubFileSystem.calls.count("read") == 2


def test_b145_credentials_that_expire_are_renewed_by_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_RENEWED_EVERY_S", 0.0)  # they last for 5 reads

    def behave(fs: StubFileSystem, name: str, path: str) -> None:
        if name == "read" and fs.reads > 5:
            raise PermissionError("ExpiredToken")

    store = open_stub()
    store.put_bytes("a", b"content")
    StubFileSystem.behave = behave
    for _ in range(20):
        assert store.read_range("a", 0, 7) == b"content"
    assert len(StubFileSystem.made_with) == 4


def test_b145_credentials_that_stay_expired_are_an_error_naming_url_and_credentials() -> None:
    def behave(fs: StubFileSystem, name: str, path: str) -> None:
        if name == "read":
            raise PermissionError("ExpiredToken")

    store = open_stub(profile="mine")
    store.put_bytes("a", b"content")
    StubFileSystem.behave = behave
    with pytest.raises(AccessDeniedError, match=r"stub://bucket/data/a.*ExpiredToken.*credentials.*profile"):
        store.read_range("a", 0, 7)
    assert len(StubFileSystem.made_with) == 2


def test_b148_storage_options_arrive_unchanged() -> None:
    options = {"token": "anon", "anon": True, "nested": {"client_kwargs": [1, 2]}}
    store = open_stub(**options)
    store.put_bytes("a", b"1")
    pickle.loads(pickle.dumps(store)).read("a")
    assert StubFileSystem.made_with == [options] * len(StubFileSystem.made_with)
    assert StubFileSystem.made_with


def test_b075_a_target_that_stores_nothing_is_noticed_and_uploaded_to_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"content")
    swallowed = [1]
    real_put = StubFileSystem.put_file

    def put_nothing(self: StubFileSystem, lpath: str, rpath: str, **options: Any) -> None:
        real_put(self, lpath, rpath, **options)
        if swallowed[0]:
            swallowed[0] -= 1
            self.pipe_file(rpath, b"")

    StubFileSystem.put_file = put_nothing  # type: ignore[method-assign]
    try:
        store = open_stub()
        store.put("a", source)
        assert store.read("a") == b"content"
        swallowed[0] = 99
        with pytest.raises(
            StorageError, match=r"upload stub://bucket/data/a.*3 attempts.*stored 0 bytes of 7"
        ):
            store.put("a", source)
    finally:
        StubFileSystem.put_file = real_put  # type: ignore[method-assign]


@pytest.mark.timeout(20)
def test_a_call_that_never_returns_ends_at_the_time_limit() -> None:
    def behave(fs: StubFileSystem, name: str, path: str) -> None:
        if name == "read":
            StubFileSystem.released.wait()

    policy = RetryPolicy(attempts=6, timeout_s=0.6, backoff_s=0.001)
    store = open_store("stub://bucket", retry=policy)
    store.put_bytes("a", b"content")
    StubFileSystem.behave = behave
    begin = time.monotonic()
    with pytest.raises(StorageError, match=r"stub://bucket/a.*TimeoutError"):
        store.read_range("a", 0, 3)
    assert time.monotonic() - begin < 3


def test_a_short_answer_is_never_taken_for_the_file(tmp_path: Path) -> None:
    real = StubFileSystem.cat_file

    def half(self: StubFileSystem, path: str, start: int = 0, end: int = 0, **options: Any) -> Any:
        whole = real(self, path, start=start, end=end, **options)
        return whole[: len(whole) // 2]

    store = open_stub()
    store.put_bytes("a", b"content!")
    StubFileSystem.cat_file = half  # type: ignore[method-assign]
    try:
        for attempt in (
            lambda: store.read("a"),
            lambda: store.fetch_to("a", tmp_path / "got"),
            lambda: store.fetch_to("a", tmp_path / "got", nbytes=8),
        ):
            with pytest.raises(StorageError, match="got 4 bytes of 8"):
                attempt()
    finally:
        StubFileSystem.cat_file = real  # type: ignore[method-assign]
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_ignores_ranges_is_read_correctly(tmp_path: Path) -> None:
    real = StubFileSystem.cat_file

    def everything(self: StubFileSystem, path: str, start: int = 0, end: int = 0, **options: Any) -> Any:
        return real(self, path)

    store = open_stub()
    store.put_bytes("a", b"0123456789")
    StubFileSystem.cat_file = everything  # type: ignore[method-assign]
    try:
        assert store.read_range("a", 3, 5) == b"34"
        assert store.fetch_to("a", tmp_path / "got", nbytes=10) == 10
    finally:
        StubFileSystem.cat_file = real  # type: ignore[method-assign]


def test_a_file_larger_than_one_window_is_read_in_order_and_resumed_where_it_broke(tmp_path: Path) -> None:
    body = bytes(range(251)) * 150_000  # 37 MB: three windows of four pieces
    store = open_stub()
    (tmp_path / "source").write_bytes(body)
    store.put("big", tmp_path / "source")
    fail_times(1, ConnectionResetError())
    StubFileSystem.calls.clear()
    assert store.fetch_to("big", tmp_path / "got", nbytes=len(body)) == len(body)
    assert (tmp_path / "got").read_bytes() == body
    # One piece was asked for twice, nothing else: what has arrived is kept.
    assert StubFileSystem.calls.count("read") == -(-len(body) // (4 << 20)) + 1


SECRET_URL = "stub://user:pass%2Fword@root/data?sig=s3cr3tsignature"


def test_no_credential_is_shown_anywhere() -> None:
    options = {"key": "AKIAEXAMPLE", "client_kwargs": {"aws_session_token": "tok3n-tok3n"}}
    store = open_store(SECRET_URL, storage_options=options, retry=QUICK)
    fail_times(99, OSError("refused: AKIAEXAMPLE tok3n-tok3n user pass/word s3cr3tsignature"), call="info")
    with pytest.raises(StorageError) as caught:
        store.size("a")
    shown = [store.url, repr(store), str(caught.value), repr(caught.value)]
    link: BaseException | None = caught.value
    while link is not None:
        shown.append(repr(link))
        link = link.__cause__
    for secret in ("AKIAEXAMPLE", "tok3n", "pass", "s3cr3t"):
        assert not any(secret in text for text in shown)


def test_a_scheme_whose_package_is_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install gcsfs to access Google Cloud Storage")

    monkeypatch.setattr("streamshard.storage.clients.url_to_fs", missing)
    with pytest.raises(MissingDependencyError, match=r"gs://bucket.*pip install 'streamshard\[gcs\]'"):
        open_store("gs://bucket").size("a")


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(StorageError, match="nonsense://place"):
        open_store("nonsense://place").size("a")


def test_the_file_system_of_the_user_is_not_touched() -> None:
    import fsspec

    theirs = fsspec.filesystem("stub")
    store = open_stub()
    store.put_bytes("a", b"1")
    assert theirs.dircache.use_listings_cache
    assert store._client.filesystem()[0] is not theirs


def test_stores_in_one_process_share_a_client_where_only_the_prefix_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamshard.storage.clients._BUCKET_SCHEMES", frozenset({"stub"}))
    stores = [open_store(f"stub://bucket/{number}", retry=QUICK) for number in range(5)]
    for number, store in enumerate(stores):
        store.put_bytes("a", b"%d" % number)
    assert [store.read("a") for store in stores] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(StubFileSystem.made_with) == 1
    other = open_store("stub://bucket/0", storage_options={"anon": True}, retry=QUICK)
    assert other.read("a") == b"0"
    assert len(StubFileSystem.made_with) == 2


@pytest.mark.parametrize(
    ("info", "tag"),
    [
        ({"ETag": '"abc"', "LastModified": "today"}, 'ETag "abc"'),
        ({"etag": "CJK="}, "etag CJK="),
        ({"blob_id": "0123"}, "blob_id 0123"),
        ({"ETag": 'W/"abc"'}, None),  # the same for contents that mean the same
        ({"ETag": ""}, None),
        ({"ETag": "x" * 201}, None),
        ({"ETag": 5, "mtime": 7.0, "Last-Modified": "today"}, None),
    ],
)
def test_a_tag_is_what_changes_with_the_content(info: dict[str, Any], tag: str | None) -> None:
    class Answering:
        def invalidate_cache(self, path: str) -> None:
            pass

        def info(self, path: str) -> dict[str, Any]:
            return {"type": "file", "size": 9, **info}

    assert remote_version(Answering(), "x") == Version(9, tag)
