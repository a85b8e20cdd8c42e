"""Against a real S3 server, through good and bad networks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import AccessDeniedError, BlobNotFoundError, StorageError
from streamshard.storage import Blob, NodeCache, RetryPolicy, clients, open_store
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.seaweedfs import SeaweedServer
from tests.support.store_contract import StoreContract

QUICK = RetryPolicy(attempts=4, timeout_s=9, backoff_s=0.01)
BODY = os.urandom(1 << 10) * 3000


class TestContract(StoreContract):
    @pytest.fixture
    def store(self, s3: SeaweedServer) -> Any:
        return open_store(f"{s3.make_bucket()}/some/prefix", storage_options=s3.storage_options, retry=QUICK)


@pytest.fixture(scope="module", autouse=True)
def _client(s3: SeaweedServer) -> Iterator[None]:
    """Keep one client alive for the module: making one for each test costs more than the tests."""
    store = open_store("s3://any", storage_options=s3.storage_options, retry=QUICK)
    store.list("nothing")
    yield
    assert store.url == "s3://any"


@pytest.fixture
def bucket(s3: SeaweedServer) -> str:
    """A bucket with one file ``a.bin`` of BODY."""
    url = s3.make_bucket()
    open_store(url, storage_options=s3.storage_options, retry=QUICK).put_bytes("a.bin", BODY)
    return url


def through(proxy: FaultyProxy, s3: SeaweedServer, bucket: str, retry: RetryPolicy = QUICK) -> Any:
    return open_store(bucket, storage_options=s3.options_for(proxy.endpoint_url), retry=retry)


def test_a_large_file_goes_up_and_comes_down_equal_its_parts_in_any_order(
    s3: SeaweedServer, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    body = os.urandom(17 << 20)
    (tmp_path / "source").write_bytes(body)
    url = s3.make_bucket()
    open_store(url, storage_options=s3.storage_options, retry=QUICK).put("large", tmp_path / "source")
    s3_proxy.arm(Fault(latency_s=0.5, method="GET"))
    s3_proxy.arm(Fault(cut_after=1 << 20, method="GET"))
    # A busy machine must not look like a slow link, of which less is asked at a time.
    patient = RetryPolicy(attempts=4, timeout_s=240, backoff_s=0.01)
    through(s3_proxy, s3, url, patient).fetch_to("large", tmp_path / "got", nbytes=len(body))
    assert (tmp_path / "got").read_bytes() == body
    assert s3_proxy.count("GET", "large") == 6  # five parts, one of them again


def test_b143_the_endpoint_of_mosaicml_users_is_honoured(
    s3: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    store = open_store(bucket, retry=QUICK)
    monkeypatch.delenv("S3_ENDPOINT_URL")
    assert store.size("a.bin") == len(BODY)


def test_b143_the_variables_of_aws_are_honoured(
    s3: SeaweedServer, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    assert open_store(bucket, retry=QUICK).size("a.bin") == len(BODY)


@pytest.mark.parametrize("change", ["no rights", "wrong secret", "unknown key", "anonymous"])
def test_b144_a_refusal_says_permission_and_403_at_once(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "no rights": s3.powerless_options,
        "wrong secret": {**s3.storage_options, "secret": "another-secret-value"},
        "unknown key": {**s3.storage_options, "key": "AKIAUNKNOWNUNKNOWN"},
        "anonymous": {"anon": True},
    }[change]
    store = open_store(bucket, storage_options={**options, "endpoint_url": s3_proxy.endpoint_url})
    # Twice, since credentials may have expired, and not as often as what may pass by itself; once where they have
    # just been asked for anew.
    steps: list[tuple[float, Callable[[], bytes], str, list[str]]] = [
        (math.inf, lambda: store.read("a.bin"), "2 attempts", ["HEAD", "HEAD"]),
        (math.inf, lambda: store.read("a.bin"), "1 attempt", ["HEAD"]),
        (0, lambda: store.read_range("a.bin", 0, 5), "2 attempts", ["GET", "GET"]),
    ]
    for seconds, read, attempts, asked in steps:
        monkeypatch.setattr(clients, "_RENEWED_EVERY_S", seconds)
        s3_proxy.requests.clear()
        with pytest.raises(
            AccessDeniedError, match=f"{bucket}/a.bin: permission denied after {attempts} .*403"
        ) as caught:
            read()
        assert "another-secret-value" not in str(caught.value)
        assert [method for method, _ in s3_proxy.requests] == asked


def test_b144_a_refused_upload_says_permission(s3: SeaweedServer, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"1")
    store = open_store(bucket, storage_options=s3.powerless_options)
    with pytest.raises(AccessDeniedError, match=r"upload .*permission denied"):
        store.put("x", tmp_path / "source")


def test_b150_a_wrong_bucket_or_prefix_is_not_found_at_once(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str
) -> None:
    options = s3.options_for(s3_proxy.endpoint_url)
    for url in (f"{bucket}/wrong/prefix", "s3://no-such-bucket-at-all/x"):
        with pytest.raises(BlobNotFoundError, match=f"{url}/index.json"):
            open_store(url, storage_options=options, retry=QUICK).read("index.json")
    assert (
        len(s3_proxy.requests) <= 6
    )  # for each, looks at the object and at a folder of that name; four tries are more


@pytest.mark.s3
@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid:80"])
def test_a_bad_endpoint_is_an_error_that_names_it(host: str) -> None:
    options = {"key": "k" * 9, "secret": "s" * 9, "endpoint_url": f"http://{host}"}
    store = open_store("s3://bucket", storage_options=options, retry=QUICK)
    with pytest.raises(StorageError, match=r"s3://bucket/a: failed after \d attempts? in") as caught:
        store.size("a")
    assert host.split(":")[0] in str(caught.value)


def test_a_body_that_is_cut_midway_is_fetched_again(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    store = through(s3_proxy, s3, bucket)
    for cut_after in (0, 1, 200, 5_000, 1 << 20, len(BODY)):
        s3_proxy.arm(Fault(cut_after=cut_after, method="GET"))
        store.fetch_to("a.bin", tmp_path / "got", nbytes=len(BODY))
        assert (tmp_path / "got").read_bytes() == BODY
        s3_proxy.calm()


def test_a_body_that_is_always_cut_is_an_error_and_no_file(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    s3_proxy.arm(Fault(cut_after=1 << 20, method="GET"), times=99)
    with pytest.raises(StorageError, match=f"{bucket}/a.bin: failed after 4 attempts"):
        through(s3_proxy, s3, bucket).fetch_to("a.bin", tmp_path / "got", nbytes=len(BODY))
    assert list(tmp_path.iterdir()) == []
    assert s3_proxy.count("GET", "a.bin") == 4


@pytest.mark.parametrize("answer", [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests")])
def test_throttling_is_tried_again(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, tmp_path: Path, answer: tuple[int, str]
) -> None:
    store = through(s3_proxy, s3, bucket)
    s3_proxy.arm(Fault(status=answer), times=2)
    assert store.size("a.bin") == len(BODY)
    s3_proxy.arm(Fault(status=answer), times=3)
    assert store.read("a.bin") == BODY
    (tmp_path / "source").write_bytes(BODY)
    s3_proxy.arm(Fault(status=answer, method="PUT"), times=2)
    store.put("b.bin", tmp_path / "source")
    assert store.read("b.bin") == BODY


def test_throttling_without_end_is_an_error_after_the_attempts_asked_for(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str
) -> None:
    s3_proxy.arm(Fault(status=(503, "SlowDown")), times=99)
    with pytest.raises(StorageError, match=f"{bucket}/a.bin: failed after 4 attempts"):
        through(s3_proxy, s3, bucket).read_range("a.bin", 0, 10)
    assert s3_proxy.count("GET", "a.bin") == 4


@pytest.mark.parametrize("stall_after", [0, 100, 1 << 20])
def test_a_connection_that_falls_silent_is_given_up_and_replaced(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, tmp_path: Path, stall_after: int
) -> None:
    store = through(s3_proxy, s3, bucket, RetryPolicy(attempts=3, timeout_s=9, backoff_s=0.01))
    s3_proxy.arm(Fault(stall_after=stall_after, method="GET"))
    store.fetch_to("a.bin", tmp_path / "got", nbytes=len(BODY))
    assert (tmp_path / "got").read_bytes() == BODY


def test_a_silent_server_is_an_error_after_the_time_limit(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    # The limit is used up by three silent tries, however many more are allowed. It never ends by itself: the test's own
    # time limit is what a store without one would meet.
    s3_proxy.arm(Fault(stall_after=1000), times=99)
    store = through(s3_proxy, s3, bucket, RetryPolicy(attempts=99, timeout_s=2, backoff_s=0.01))
    with pytest.raises(StorageError, match=f"{bucket}/a.bin: failed after [123] attempts? in"):
        store.fetch_to("a.bin", tmp_path / "got", nbytes=len(BODY))
    assert list(tmp_path.iterdir()) == []


def test_half_a_body_is_never_accepted(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str, tmp_path: Path
) -> None:
    store = through(s3_proxy, s3, bucket)
    s3_proxy.arm(Fault(half_body=True, method="GET"))
    store.fetch_to("a.bin", tmp_path / "got", nbytes=len(BODY))
    assert (tmp_path / "got").read_bytes() == BODY
    s3_proxy.arm(Fault(half_body=True, method="GET"))
    assert store.read("a.bin") == BODY
    (tmp_path / "got").unlink()
    s3_proxy.arm(Fault(half_body=True, method="GET"), times=99)
    with pytest.raises(StorageError, match=f"{bucket}/a.bin: failed after 4 attempts"):
        store.fetch_to("a.bin", tmp_path / "got", nbytes=len(BODY))
    assert list(tmp_path.iterdir()) == []


def test_a_slow_but_living_link_is_not_given_up(
    s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str
) -> None:
    # As on a link that brings 100 kB within the limit and no more: the first try, for all of it, misses it, smaller
    # windows do not.
    s3_proxy.arm(Fault(stall_after=100_000), times=999)
    assert through(s3_proxy, s3, bucket).read_range("a.bin", 0, 150_000) == BODY[:150_000]
    assert s3_proxy.count("GET", "a.bin") >= 3


def test_latency_is_harmless(s3: SeaweedServer, s3_proxy: FaultyProxy, bucket: str) -> None:
    s3_proxy.arm(Fault(latency_s=0.1), times=99)
    assert through(s3_proxy, s3, bucket).read("a.bin") == BODY


def test_the_cache_gets_right_files_through_a_bad_network(
    s3: SeaweedServer, s3_proxy: FaultyProxy, tmp_path: Path
) -> None:
    url = s3.make_bucket()
    direct = open_store(url, storage_options=s3.storage_options, retry=QUICK)
    bodies = {f"shard.{n:05}.mds": os.urandom(200_000 + n) for n in range(8)}
    for key, body in bodies.items():
        direct.put_bytes(key, body)
    cache = NodeCache(tmp_path, through(s3_proxy, s3, url), digest="d", retry=QUICK)
    faults = [
        Fault(cut_after=50_000),
        Fault(status=(503, "SlowDown")),
        Fault(half_body=True),
        Fault(latency_s=0.2),
        Fault(cut_after=0),
    ]
    for number, (key, body) in enumerate(bodies.items()):
        s3_proxy.arm(faults[number % len(faults)])
        with cache.open(Blob(key, len(body), key, len(body))) as file:
            assert os.pread(file.fileno(), len(body) + 1, 0) == body
