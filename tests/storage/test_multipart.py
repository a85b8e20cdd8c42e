"""Large files go to S3 in parts: a real server, one part that fails, answers that are lost, processes that end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import StorageError, WrongSizeError
from streamshard.storage import RetryPolicy, fsspec_store, multipart, open_store
from tests.support.faulty_proxy import Fault, FaultyProxy
from tests.support.seaweedfs import SeaweedServer

QUICK = RetryPolicy(attempts=3, timeout_s=60, backoff_s=0.001)
PART_NBYTES = 5 << 20  # less is refused
BODY = os.urandom(1 << 10) * (5 << 10) * 2 + b"the end"
SLOW_DOWN = (503, "SlowDown")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "PART_NBYTES", PART_NBYTES)
    monkeypatch.setattr(fsspec_store, "IN_PARTS_FROM_NBYTES", len(BODY))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").write_bytes(BODY)
    return tmp_path / "source"


class Bucket:
    """A place in a bucket behind a proxy, and what is left there of uploads that were not finished."""

    def __init__(self, s3: SeaweedServer, proxy: FaultyProxy) -> None:
        self.url = s3.make_bucket()
        self.options = s3.options_for(proxy.endpoint_url)
        self.store: Any = open_store(self.url, storage_options=self.options, retry=QUICK)
        self.direct: Any = open_store(self.url, storage_options=s3.storage_options, retry=QUICK)

    def unfinished(self) -> int:
        name, _, prefix = self.url.removeprefix("s3://").partition("/")
        fs, _ = self.direct._client.filesystem()
        return len(fs.call_s3("list_multipart_uploads", Bucket=name, Prefix=prefix).get("Uploads", []))


@pytest.fixture
def bucket(s3: SeaweedServer, s3_proxy: FaultyProxy) -> Bucket:
    return Bucket(s3, s3_proxy)


def parts_sent(proxy: FaultyProxy) -> list[int]:
    return [proxy.count("PUT", f"partNumber={number}") for number in range(1, 4)]


def test_a_large_file_goes_up_in_parts_and_a_smaller_one_whole(
    bucket: Bucket, s3_proxy: FaultyProxy, source: Path
) -> None:
    bucket.store.put("large", source)
    assert bucket.direct.read("large") == BODY
    assert parts_sent(s3_proxy) == [1] * 3
    assert bucket.unfinished() == 0
    source.write_bytes(BODY[:-1])
    bucket.store.put("small", source)
    assert bucket.direct.read("small") == BODY[:-1]
    assert s3_proxy.count("PUT") == 4


def test_of_a_part_that_is_throttled_or_cut_only_that_part_is_sent_again(
    bucket: Bucket, s3_proxy: FaultyProxy, source: Path
) -> None:
    s3_proxy.arm(Fault(status=SLOW_DOWN, method="PUT", path_contains="partNumber=2"), times=2)
    s3_proxy.arm(Fault(cut_after=0, method="PUT", path_contains="partNumber=3"))
    bucket.store.put("large", source)
    assert bucket.direct.read("large") == BODY
    assert parts_sent(s3_proxy) == [1, 3, 2]
    assert bucket.unfinished() == 0


def test_a_part_that_never_gets_through_leaves_neither_parts_nor_another_object(
    bucket: Bucket, s3_proxy: FaultyProxy, source: Path
) -> None:
    bucket.direct.put_bytes("large", b"what was there before")
    s3_proxy.arm(Fault(status=SLOW_DOWN, method="PUT", path_contains="partNumber=3"), times=99)
    with pytest.raises(StorageError, match=rf"upload part 3 of {bucket.url}/large: failed after 3 attempts"):
        bucket.store.put("large", source)
    assert bucket.direct.read("large") == b"what was there before"
    assert bucket.unfinished() == 0
    assert parts_sent(s3_proxy)[2] == 3


def test_a_part_that_is_stored_after_the_upload_was_given_up_gives_it_up_again(source: Path) -> None:
    asked: list[str] = []
    on_its_way, given_up, given_up_again = (threading.Event() for _ in range(3))

    class Slow:
        def split_path(self, target: str) -> tuple[str, str, None]:
            return "bucket", target, None

        def call_s3(self, method: str, **arguments: Any) -> dict[str, str]:
            if method == "upload_part" and arguments["PartNumber"] == 1:
                on_its_way.wait(20)
                raise StorageError("refused")
            if method == "upload_part":
                on_its_way.set()
                given_up.wait(20)
            asked.append(method)
            if method == "abort_multipart_upload":
                (given_up_again if given_up.is_set() else given_up).set()
            return {"UploadId": "1", "ETag": "1"}

    def call(verb: str, operation: Any, nbytes: int = 0) -> Any:
        return operation(Slow(), "key")

    with pytest.raises(StorageError, match="refused"):
        multipart.put_in_parts(call, source, PART_NBYTES + 1)
    assert given_up_again.wait(20)
    assert asked[2:] == ["abort_multipart_upload", "upload_part", "abort_multipart_upload"]


def test_an_upload_whose_last_answer_is_lost_was_finished(
    bucket: Bucket, s3_proxy: FaultyProxy, source: Path
) -> None:
    s3_proxy.arm(Fault(cut_after=0, method="POST", path_contains="?uploadId="))
    bucket.store.put("large", source)
    assert bucket.direct.read("large") == BODY
    assert s3_proxy.count("POST", "?uploadId=") == 2
    assert bucket.unfinished() == 0


def test_a_file_that_is_cut_while_it_goes_up_is_refused(
    bucket: Bucket, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_parts = multipart.put_in_parts

    def cut_first(call: Any, path: Path, nbytes: int) -> None:
        os.truncate(path, nbytes - 1)
        put_in_parts(call, path, nbytes)

    monkeypatch.setattr(fsspec_store, "put_in_parts", cut_first)
    with pytest.raises(WrongSizeError, match="shorter"):
        bucket.store.put("large", source)
    assert not bucket.direct.exists("large")
    assert bucket.unfinished() == 0


UPLOAD = """
import json, sys
from pathlib import Path
from streamshard.storage import RetryPolicy, fsspec_store, multipart, open_store
url, options, part_nbytes, source = json.loads(sys.argv[1])
multipart.PART_NBYTES = fsspec_store.IN_PARTS_FROM_NBYTES = part_nbytes
open_store(url, storage_options=options, retry=RetryPolicy(timeout_s=600)).put("large", Path(source))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_process_that_ends_in_the_middle_leaves_no_object(
    bucket: Bucket, s3_proxy: FaultyProxy, source: Path, how: signal.Signals
) -> None:
    s3_proxy.arm(Fault(stall_after=0, method="PUT", path_contains="partNumber=3"), times=99)
    given = json.dumps([bucket.url, bucket.options, PART_NBYTES, str(source)])
    with subprocess.Popen(
        [sys.executable, "-c", UPLOAD, given], stderr=subprocess.PIPE, text=True
    ) as process:
        while not s3_proxy.count("PUT", "partNumber=3"):
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise AssertionError((process.wait(0.05), process.communicate()))
        process.send_signal(how)
        _, told = process.communicate(timeout=200)
    assert process.returncode != 0
    assert ("KeyboardInterrupt" in told) == (how is signal.SIGINT)
    assert not bucket.direct.exists("large")
    assert bucket.unfinished() == (how is signal.SIGKILL)
    s3_proxy.calm()
    bucket.store.put("large-too", source)  # another file, whose name begins so
    assert bucket.unfinished() == (how is signal.SIGKILL)
    bucket.store.put("large", source)
    assert bucket.direct.read("large") == BODY
    assert bucket.unfinished() == 0


def test_who_may_not_list_unfinished_uploads_uploads_all_the_same(
    bucket: Bucket, s3_proxy: FaultyProxy, source: Path
) -> None:
    s3_proxy.arm(Fault(status=(403, "AccessDenied"), method="GET", path_contains="uploads"), times=9)
    bucket.store.put("large", source)
    assert bucket.direct.read("large") == BODY
    assert s3_proxy.count("GET", "uploads") == 1
