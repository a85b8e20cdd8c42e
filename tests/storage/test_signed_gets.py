"""Small objects of S3, read by signed URLs: the same bytes, rights and errors as by s3fs, or s3fs itself."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import AccessDeniedError, BlobNotFoundError, StorageError
from streamshard.storage import clients, open_store
from streamshard.storage.fsspec_store import FsspecStore
from streamshard.storage.retry import RetryPolicy
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.small_server import SmallServer, small_server
from tests.support.store_contract import AWKWARD_KEYS

BODY = bytes(range(256)) * 400
_PATIENT = RetryPolicy(attempts=3, timeout_s=30.0, backoff_s=0.01)


def _store(url: str, options: dict[str, Any], retry: RetryPolicy = _PATIENT) -> FsspecStore:
    store = open_store(url, storage_options=options, retry=retry)
    assert isinstance(store, FsspecStore)
    return store


def _is_signed(store: FsspecStore) -> bool:
    gets = store._client.signed_gets()
    return gets is not None and gets.proven


@pytest.fixture
def bucket(s3: SeaweedServer) -> str:
    url = s3.make_bucket()
    _store(url, s3.storage_options).put_bytes("a", BODY)
    return url


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallServer]:
    """A server that shows what it was asked, and an environment in which nothing of AWS is set."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with small_server() as serving:
        serving.files["bucket/set/a"] = BODY
        yield serving


def _options(server: SmallServer, **more: Any) -> dict[str, Any]:
    return {"key": "the-key", "secret": "the-secret", "endpoint_url": f"http://{server.host}", **more}


def test_names_of_all_kinds_are_signed_right(s3: SeaweedServer, bucket: str) -> None:
    store = _store(bucket, s3.storage_options)
    for number, key in enumerate(AWKWARD_KEYS):
        store.put_bytes(key, b"%d" % number)
        assert store.read_small(key, 10, certain=True) == b"%d" % number
    assert _is_signed(store)


@pytest.mark.parametrize(
    "fault",
    [Fault(status=(503, "SlowDown")), Fault(cut_after=5_000), Fault(cut_after=0)],
    ids=["throttled", "cut", "dropped"],
)
def test_what_may_pass_is_tried_again(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, fault: Fault
) -> None:
    store = _store(bucket, s3.options_for(s3_proxy.endpoint_url))
    s3_proxy.arm(fault)
    assert store.read_small("a", 1 << 20) == BODY
    assert s3_proxy.count("GET", "/a?X-Amz") == 2
    assert _is_signed(store)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(stall_after=5_000), r"ReadTimeout|no answer within 1 s"),
        (Fault(bytes_per_s=50_000), r"no (whole )?answer within 1 s"),
    ],
    ids=["silent", "slow"],
)
def test_an_attempt_has_an_end(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, fault: Fault, said: str
) -> None:
    store = _store(bucket, s3.options_for(s3_proxy.endpoint_url), RetryPolicy(attempts=1, timeout_s=1.0))
    s3_proxy.arm(fault)
    with pytest.raises(StorageError, match=said):
        store.read_small("a", 1 << 20)


def test_what_is_missing_is_said_at_once(s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str) -> None:
    store = _store(bucket, s3.options_for(s3_proxy.endpoint_url))
    with pytest.raises(BlobNotFoundError, match=r"/b: not found \(.*NoSuchKey"):
        store.read_small("b", 10)
    assert s3_proxy.count("GET", "/b?") == 1
    assert _is_signed(store)


def test_who_may_not_read_is_told_so_and_s3fs_is_asked_from_then_on(s3: SeaweedServer, bucket: str) -> None:
    store = _store(bucket, s3.powerless_options)
    with pytest.raises(AccessDeniedError, match="HTTP 403"):
        store.read_small("a", 1 << 20)
    assert store._client.signed_gets() is None
    with pytest.raises(AccessDeniedError, match="HTTP 403"):
        store.read_small("a", 1 << 20)


def test_half_an_object_is_not_taken_for_certain(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str
) -> None:
    store = _store(bucket, s3.options_for(s3_proxy.endpoint_url))
    assert store.read_small("a", 1 << 20, certain=True) == BODY
    s3_proxy.arm(Fault(half_body=True, method="GET"))
    assert store.read_small("a", 1 << 20, certain=True) is None


def test_what_signs_is_what_s3fs_was_given(server: SmallServer, tmp_path: Path) -> None:
    def asked(**options: Any) -> str:
        server.seen.clear()
        store = _store("s3://bucket/set", {"endpoint_url": f"http://{server.host}", **options})
        assert store.read_small("a", 1 << 20) == BODY
        assert _is_signed(store)
        (seen,) = server.seen
        return seen

    (tmp_path / "credentials").write_text(
        "[mine]\naws_access_key_id = of-profile\naws_secret_access_key = x\n"
    )
    (tmp_path / "config").write_text("[profile mine]\nregion = eu-north-1\n")
    assert asked(anon=True).startswith("/bucket/set/a {")
    by_profile = asked(profile="mine")
    assert "Credential=of-profile%2F" in by_profile
    assert "%2Feu-north-1%2Fs3%2F" in by_profile
    by_token = asked(
        key="the-key",
        secret="the-secret",
        token="of-today",
        requester_pays=True,
        client_kwargs={"region_name": "eu-west-3"},
    )
    assert "Credential=the-key%2F" in by_token
    assert "%2Feu-west-3%2Fs3%2F" in by_token
    assert "X-Amz-Security-Token=of-today" in by_token
    assert "SignedHeaders=host%3Bx-amz-request-payer" in by_token
    assert "'x-amz-request-payer': 'requester'" in by_token


def test_what_a_url_does_not_carry_is_left_to_s3fs(server: SmallServer) -> None:
    secret = {"SSECustomerKey": "k" * 32, "SSECustomerAlgorithm": "AES256"}
    store = _store("s3://bucket/set", _options(server, s3_additional_kwargs=secret))
    assert store.read_small("a", 1 << 20) == BODY
    assert store._client.signed_gets() is None
    assert "server-side-encryption-customer-key" in server.seen[-1]
    assert store.read_small("a", 1 << 20, certain=True) is None
    of_its_own = _options(server, config_kwargs={"connector_args": {"keepalive_timeout": 3}})
    store = _store("s3://bucket/set", of_its_own)
    assert store.read_small("a", 1 << 20) == BODY
    assert store._client.signed_gets() is None


def test_a_version_is_asked_for_where_s3fs_would(server: SmallServer) -> None:
    store = _store("s3://bucket/set", _options(server, version_aware=True))
    assert store.read_small("a?versionId=7", 1 << 20) == BODY
    assert "/bucket/set/a?" in server.seen[-1]
    assert "versionId=7" in server.seen[-1]


def test_a_refused_object_does_not_end_signing_where_others_came(server: SmallServer) -> None:
    store = _store("s3://bucket/set", _options(server))
    assert store.read_small("a", 1 << 20) == BODY
    server.trouble = "denied"
    with pytest.raises(AccessDeniedError):
        store.read_small("a", 1 << 20)
    server.trouble = ""
    assert store.read_small("a", 1 << 20) == BODY
    assert _is_signed(store)


def test_a_refusal_has_an_end(server: SmallServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gets = _store("s3://bucket/set", _options(server))._client.signed_gets()
    assert gets is not None
    monkeypatch.setattr(gets, "_limit_s", 0.0)
    server.trouble = "denied"
    with pytest.raises(TimeoutError, match="no whole answer"):
        gets.get("bucket/set/a", 1 << 20)


def test_a_bucket_of_another_region_is_asked_there(server: SmallServer) -> None:
    server.region = "eu-west-3"
    store = _store("s3://bucket/set", _options(server))
    assert store.read_small("a", 1 << 20) == BODY
    assert store.read_small("a", 1 << 20) == BODY
    assert [f"%2F{server.region}%2F" in seen for seen in server.seen] == [False, True, True]


def test_no_error_shows_what_was_signed(server: SmallServer) -> None:
    quick = RetryPolicy(attempts=1, timeout_s=5.0)
    store = _store("s3://bucket/set", _options(server, token="the-token"), quick)
    server.shutdown()
    server.server_close()
    with pytest.raises(StorageError) as caught:
        store.read_small("a", 1 << 20)
    told = "".join(traceback.format_exception(caught.value))
    links: list[BaseException | None] = [caught.value]
    while (link := links.pop()) is not None:
        told += repr(link)
        links.append(link.__context__ or link.__cause__)
    assert "EndpointConnectionError" in told
    for secret in ("the-key", "the-secret", "the-token", "Signature=0", "X-Amz-Credential=the"):
        assert secret not in told


def test_no_refusal_and_no_log_shows_what_was_signed(
    server: SmallServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "urllib3.connectionpool")
    store = _store("s3://bucket/set", _options(server, token="the-token"))
    assert store.read_small("a", 1 << 20) == BODY
    server.trouble = "denied"  # whose message repeats the path that was asked for
    with pytest.raises(AccessDeniedError, match="X-Amz-Signature=") as caught:
        store.read_small("a", 1 << 20)
    assert caplog.text.count("GET /bucket/set/a?X-Amz-") == 3
    assert caplog.text.count("X-Amz-Signature=***") == 3
    assert "X-Amz-Signature=***" in str(caught.value)
    for secret in ("the-key", "the-token"):
        assert secret not in caplog.text + str(caught.value)


def test_a_header_that_never_ends_has_an_end(server: SmallServer) -> None:
    """Each of its bytes comes in time."""
    told, enough = threading.Event(), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as drips:
        listener.settimeout(30)

        def drip() -> None:
            with listener.accept()[0] as client, contextlib.suppress(OSError):
                client.sendall(b"HTTP/1.1 200 OK\r\nx-long: ")
                while not enough.wait(0.02):
                    client.sendall(b"x")
                    told.set()

        dripping = drips.submit(drip)
        options = {**_options(server), "endpoint_url": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        store = _store("s3://bucket/set", options, RetryPolicy(attempts=1, timeout_s=3.0))
        try:
            with pytest.raises(StorageError, match="no answer within 3 s"):
                store.read_small("a", 1 << 20)
        finally:
            enough.set()
        assert told.is_set()
        dripping.result()


def test_objects_that_are_refused_one_by_one_do_not_each_cost_a_client(
    server: SmallServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store("s3://bucket/set", _options(server))
    made = []
    connect = store._client._connect
    monkeypatch.setattr(store._client, "_connect", lambda: made.append(1) or connect())
    monkeypatch.setattr(clients, "_RENEWED_EVERY_S", 1000.0)
    server.trouble = "denied"
    for _ in range(5):
        with pytest.raises(AccessDeniedError):
            store.read_small("a", 1 << 20)
    server.trouble = ""
    assert store.read_small("a", 1 << 20) == BODY
    assert len(made) == 2


def test_who_is_refused_by_a_client_that_another_call_has_renewed_tries_again(server: SmallServer) -> None:
    client = _store("s3://bucket/set", _options(server))._client
    first = client.filesystem()[0]
    assert client.renew(0)
    second = client.filesystem()[0]
    assert first is not second
    assert client.renew(0)  # whose call began before that
    assert client.filesystem()[0] is second
    assert not client.renew(1)
    assert client.filesystem()[0] is second
    assert pickle.loads(pickle.dumps(client)).renew(1)
