"""Images made smaller on request; all that needs no change keeps its bytes."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from streamshard.convert.images import own_pixel_limit
from streamshard.convert.options import ConvertOptions
from streamshard.convert.problems import RecordProblem
from streamshard.convert.resizing import Resizing
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, files_of, noise, picture, run, shards_of, write_lines

_PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def _made(content: bytes, **wanted: Any) -> bytes:
    with own_pixel_limit(10**7):
        made, facts = Resizing(**wanted).make(content, 10**7)
    with Image.open(BytesIO(made)) as image:
        image.load()
        assert facts.format == (image.format or "").lower()
    return made


def _open(content: bytes) -> Image.Image:
    image = Image.open(BytesIO(content))
    image.load()
    return image


def _exif(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_what_is_small_enough_keeps_its_bytes(format: str) -> None:
    content = picture(format, size=(40, 20))
    assert _made(content, max_side=40) == content


@pytest.mark.parametrize(
    ("format", "mode", "kind", "after"),
    [
        ("JPEG", "RGB", "JPEG", "RGB"), ("JPEG", "L", "JPEG", "L"), ("JPEG", "CMYK", "JPEG", "CMYK"),
        ("PNG", "RGB", "PNG", "RGB"), ("PNG", "RGBA", "PNG", "RGBA"), ("PNG", "LA", "PNG", "LA"),
        ("PNG", "P", "PNG", "RGB"), ("PNG", "1", "PNG", "L"), ("PNG", "I;16", "PNG", "I;16"),
        ("WEBP", "RGBA", "WEBP", "RGBA"), ("WEBP", "RGB", "WEBP", "RGB"), ("GIF", "P", "JPEG", "RGB"),
        ("BMP", "RGB", "JPEG", "RGB"), ("TIFF", "RGB", "JPEG", "RGB"), ("TIFF", "RGBA", "PNG", "RGBA"),
    ],
)  # fmt: skip
def test_kinds_of_files_and_pixels_that_are_scaled(format: str, mode: str, kind: str, after: str) -> None:
    color = {"RGB": (200, 100, 50), "RGBA": (200, 100, 50, 90), "LA": (90, 30), "CMYK": (0, 200, 100, 20)}
    content = picture(format, mode=mode, color=color.get(mode, 1), size=(64, 33))
    image = _open(_made(content, max_side=32))
    assert (image.format, image.mode, image.size) == (kind, after, (32, 16))
    difference = np.asarray(image, np.int64) - np.asarray(
        _open(content).convert(after if mode not in ("I;16",) else mode).resize((32, 16), 0), np.int64
    )
    assert np.abs(difference).max() <= 3


def test_a_transparent_colour_stays_transparent() -> None:
    content = picture("PNG", mode="P", color=0, size=(50, 50), transparency=0)
    image = _open(_made(content, max_side=10))
    assert (image.mode, image.getpixel((4, 4))[3]) == ("RGBA", 0)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_b051_orientation_and_colour_profile_are_kept(format: str) -> None:
    content = picture(format, size=(48, 32), exif=_exif(6), icc_profile=_PROFILE)
    image = _open(_made(content, max_side=24))
    assert image.size == (24, 16)
    assert image.getexif()[0x0112] == 6
    assert image.info["icc_profile"] == _PROFILE


def test_lossless_stays_lossless() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    out = BytesIO()
    Image.fromarray(pixels).save(out, "WEBP", lossless=True)
    made = _made(out.getvalue(), max_side=32)
    assert b"VP8L" in made[:40]
    assert _made(out.getvalue(), quality=10) == out.getvalue()


def test_quality_alone_encodes_lossy_files_anew_where_they_get_smaller() -> None:
    content = noise()
    made = _made(content, quality=20)
    assert len(made) < len(content)
    assert _open(made).size == _open(content).size
    assert _made(made, quality=95) == made
    png = picture("PNG", size=(64, 64))
    assert _made(png, quality=20) == png
    assert len(_made(content, max_side=32, quality=20)) < len(_made(content, max_side=32))


def test_b059_animations_stay_as_they_are() -> None:
    frames = [Image.new("RGB", (64, 64), color) for color in ("red", "green")]
    for format in ("GIF", "WEBP"):
        out = BytesIO()
        frames[0].save(out, format, save_all=True, append_images=frames[1:], lossless=True)
        assert _made(out.getvalue(), max_side=8, quality=5) == out.getvalue()


def test_b058_of_two_pictures_the_first_is_scaled() -> None:
    out = BytesIO()
    red, green = (Image.new("RGB", (64, 64), color) for color in ("red", "green"))
    red.save(out, "MPO", save_all=True, append_images=[green])
    image = _open(_made(out.getvalue(), max_side=8))
    assert (image.format, image.size) == ("JPEG", (8, 8))
    assert image.getpixel((3, 3))[0] > 240


@pytest.mark.parametrize("size", [(3000, 1), (1, 3000), (999, 500), (1001, 1000)])
def test_no_side_becomes_zero_or_too_long(size: tuple[int, int]) -> None:
    width, height = _open(_made(picture("PNG", size=size), max_side=100)).size
    assert max(width, height) == 100
    assert min(width, height) >= 1


def test_broken_and_huge_images_are_refused_as_without_it() -> None:
    with own_pixel_limit(1000), pytest.raises(RecordProblem, match="more than the limit"):
        Resizing(10).make(picture(size=(64, 64)), 1000)
    with own_pixel_limit(10**6), pytest.raises(RecordProblem, match="cannot be decoded"):
        Resizing(10).make(noise()[:700], 10**6)


@pytest.mark.parametrize("wrong", [{"max_side": 0}, {"quality": 0}, {"quality": 101}, {"max_side": 70_000}])
def test_options_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected 1 to"):
        ConvertOptions(sources=("a",), out="b", **wrong)  # type: ignore[arg-type]


def _source(folder: Path, count: int = 12) -> Path:
    rows = []
    for number in range(count):
        name = f"{number}.{'png' if number % 3 else 'jpg'}"
        content = picture("PNG", size=(10 * number + 5, 30)) if number % 3 else noise(64, 48, seed=number)
        (folder / name).write_bytes(content)
        rows.append({"id": number, "image": name})
    return write_lines(folder / "a.jsonl", rows)


@pytest.mark.parametrize("check", [True, False])
def test_a_conversion_with_smaller_images(tmp_path: Path, check: bool) -> None:
    source = _source(tmp_path)
    samples = converted(source, tmp_path / "A", max_side=50, check=check)
    for number, sample in enumerate(samples):
        stored, original = bytes(sample["image"]), (tmp_path / sample["image_path"]).read_bytes()
        assert max(_open(stored).size) <= 50
        assert (stored == original) == (max(_open(original).size) <= 50), number
    run(source, tmp_path / "B", max_side=50, check=check, workers=2, size_limit=1 << 26)
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
    assert run(source, tmp_path / "A", max_side=50, check=check).finished_before
    with pytest.raises(ConvertError, match="not made by this job"):
        run(source, tmp_path / "A", max_side=51, check=check)


def test_images_without_a_kept_copy_are_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamshard.convert import kept

    source = _source(tmp_path)
    run(source, tmp_path / "A", max_side=50, quality=60)
    monkeypatch.setattr(kept.KeptImages, "put", lambda *_: None)
    run(source, tmp_path / "B", max_side=50, quality=60)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


def test_images_of_a_dataset_are_made_smaller_too(tmp_path: Path) -> None:
    run(_source(tmp_path), tmp_path / "A")
    samples = converted(tmp_path / "A", tmp_path / "B", max_side=50)
    again = converted(tmp_path / "a.jsonl", tmp_path / "C", max_side=50)
    assert [bytes(sample["image"]) for sample in samples] == [bytes(sample["image"]) for sample in again]
    assert [sample["image_path"] for sample in samples] == [sample["image_path"] for sample in again]
