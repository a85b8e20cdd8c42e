"""Sources, images and outputs that are URLs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset
from streamshard.convert.journal import work_directory
from streamshard.errors import ConvertError, StorageError
from streamshard.storage import open_store
from tests.support.jsonl_inputs import chat_rows, files_of, picture, run, stopped_after, write_lines


@pytest.fixture(autouse=True)
def _private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _upload(url: str, files: dict[str, bytes], options: Any = None) -> None:
    store = open_store(url, storage_options=options)
    for name, content in files.items():
        store.put_bytes(name, content)


def _download(url: str, target: Path, options: Any = None) -> Path:
    store = open_store(url, storage_options=options)
    target.mkdir()
    for name in store.list():
        store.fetch_to(name, target / name)
    return target


def _round_trip(tmp_path: Path, url: str, workers: int, options: Any = None) -> None:
    """Convert the same records from and to local folders, and from and to URLs: equal files."""
    rows = chat_rows(60, tmp_path / "images", image_every=2)
    source = write_lines(tmp_path / "train.jsonl", rows)
    run(source, tmp_path / "local", size_limit=2048)
    folder = f"{url}/raw data+1"
    _upload(folder, {"train.jsonl.gz": gzip.compress(source.read_bytes())}, options)
    _upload(
        folder,
        {f"images/{path.name}": path.read_bytes() for path in (tmp_path / "images").iterdir()},
        options,
    )
    for check in (True, False):
        out = f"{url}/out=A {check}+"
        summary = run(
            f"{folder}/train.jsonl.gz",
            out,
            size_limit=2048,
            workers=workers,
            check=check,
            storage_options=options,
        )
        got = files_of(_download(out, tmp_path / f"got-{check}", options))
        want = files_of(tmp_path / "local")
        if not check:
            # The index says whether images were checked.
            del got["index.json"], want["index.json"]
        assert got == want
        assert summary.samples == 60
    assert not work_directory(f"{url}/out=A True+", None).exists()
    assert not any(path.is_file() for path in (tmp_path / "cache").rglob("*"))
    again = run(f"{folder}/train.jsonl.gz", f"{url}/out=A True+", size_limit=2048, storage_options=options)
    assert again.finished_before


def test_memory_urls_give_the_same_files_as_folders(tmp_path: Path) -> None:
    _round_trip(tmp_path, f"memory://{tmp_path.name}", 2)


def test_b042_s3_urls_give_the_same_files_as_folders(tmp_path: Path, s3: Any) -> None:
    _round_trip(tmp_path, s3.make_bucket(), 2, s3.storage_options)


def test_an_interrupted_upload_goes_on(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    out = f"memory://{tmp_path.name}/out"
    run(source, tmp_path / "local", samples_per_shard=100)
    with stopped_after(4):
        run(source, out, samples_per_shard=100)
    assert not open_store(out).exists("index.json")
    assert run(source, out, samples_per_shard=100).resumed_shards == 4
    assert files_of(_download(out, tmp_path / "got")) == files_of(tmp_path / "local")


def test_b076_a_finished_url_is_kept_or_replaced(tmp_path: Path) -> None:
    out = f"memory://{tmp_path.name}/out"
    source = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(1000)])
    _upload(out, {"notes.txt": b"mine"})
    run(source, out, samples_per_shard=100)
    with pytest.raises(ConvertError, match="--overwrite"):
        run(source, out, samples_per_shard=500)
    run(source, out, samples_per_shard=500, overwrite=True)
    assert open_store(out).list() == ["index.json", "notes.txt", "shard.00000.mds", "shard.00001.mds"]


def test_the_work_directory_of_a_url_can_be_chosen(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"image": "nope.png"}])
    with pytest.raises(ConvertError):
        run(source, f"memory://{tmp_path.name}/out", work_dir=str(tmp_path / "work"))
    (folder,) = (tmp_path / "work").iterdir()
    assert (folder / "job.json").exists()
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "https://user:secret@host/x/t.jsonl?sig=secret",
            r"'https://host/x/t\.jsonl\?sig=\*\*\*': a URL with a query",
        ),
        ("s3://bucket", "'s3://bucket': names no file"),
    ],
)
def test_a_source_url_that_is_no_file_is_refused_without_its_secrets(
    tmp_path: Path, source: str, words: str
) -> None:
    with pytest.raises(ConvertError, match=words) as caught:
        run(source, tmp_path / "A")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "A").exists()


def test_a_source_url_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nope\.jsonl"):
        run(f"memory://{tmp_path.name}/nope.jsonl", tmp_path / "A")
    assert not (tmp_path / "A").exists()


@pytest.mark.parametrize("reference", ["../other/a.png", "/a.png", "x/../../a.png", "s3://elsewhere/a.png"])
def test_b037_references_do_not_leave_a_url(tmp_path: Path, reference: str) -> None:
    root = f"memory://{tmp_path.name}/raw"
    source = write_lines(tmp_path / "a.jsonl", [{"image": reference}])
    with pytest.raises(ConvertError, match=r"a\.jsonl:1: image .* (outside|not below) the image root"):
        run(source, tmp_path / "A", image_root=root)


def test_missing_and_empty_images_below_a_url_are_named(tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}/raw"
    _upload(root, {"a.png": picture(), "empty.png": b""})
    source = write_lines(
        tmp_path / "a.jsonl", [{"image": "a.png"}, {"image": "b.png"}, {"image": "empty.png"}]
    )
    for check in (True, False):
        with pytest.raises(ConvertError) as caught:
            run(source, tmp_path / "A", image_root=root, check=check)
        assert "a.jsonl:2: image 'b.png'" in str(caught.value)
        assert "a.jsonl:3: image 'empty.png' is an empty file" in str(caught.value)


def test_references_that_repeat_the_root_are_kept_relative(tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}/raw"
    _upload(root, {"x/a.png": picture()})
    source = write_lines(tmp_path / "a.jsonl", [{"image": f"{root}/x/a.png"}])
    run(source, tmp_path / "A", image_root=root)
    sample = LocalDataset(str(tmp_path / "A"), decode_images=False)[0]
    assert sample == {"image": picture(), "image_path": "x/a.png"}
    assert json.loads((tmp_path / "A" / "index.json").read_bytes())["streamshard"]["images"] == {
        "image": {"png": 1}
    }
