"""Clients of places that keep silent about who they are, or who we are: an error in time, and nobody else waits."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import StorageError
from streamshard.storage import RetryPolicy, open_store
from streamshard.storage.fsspec_store import FsspecStore
from tests.support.small_server import SmallServer, small_server

KEY = {"key": "KEY", "secret": "SECRET"}
PATIENT = RetryPolicy(attempts=2, timeout_s=120.0, backoff_s=0.01)
QUICK = RetryPolicy(attempts=2, timeout_s=1.0, backoff_s=0.01)


@pytest.fixture
def server() -> Iterator[SmallServer]:
    with small_server() as serving:
        serving.files["bucket/set/a"] = b"content"
        yield serving


def store_of(url: str, options: dict[str, Any], retry: RetryPolicy) -> FsspecStore:
    store = open_store(url, storage_options=options, retry=retry)
    assert isinstance(store, FsspecStore)
    return store


class SilentProgram:
    """A program for credentials, named by a profile of AWS, that gives them when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.started, self._go = folder / "started", folder / "go"
        answer = {"Version": 1, "AccessKeyId": "KEY", "SecretAccessKey": "SECRET"}
        (folder / "answer").write_text(json.dumps(answer))
        program = folder / "program"
        program.write_text(
            f"touch {self.started}; while [ ! -e {self._go} ]; do sleep 0.02; done; cat {folder}/answer\n"
        )
        (folder / "config").write_text(f"[profile silent]\ncredential_process = sh {program}\n")

    def answer(self) -> None:
        self._go.touch()

    def wait_until_it_runs(self) -> None:
        deadline = time.monotonic() + 60
        while not self.started.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentProgram]:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    silent = SilentProgram(tmp_path)
    yield silent
    silent.answer()


def test_a_program_for_credentials_that_gives_no_answer_is_an_error_in_time(
    server: SmallServer, program: SilentProgram
) -> None:
    store = store_of("s3://bucket/set", {"profile": "silent", "endpoint_url": f"http://{server.host}"}, QUICK)
    with pytest.raises(StorageError, match=r"a: failed after \d attempts? .*no answer within 0.5 s"):
        store.read_small("a", 100)
    with pytest.raises(StorageError, match=r"a: failed after \d attempts? .*no answer within 0.5 s"):
        store.read_range("a", 0, 7)
    assert program.started.exists()


def test_while_one_place_waits_for_its_credentials_others_are_read(
    server: SmallServer, program: SilentProgram
) -> None:
    waits = store_of(
        "s3://bucket/set", {"profile": "silent", "endpoint_url": f"http://{server.host}"}, PATIENT
    )
    other = store_of("s3://bucket/set", {**KEY, "endpoint_url": f"http://{server.host}"}, PATIENT)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(waits.read_small, "a", 100)
        try:
            program.wait_until_it_runs()
            assert other.read_small("a", 100) == b"content"
            assert other._client.renew(other._client.renewals)
            assert other.read_small("a", 100) == b"content"
            assert not waiting.done()
        finally:
            program.answer()
        assert waiting.result() == b"content"


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_a_name_that_nobody_looks_up_is_an_error_in_time(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough, asked = threading.Event(), threading.Event()
    look_up = socket.getaddrinfo

    def silent(host: Any, *arguments: Any, **options: Any) -> Any:
        if host != "nowhere.test":
            return look_up(host, *arguments, **options)
        asked.set()
        enough.wait(120)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    options = {**KEY, "endpoint_url": "http://nowhere.test"} if scheme == "s3" else {}
    store = store_of("s3://bucket/set" if scheme == "s3" else "http://nowhere.test/set", options, QUICK)
    try:
        for read in (
            lambda: store.read_small("a", 100),
            lambda: store.read_range("a", 0, 7),
            lambda: store.size("a"),
        ):
            with pytest.raises(StorageError, match=r"a: failed after \d attempts? .*no answer within 0.5 s"):
                read()
        assert asked.is_set()
    finally:
        enough.set()
