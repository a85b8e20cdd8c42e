"""What is cached is for its user alone, unless the user has made the directory for others too."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamshard import StreamingDataset
from streamshard.dataset.places import default_cache_directory
from streamshard.errors import StorageError
from streamshard.storage.store import make_below
from tests.support.small_datasets import text_samples, write_dataset


def modes(directory: Path) -> dict[str, int]:
    return {
        path.relative_to(directory).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in directory.rglob("*")
    }


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Nothing here may hang on the user's umask."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_cache_that_we_make_lets_nobody_else_in(tmp_path: Path, compression: str | None) -> None:
    write_dataset(tmp_path / "d", text_samples(30), compression=compression)
    cache = tmp_path / "deep" / "cache"
    assert (
        len(list(StreamingDataset(remote=str(tmp_path / "d"), local=cache, batch_size=3, keep_zip=True)))
        == 30
    )
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    files = {name: mode for name, mode in modes(cache).items() if name.startswith("shard")}
    assert len(files) == (3 if compression is None else 6)
    assert set(files.values()) == {0o600}


@pytest.mark.parametrize(
    ("directory", "file"), [(0o700, 0o600), (0o750, 0o640), (0o2775, 0o664), (0o777, 0o666)]
)
def test_a_cache_that_the_user_shares_stays_shared(tmp_path: Path, directory: int, file: int) -> None:
    write_dataset(tmp_path / "d", text_samples(30))
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(directory)
    assert len(list(StreamingDataset(remote=str(tmp_path / "d"), local=cache, batch_size=3))) == 30
    assert stat.S_IMODE(cache.stat().st_mode) == directory
    assert {mode for name, mode in modes(cache).items() if name.startswith("shard")} == {file}


def test_the_directory_in_a_place_for_everybody_must_be_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ours = tmp_path / f"streamshard-{os.getuid()}"
    assert default_cache_directory("s3://b", {}).parent == ours
    ours.mkdir()
    assert default_cache_directory("s3://b", {}).parent == ours
    ours.rmdir()
    (tmp_path / "elsewhere").mkdir()
    ours.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="was made by another user"):
        default_cache_directory("s3://b", {})
    ours.unlink()
    ours.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    ours.rename(tmp_path / "streamshard-12345")
    with pytest.raises(StorageError, match="STREAMSHARD_CACHE"):
        default_cache_directory("s3://b", {})


def test_a_link_in_place_of_a_directory_just_made_opens_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "ours").mkdir(mode=0o700)
    mkdir = Path.mkdir

    def mkdir_and_swap(path: Path) -> None:
        mkdir(path)
        path.rmdir()
        path.symlink_to(tmp_path / "ours")  # by another user, who may write to the cache

    monkeypatch.setattr(Path, "mkdir", mkdir_and_swap)
    with pytest.raises(OSError, match=r"symbolic links|Not a directory"):
        make_below(tmp_path / "cache", tmp_path / "cache" / "locks")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == 0o700
