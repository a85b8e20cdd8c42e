"""Names of other libraries' users: URLs and environment variables come to what fsspec takes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import AccessDeniedError, BlobNotFoundError, MissingDependencyError, StorageError
from streamshard.storage import open_store
from streamshard.storage.fsspec_store import FsspecStore
from streamshard.storage.providers import provider_of
from streamshard.storage.retry import RetryPolicy
from tests.support.small_server import SmallServer, small_server

ENV = {
    "S3_CANNED_ACL": "bucket-owner-full-control",
    "MOSAICML_STREAMING_AWS_REQUESTER_PAYS": "theirs, paid",
    "GCS_KEY": "GOOGKEY",
    "GCS_SECRET": "googlesecret",
    "AZURE_ACCOUNT_NAME": "acme",
    "AZURE_ACCOUNT_ACCESS_KEY": "azurekey",
    "COMPOSER_SFTP_KEY_FILE": "/keys/id",
}
ACL = {"s3_additional_kwargs": {"ACL": "bucket-owner-full-control"}}
GOOGLE = {"key": "GOOGKEY", "secret": "googlesecret", "endpoint_url": "https://storage.googleapis.com"}
AZURE = {"account_name": "acme", "account_key": "azurekey"}


@pytest.mark.parametrize(
    ("url", "options", "wanted_url", "wanted"),
    [
        ("s3://mine/d", {}, "s3://mine/d", ACL),
        ("s3://paid/d", {}, "s3://paid/d", {**ACL, "requester_pays": True}),
        ("s3://paid", {"requester_pays": False}, "s3://paid", {**ACL, "requester_pays": False}),
        ("s3://mine", {"s3_additional_kwargs": {}}, "s3://mine", {"s3_additional_kwargs": {}}),
        ("gs://b/d", {}, "s3://b/d", GOOGLE),
        ("gs://b/d", {"token": "anon"}, "gs://b/d", {"token": "anon"}),
        ("azure://box/d", {}, "az://box/d", AZURE),
        ("azure-dl://box/d", {}, "abfs://box/d", AZURE),
        ("az://box/d", {"account_name": "other"}, "az://box/d", {**AZURE, "account_name": "other"}),
        ("abfs://box/d", {"sas_token": "s"}, "abfs://box/d", {"sas_token": "s", "account_name": "acme"}),
        ("az://box/d", {"connection_string": "c"}, "az://box/d", {"connection_string": "c"}),
        ("sftp://h/d", {}, "sftp://h/d", {"key_filename": "/keys/id"}),
        ("sftp://h/d", {"password": "p"}, "sftp://h/d", {"password": "p"}),
        ("https://h/d", {}, "https://h/d", {}),
        ("hf://datasets/a/b", {}, "hf://datasets/a/b", {}),
        ("oci://b@ns/d", {}, "oci://b@ns/d", {}),
    ],
)
def test_the_environment_fills_in_what_the_options_leave_open(
    url: str, options: dict[str, Any], wanted_url: str, wanted: dict[str, Any]
) -> None:
    before = dict(options)
    found = provider_of(url, options, ENV)
    assert (found.url, found.options) == (wanted_url, wanted)
    assert options == before
    assert "key" not in repr(found).replace("wanted", "") or "GOOGKEY" not in repr(found)
    bare = provider_of(url, options, {})
    assert bare.options == options
    assert bare.used == ()


def test_half_of_a_google_key_is_not_taken() -> None:
    assert provider_of("gs://b", {}, {"GCS_KEY": "GOOGKEY"}).url == "gs://b"


def test_what_was_set_where_the_store_was_made_goes_to_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_ACCOUNT_NAME", "acme")
    store = open_store("azure://box/d")
    monkeypatch.delenv("AZURE_ACCOUNT_NAME")
    again = pickle.loads(pickle.dumps(store))
    assert isinstance(again, FsspecStore)
    assert again._client._options == {"account_name": "acme"}
    assert again.url == "azure://box/d"


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("s3://b", "s3"), ("gs://b", "gcs"), ("azure://b", "azure"), ("abfs://b", "azure"), ("hf://d/a/b", "hf"),
        ("https://h/d", "http"), ("sftp://h/d", "sftp"), ("oci://b@ns/d", "oci"),
    ],
)  # fmt: skip
def test_a_scheme_whose_package_is_missing_names_its_extra(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("Install it")

    monkeypatch.setattr("streamshard.storage.clients.url_to_fs", missing)
    with pytest.raises(MissingDependencyError, match=rf"streamshard\[{extra}\]"):
        open_store(url).size("a")


@pytest.fixture
def server() -> Any:
    with small_server() as running:
        running.files["d/a b.bin"] = bytes(range(256)) * 40
        yield running


def test_a_plain_http_server_is_read(server: SmallServer, tmp_path: Path) -> None:
    store = open_store(f"http://{server.host}/d", retry=RetryPolicy(attempts=2, backoff_s=0.0))
    content = server.files["d/a b.bin"]
    assert store.size("a b.bin") == len(content)
    assert store.read_range("a b.bin", 100, 400) == content[100:400]
    assert store.read("a b.bin") == content
    assert store.fetch_to("a b.bin", tmp_path / "a", nbytes=len(content)) == len(content)
    assert (tmp_path / "a").read_bytes() == content
    assert store.exists("a b.bin")
    assert not store.exists("other")
    with pytest.raises(BlobNotFoundError, match="other"):
        store.read("other")
    server.trouble = "denied"
    with pytest.raises(AccessDeniedError, match="HTTP 403"):
        store.read("a b.bin")
    server.trouble = "busy"
    with pytest.raises(StorageError, match="after 2 attempts"):
        store.read("a b.bin")
