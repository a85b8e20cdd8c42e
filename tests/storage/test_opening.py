"""From paths and URLs to stores, and what of them people see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamshard.errors import StorageError
from streamshard.storage import is_local, join_url, open_store
from streamshard.storage.fsspec_store import FsspecStore
from streamshard.storage.local_store import LocalStore
from streamshard.storage.memory_store import MemoryStore
from streamshard.storage.redact import Redactor, public_url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/a/b", "/a/b"),
        ("a/b", os.path.abspath("a/b")),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a/b", "/a/b"),
        ("file:///a%20b/c+d", "/a%20b/c+d"),
        ("local:///a", "/a"),
        ("C:odd name", os.path.abspath("C:odd name")),
        ("with:colon/and:more", os.path.abspath("with:colon/and:more")),
    ],
)
def test_paths_and_file_urls_are_directories_here(url: str, path: str) -> None:
    store = open_store(url)
    assert isinstance(store, LocalStore)
    assert store.root == Path(path)
    assert is_local(url)


@pytest.mark.parametrize("url", ["s3:/bucket/x", "S3:/bucket", "https:/host/x", "file:/a"])
def test_a_url_with_one_slash_too_few_is_no_directory(url: str) -> None:
    with pytest.raises(StorageError, match="one slash too few"):
        open_store(url)
    assert open_store(f"./{url}").url == os.path.abspath(url)


def test_b034_the_home_directory_is_put_for_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert open_store("~/data").url == "/home/somebody/data"
    assert open_store(Path("~/data")).url == "/home/somebody/data"


def test_b093_without_a_home_directory_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(StorageError, match="HOME"):
        open_store("~/data")


@pytest.mark.parametrize("url", ["", "file://", "a\0b"])
def test_what_names_no_place_is_refused(url: str) -> None:
    with pytest.raises(StorageError, match=r"names no place|NUL"):
        open_store(url)


def test_other_schemes_go_to_memory_and_fsspec() -> None:
    assert isinstance(open_store("memory://x"), MemoryStore)
    for url in ("s3://b/p", "gs://b", "hf://datasets/x", "https://host/x", "abfs://c@account/x"):
        assert isinstance(open_store(url), FsspecStore)
        assert not is_local(url)


def test_only_a_remote_url_loads_fsspec() -> None:
    program = """
import sys
from streamshard.storage import NodeCache, Prefetcher, open_store, RetryPolicy, Blob
open_store("/tmp"); open_store("file:///tmp"); open_store("memory://x")
heavy = {"fsspec", "s3fs", "torch", "numpy", "botocore"} & set(sys.modules)
assert not heavy, heavy
open_store("s3://bucket")
assert "fsspec" in sys.modules and "s3fs" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(__file__).parents[2], timeout=30)


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        (("s3://b", "x"), "s3://b/x"),
        (("s3://b/", "x", "y"), "s3://b/x/y"),
        (("/a", "", "b"), "/a/b"),
        (("a",), "a"),
        (("memory://", "x"), "memory://x"),
    ],
)
def test_urls_join_with_one_slash(parts: tuple[str, ...], joined: str) -> None:
    assert join_url(*parts) == joined


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/p", "s3://bucket/p"),
        ("s3://key:secret@bucket/p", "s3://bucket/p"),
        ("sftp://user@host/p@q", "sftp://host/p@q"),
        ("https://h/p?sig=abc&se=2026#x", "https://h/p?sig=***&se=***#x"),
    ],
)
def test_shown_urls_hold_no_credentials(url: str, shown: str) -> None:
    assert public_url(url) == shown
    assert open_store(url).url == shown
    for secret in ("secret", "abc"):
        assert secret not in repr(open_store(url))


@pytest.mark.parametrize("url", ["oci://bucket@space/set", "abfs://box@acme.dfs.core.windows.net/set"])
def test_a_bucket_before_an_at_is_no_user(url: str) -> None:
    assert public_url(url) == url
    assert Redactor(url, {})(f"{url}: bucket box") == f"{url}: bucket box"
    assert "word" not in public_url(url.replace("@", ":word@"))
    assert "word" not in Redactor(url.replace("@", ":word@"), {})("word")


def test_the_redactor_knows_secrets_by_the_name_of_their_option() -> None:
    options = {
        "key": "AKIA1234",
        "anon": False,
        "region": "eu-central-1",
        "client_kwargs": {"aws_secret_access_key": "hush-hush", "headers": ["Bearer token-value"]},
        "token": {"private_key": "-----BEGIN"},
        "connection_string": "AccountKey=zzz",
    }
    redact = Redactor("s3://u:pass%21word@b/p?sig=sigsig", options)
    text = redact(
        "AKIA1234 hush-hush Bearer token-value -----BEGIN AccountKey=zzz pass%21word pass!word sigsig "
        "eu-central-1 https://me:you@host/"
    )
    assert text == "*** *** *** *** *** *** *** *** eu-central-1 https://host/"


@pytest.mark.parametrize(
    "text", ["x" * 1_000_000, "?" * 1_000_000, "x?" * 500_000, "see https://h/" + "Q" * 1_000_000]
)
def test_a_long_word_is_looked_through_once(text: str) -> None:
    # From each of its letters this would take hours, and the time limit of tests ends it.
    assert public_url(text) == text
    assert Redactor("s3://bucket/x", {})(text) == text
