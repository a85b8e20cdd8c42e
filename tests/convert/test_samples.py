"""Samples are laid into blocks: the same shards whatever a block takes, and words for what cannot be read meanwhile."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from streamshard.convert import ready, samples
from streamshard.convert.references import NO_IMAGES
from streamshard.convert.samples import ShardSamples
from streamshard.convert.shaping import Shaping
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import files_of, noise, run, write_lines

OPTIONS = {"workers": 1, "check": False, "sample_hash": "xxh64"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for number in range(6):
        (tmp_path / f"{number}.jpg").write_bytes(noise() * (1 + 3 * (number % 2)))
    return write_lines(tmp_path / "in.jsonl", [{"image": f"{n % 6}.jpg", "n": n} for n in range(30)])


@pytest.mark.parametrize("compression", [None, "zstd:1"])
@pytest.mark.parametrize("nbytes", [1, 30_000])
def test_shards_are_the_same_whatever_a_block_takes(
    nbytes: int, compression: str | None, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**OPTIONS, "size_limit": 200_000, "compression": compression}
    run(source, tmp_path / "usual", **options)
    monkeypatch.setattr(samples, "_BLOCK_NBYTES", nbytes)
    run(source, tmp_path / "A", **options)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "usual")


def test_an_image_that_the_system_does_not_give_is_an_error_of_its_record(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "readv", broken)
    with pytest.raises(
        ConvertError, match=r"in\.jsonl:1: image .*0\.jpg' cannot be read: Input/output error"
    ):
        run(source, tmp_path / "A", **OPTIONS)


def test_an_input_that_is_gone_is_named_and_not_the_shard(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ShardSamples._lines

    def gone(self: ShardSamples) -> object:
        source.unlink()
        return lines(self)

    monkeypatch.setattr(ShardSamples, "_lines", gone)
    monkeypatch.setattr(ready, "_LEAST_IMAGE_SHARE", 1 << 40)
    with pytest.raises(ConvertError, match=r"in\.jsonl: cannot be read \(No such file or directory\)"):
        run(source, tmp_path / "A", **OPTIONS)
    assert not list((tmp_path / "A").glob("*.mds"))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["image"], ("image",)),
        (["img_path", "image"], ("img_path", "image")),
        ([], NO_IMAGES),
        # Images inside messages, and bytes or files under any other key.
        (["images"], ()),
        (["photo"], ()),
        (["image", "photo"], ()),
    ],
)
def test_images_are_looked_for_where_the_scan_has_found_some(
    keys: list[str], expected: tuple[str, ...]
) -> None:
    assert Shaping().with_images_under(keys).image_keys == expected
    asked = Shaping(("photo",))
    assert asked.with_images_under(keys) is asked
    files = Shaping(file_keys=("audio",))
    assert files.with_images_under(keys) is files


@pytest.mark.parametrize(
    "rows",
    [
        [{"image": "0.jpg"}, {"image": ""}, {"image": None}, {"text": "x"}, {"image": '["1.jpg", "2.jpg"]'}],
        [{"image": {"path": "0.jpg"}, "chat": [{"role": "user", "content": [{"type": "image"}]}]}],
        [{"image": "[]", "n": 1}, {"image": "[]", "n": 2}],
        [{"text": "no images", "chat": [{"role": "user", "content": "x"}]}, {"text": "at all"}],
    ],
)
def test_shards_are_the_same_wherever_images_are_looked_for(
    rows: list[dict[str, object]], source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(source, rows)
    run(source, tmp_path / "A", **OPTIONS)
    monkeypatch.setattr(Shaping, "with_images_under", lambda self, _: self)
    run(source, tmp_path / "everywhere", **OPTIONS)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "everywhere")
