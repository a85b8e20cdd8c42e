"""Oracle's object storage through its real client, ocifs, and a server of the tests' own that answers as it does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamshard import MDSWriter, StreamingDataset
from streamshard.errors import AccessDeniedError
from streamshard.read.verify import verify_dataset
from streamshard.storage import RetryPolicy, open_store
from tests.support.small_datasets import COLUMNS, text_samples
from tests.support.store_contract import StoreContract

pytest.importorskip("ocifs", reason="needs ocifs: pip install 'streamshard[oci]'")

from tests.support.oci_server import OciServer, oci_server

QUICK = RetryPolicy(attempts=3, timeout_s=20, backoff_s=0.01)
# Their client leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning",
        "ignore::DeprecationWarning",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]


@pytest.fixture(scope="module")
def server() -> Iterator[OciServer]:
    with oci_server() as serving:
        yield serving


@pytest.fixture
def url(server: OciServer) -> str:
    return f"{server.make_bucket()}/some/prefix"


class TestOci(StoreContract):
    @pytest.fixture
    def store(self, server: OciServer, url: str) -> Any:
        return open_store(url, storage_options=server.storage_options, retry=QUICK)


def test_a_file_that_goes_up_in_parts(server: OciServer, url: str, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(1 << 20) * 12 + b"the end")
    store = open_store(url, storage_options=server.storage_options, retry=QUICK)
    store.put("large", tmp_path / "large")
    assert store.fetch_to("large", tmp_path / "got") == (12 << 20) + 7
    assert (tmp_path / "got").read_bytes() == (tmp_path / "large").read_bytes()
    assert not server.uploads
    assert server.signed


def test_a_dataset_is_written_streamed_and_verified_by_headers(
    server: OciServer, url: str, tmp_path: Path
) -> None:
    options, samples = server.storage_options, text_samples(35)
    with MDSWriter(out=url, columns=COLUMNS, storage_options=options, samples_per_shard=10) as writer:
        for sample in samples:
            writer.write(sample)
    report = verify_dataset(url, storage_options=options)
    assert (report.ok, report.headers) == (True, 4)
    dataset = StreamingDataset(
        remote=url, local=tmp_path / "cache", storage_options=options, shuffle=False, batch_size=5
    )
    assert list(dataset) == samples
    assert not [name for _, name in server.objects if "streamshard-writing" in name]


def test_credentials_come_from_the_usual_file_and_the_namespace_from_the_server(
    server: OciServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OCIFS_IAM_TYPE", raising=False)
    settings = dict(server.storage_options["config"])
    (tmp_path / "key.pem").write_text(settings.pop("key_content"))
    (tmp_path / ".oci").mkdir()
    lines = ["[DEFAULT]", *(f"{name}={value}" for name, value in settings.items())]
    (tmp_path / ".oci" / "config").write_text("\n".join([*lines, f"key_file={tmp_path}/key.pem"]))
    server.objects["bucket", "set/a"] = b"content"
    options = {"config_kwargs": server.storage_options["config_kwargs"]}
    assert open_store("oci://bucket/set", storage_options=options, retry=QUICK).read("a") == b"content"


def test_who_is_refused_is_told_so(server: OciServer, url: str) -> None:
    store = open_store(url, storage_options=server.storage_options, retry=QUICK)
    server.refuse = True
    try:
        with pytest.raises(AccessDeniedError, match="config, config_kwargs") as caught:
            store.read("a")
    finally:
        server.refuse = False
    assert f"{url}/a" in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)
    assert server.storage_options["config"]["key_content"].split("\n")[3] not in repr(caught.value)
