"""Two writers on one URL: the second is refused by name, until the first is done or dead."""

from __future__ import annotations

import gc
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

from streamshard import LocalDataset, MDSWriter
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.errors import AccessDeniedError, DirectoryInUseError
from streamshard.storage import open_store
from streamshard.storage.memory_store import MemoryStore
from streamshard.write import remote_claim
from streamshard.write.remote_claim import CLAIMS, LEASE_S, RemoteClaim, is_claim
from tests.support.seaweedfs import SeaweedServer

COLUMNS = {"number": "int"}

OTHER = """
import sys, json
from streamshard import MDSWriter
url, options = json.loads(sys.argv[1])
writer = MDSWriter(out=url, columns={'number': 'int'}, samples_per_shard=1, storage_options=options)
writer.write({'number': 1})
print('ready', flush=True)
sys.stdin.readline()
writer.write({'number': 2})
writer.finish()
"""


class TimedStore(MemoryStore):
    """A store that tells when its files were put, by a clock that the test sets."""

    clock = 1000.0
    _times: ClassVar[dict[str, float]] = {}

    def put_bytes(self, key: str, payload: bytes) -> None:
        super().put_bytes(key, payload)
        self._times[f"{self.url}/{key}"] = self.clock

    def modified(self, key: str) -> float:  # type: ignore[override]
        super().modified(key)
        return self._times[f"{self.url}/{key}"]


@pytest.fixture
def store() -> TimedStore:
    return TimedStore(f"memory://{secrets.token_hex(6)}")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_claim, "pause", lambda _seconds: None)


def put_claim(store: MemoryStore, **changed: Any) -> None:
    claim = {"state": "writing", "host": "far", "pid": 4321, "machine": "another", "started": "7", **changed}
    store.put_bytes(f"{CLAIMS}/{'0' * 16}", json.dumps(claim).encode())


def begin_other(url: str, options: dict[str, Any]) -> subprocess.Popen[bytes]:
    other = subprocess.Popen(
        [sys.executable, "-c", OTHER, json.dumps([url, options])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"ready\n"
    return other


def test_of_two_processes_on_a_bucket_the_second_is_refused_until_the_first_is_dead(
    s3: SeaweedServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, options = f"{s3.make_bucket()}/set", s3.storage_options

    def writer(**more: Any) -> MDSWriter:
        return MDSWriter(out=url, columns=COLUMNS, storage_options=options, exist_ok=True, **more)

    with begin_other(url, options) as other:
        words = (
            rf"{url}: another writer is writing here \(process {other.pid} on .*merge_index.*delete {url}/"
        )
        with pytest.raises(DirectoryInUseError, match=words):
            writer()
        other.communicate(b"\n", timeout=100)
    store = open_store(url, storage_options=options)
    assert store.list() == ["index.json", "shard.00000.mds", "shard.00001.mds"]
    with begin_other(url + "2", options) as other:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    url += "2"
    with caplog.at_level(logging.WARNING), writer() as second:
        second.write({"number": 3})
    assert f"taking over from a writer that is dead (process {other.pid}" in caplog.text
    store = open_store(url, storage_options=options)
    assert store.list() == ["index.json", "shard.00000.mds"]
    age = store.modified("index.json")
    assert age is not None
    store.fetch_to("index.json", tmp_path / "index.json")
    store.fetch_to("shard.00000.mds", tmp_path / "shard.00000.mds")
    assert [sample["number"] for sample in LocalDataset(tmp_path)] == [3]


def test_a_claim_is_no_file_of_the_place(store: TimedStore) -> None:
    put_claim(store, pid=os.getpid(), machine=remote_claim._machine())  # of a writer that this process had
    with MDSWriter(out=store.url, columns=COLUMNS) as writer:
        writer.write({"number": 1})
        assert len([key for key in store.list() if is_claim(key)]) == 1
    assert store.list() == ["index.json", "shard.00000.mds"]
    assert [is_claim(key) for key in (f"a/{CLAIMS}/x", CLAIMS, f"a{CLAIMS}/x")] == [True, False, False]


@pytest.mark.parametrize(
    ("changed", "age_s", "is_refused"),
    [
        ({}, LEASE_S, True),
        ({}, LEASE_S + 1, False),
        ({}, -1e6, True),  # a store whose clocks disagree
        ({"state": "asking"}, 5, True),
        ({"machine": None, "pid": 1, "started": None}, 5, True),
        ({"machine": "this", "pid": 1, "started": "of another process"}, 5, False),
        ({"machine": "this", "pid": 1 << 40}, 5, False),
        ({"machine": "this", "pid": os.getppid(), "started": remote_claim._started(os.getppid())}, 5, True),
        ({"pid": "no number", "host": ["\x1b[2J"]}, 5, True),
        ({"pid": "no number"}, LEASE_S + 1, False),
    ],
)
def test_who_is_alive(store: TimedStore, changed: dict[str, Any], age_s: float, is_refused: bool) -> None:
    if changed.get("machine") == "this":
        changed = {**changed, "machine": remote_claim._machine()}
    put_claim(store, **changed)
    store.clock += age_s
    if is_refused:
        with pytest.raises(DirectoryInUseError, match="another writer") as caught:
            RemoteClaim(store)
        assert "\x1b" not in str(caught.value)
        assert len(store.list()) == 1
    else:
        claim = RemoteClaim(store)
        assert [claim._key] == store.list()
        claim.release()
        claim.release()
        assert store.list() == []


def test_a_claim_that_is_no_json_is_respected_until_it_lapses(store: TimedStore) -> None:
    store.put_bytes(f"{CLAIMS}/x", b"[" * 3000)
    with pytest.raises(DirectoryInUseError, match="does not say whose it is"):
        RemoteClaim(store)
    store.clock += LEASE_S + 1
    RemoteClaim(store).release()


def test_of_many_that_begin_at_once_never_two_hold_the_place(store: TimedStore) -> None:
    most, holding, lock = 0, 0, threading.Lock()
    barrier = threading.Barrier(8)

    def begin(_: int) -> bool:
        nonlocal most, holding
        barrier.wait(60)
        try:
            claim = RemoteClaim(store)
        except DirectoryInUseError:
            return False
        with lock:
            holding += 1
            most = max(most, holding)
        with lock:
            holding -= 1
        claim.release()
        return True

    with ThreadPoolExecutor(8) as pool:
        for _ in range(30):
            list(pool.map(begin, range(8)))
    assert most == 1
    assert store.list() == []


def test_a_writer_that_slept_too_long_publishes_nothing_and_leaves_the_other_one_s_files(
    store: TimedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamshard.storage.opening.open_store", lambda *_, **__: store)
    first = MDSWriter(out="s3://there", columns=COLUMNS, samples_per_shard=1)
    first.write({"number": 1})
    (claim,) = (each for each in first._place._claims if isinstance(each, RemoteClaim))
    store.clock += LEASE_S + 1
    second = MDSWriter(out="s3://there", columns=COLUMNS, samples_per_shard=1, exist_ok=True)
    second.write({"number": 2})
    second.write({"number": 3})
    claim.beat()
    with pytest.raises(
        DirectoryInUseError, match=r"no sign of life for 180 s, and process \d+ on .* has taken"
    ):
        first.write({"number": 4})
    second.finish()
    assert store.list() == ["index.json", "shard.00000.mds", "shard.00001.mds"]


def test_a_writer_that_slept_is_stopped_before_its_index_too(store: TimedStore) -> None:
    claim = RemoteClaim(store)
    claim.check()
    claim.beat()
    store.clock += LEASE_S + 1
    other = RemoteClaim(store)
    with pytest.raises(DirectoryInUseError, match="taken the place over"):
        claim.check()
    assert claim.is_lost
    claim.release()
    other.check()
    put_claim(store)  # back again, without having seen that it lost
    with pytest.raises(DirectoryInUseError, match="process 4321 on 'far'"):
        other.check()
    other.release()


def test_a_sign_of_life_keeps_the_place(store: TimedStore) -> None:
    claim = RemoteClaim(store)
    store.clock += LEASE_S + 1
    claim.beat()
    remote_claim._held.clear()  # as if it were another process, which cannot be seen
    elsewhere = _Elsewhere(store.url)
    elsewhere.clock = store.clock + LEASE_S
    with pytest.raises(DirectoryInUseError):
        RemoteClaim(elsewhere)
    claim.release()


class _Elsewhere(TimedStore):
    """Shows claims as those of another machine."""

    def read(self, key: str, *, limit: int | None = None) -> bytes:
        return json.dumps({**json.loads(super().read(key, limit=limit)), "machine": "other"}).encode()


class _WriteOnce(TimedStore):
    """A bucket whose files cannot be replaced or deleted for now."""

    def put_bytes(self, key: str, payload: bytes) -> None:
        if self.exists(key):
            raise AccessDeniedError("retention policy")
        super().put_bytes(key, payload)

    def delete(self, key: str) -> None:
        raise AccessDeniedError("retention policy")


def test_where_nothing_can_be_replaced_writing_works(caplog: pytest.LogCaptureFixture) -> None:
    store = _WriteOnce(f"memory://{secrets.token_hex(6)}")
    claim = RemoteClaim(store)
    claim.beat()
    claim.release()
    assert "cannot show that it lives" in caplog.text
    assert "left behind" in caplog.text


def test_a_failed_and_a_dropped_writer_let_go(store: TimedStore) -> None:
    with pytest.raises(RuntimeError, match="on purpose"), MDSWriter(out=store.url, columns=COLUMNS):
        raise RuntimeError("on purpose")
    assert store.list() == []
    dropped = MDSWriter(out=store.url, columns=COLUMNS)
    del dropped
    gc.collect()
    MDSWriter(out=store.url, columns=COLUMNS).finish()
    assert store.list() == ["index.json"]


def test_a_place_where_each_put_is_a_commit_has_no_claims() -> None:
    class Hub(MemoryStore):
        def list(self, prefix: str = "") -> list[str]:
            raise AssertionError("asked")

    hub = Hub("x")
    hub.url = "hf://datasets/a/b"
    claim = RemoteClaim(hub)
    claim.check()
    claim.release()


def test_a_conversion_is_refused_where_another_machine_writes(store: TimedStore, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"number": 1}\n')
    options = ConvertOptions(
        sources=(str(tmp_path / "a.jsonl"),), out=store.url, work_dir=str(tmp_path / "work")
    )
    put_claim(store)
    with pytest.raises(DirectoryInUseError, match="another writer is writing here"):
        convert(options)
    store.delete(f"{CLAIMS}/{'0' * 16}")
    assert convert(options).samples == 1
    assert store.list() == ["index.json", "shard.00000.mds"]
