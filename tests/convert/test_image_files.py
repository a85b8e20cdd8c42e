"""Image files as people really have them: kept byte for byte, proven to be readable."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
import sys
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile, features

from streamshard import LocalDataset
from streamshard.convert.images import sniff_format
from streamshard.errors import ConvertError, FormatError
from tests.support.jsonl_inputs import converted, noise, picture, run, write_lines


def _source(tmp_path: Path, name: str, content: bytes, *, line: int = 1) -> Path:
    (tmp_path / name).write_bytes(content)
    return write_lines(
        tmp_path / "a.jsonl", [*({"id": number} for number in range(line - 1)), {"image": name}]
    )


def _one(tmp_path: Path, name: str, content: bytes) -> Image.Image:
    """Convert one image, compare the stored bytes, and decode it as a reader does."""
    (sample,) = converted(_source(tmp_path, name, content), tmp_path / "A")
    assert hashlib.sha256(sample["image"]).digest() == hashlib.sha256(content).digest()
    image: Image.Image = LocalDataset(str(tmp_path / "A"))[0]["image"]
    return image


def _heic() -> bytes:
    return struct.pack(">I", 24) + b"ftypheic" + bytes(12) + bytes(200)


def test_b046_a_truncated_jpeg_is_found_by_the_default_check(tmp_path: Path) -> None:
    whole = noise()
    source = _source(tmp_path, "half.jpg", whole[: len(whole) // 2], line=2)
    with pytest.raises(
        ConvertError,
        match=r"a\.jsonl:2: image 'half\.jpg': cannot be decoded \(OSError: image file is truncated",
    ):
        run(source, tmp_path / "A")
    assert not (tmp_path / "A" / "index.json").exists()
    summary = run(source, tmp_path / "B", on_error="skip")
    assert (summary.samples, summary.skipped) == (1, {"unreadable image": 1})
    (_, sample) = converted(source, tmp_path / "C", check=False)
    assert sample["image"] == [whole[: len(whole) // 2]]


def test_b049_a_huge_image_names_line_size_and_the_option(tmp_path: Path) -> None:
    # A PNG that says it is 20000 x 20000; the limit is checked before a pixel is decoded.
    head = struct.pack(">IIBBBBB", 20000, 20000, 8, 0, 0, 0, 0)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    content = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    )
    source = _source(tmp_path, "huge.png", content, line=2)
    with pytest.raises(
        ConvertError, match=r"a\.jsonl:2: image 'huge\.png': 20000x20000 pixels.*--max-image-pixels 400000000"
    ):
        run(source, tmp_path / "A")


def test_b049_the_limit_can_be_raised_and_lowered_and_pillow_keeps_its_own(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS
    source = _source(tmp_path, "a.png", picture(size=(40, 30)))
    with pytest.raises(ConvertError, match="more than the limit of 1199"):
        run(source, tmp_path / "A", max_image_pixels=1199)
    assert run(source, tmp_path / "A", max_image_pixels=1200).samples == 1
    assert before == Image.MAX_IMAGE_PIXELS


def test_b051_an_orientation_tag_is_neither_applied_nor_lost(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = _one(tmp_path, "a.jpg", picture("JPEG", size=(24, 16), exif=exif))
    assert image.size == (24, 16)
    assert image.getexif()[0x0112] == 6


def test_b054_a_cmyk_jpeg_is_kept(tmp_path: Path) -> None:
    image = _one(tmp_path, "a.jpg", picture("JPEG", mode="CMYK", color=(0, 255, 255, 0)))
    assert image.mode == "CMYK"
    red, green, blue = image.convert("RGB").getpixel((0, 0))  # type: ignore[misc]
    assert red > 250
    assert green < 5
    assert blue < 5


@pytest.mark.parametrize(
    ("mode", "color"), [("RGBA", (9, 8, 7, 0)), ("P", 3), ("LA", (200, 10)), ("I;16", 40000), ("1", 1)]
)
def test_b055_pngs_of_every_mode_are_kept(tmp_path: Path, mode: str, color: Any) -> None:
    image = _one(tmp_path, "a.png", picture(mode=mode, color=color))
    assert image.mode == mode


def test_b056_stored_bytes_are_the_files_bytes(tmp_path: Path) -> None:
    content = noise(seed=5)
    assert _one(tmp_path, "a.jpg", content).format == "JPEG"


def test_b058_an_mpo_is_a_jpeg_with_more_behind(tmp_path: Path) -> None:
    out = BytesIO()
    red, green = (Image.new("RGB", (8, 8), color) for color in ((255, 0, 0), (0, 255, 0)))
    red.save(out, "MPO", save_all=True, append_images=[green])
    pixel = _one(tmp_path, "a.jpg", out.getvalue()).convert("RGB").getpixel((0, 0))
    assert isinstance(pixel, tuple)
    assert pixel[0] > 250
    extra = json.loads((tmp_path / "A" / "index.json").read_bytes())["streamshard"]
    assert extra["images"] == {"image": {"mpo": 1}}


@pytest.mark.parametrize("format", ["GIF", "WEBP"])
def test_b059_an_animation_is_kept_and_counted(tmp_path: Path, format: str) -> None:
    out = BytesIO()
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    frames[0].save(out, format, save_all=True, append_images=frames[1:], lossless=True)
    assert _one(tmp_path, "a.img", out.getvalue()).convert("RGB").getpixel((0, 0)) == (255, 0, 0)
    summary = run(_source(tmp_path, "a.img", out.getvalue()), tmp_path / "B")
    assert "1 image files hold several pictures; readers decode the first" in summary.warnings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (_heic(), "content is HEIC, which cannot be decoded here: .*pillow-heif"),
        (b"no image at all, only words", "content is not a readable image"),
    ],
)
def test_b060_what_is_no_image_is_named_or_skipped(tmp_path: Path, content: bytes, words: str) -> None:
    source = _source(tmp_path, "a.jpeg", content, line=2)
    with pytest.raises(ConvertError, match=rf"a\.jsonl:2: image 'a\.jpeg': {words}"):
        run(source, tmp_path / "A")
    assert run(source, tmp_path / "B", on_error="skip").skipped == {"unreadable image": 1}


def test_b060_b062_without_the_check_bytes_are_stored_as_they_are(tmp_path: Path) -> None:
    (sample,) = converted(_source(tmp_path, "a.jpeg", _heic()), tmp_path / "A", check=False)
    assert sample["image"] == _heic()
    extra = json.loads((tmp_path / "A" / "index.json").read_bytes())["streamshard"]
    assert extra["images"] == {"image": {"heic": 1}}


def test_b062_avif_without_a_codec_says_what_to_install(tmp_path: Path) -> None:
    content = struct.pack(">I", 24) + b"ftypavif" + bytes(12) + bytes(200)
    source = _source(tmp_path, "a.avif", content)
    with pytest.raises(ConvertError, match=r"a\.jsonl:1: image 'a\.avif': ") as caught:
        run(source, tmp_path / "A")
    if not features.check("avif"):
        assert "install a Pillow with AVIF" in str(caught.value)
    assert converted(source, tmp_path / "B", check=False)[0]["image"] == content


def test_a_file_that_several_records_name_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert import image_scan

    calls: list[int] = []
    real = image_scan.check_image

    def counting(content: bytes, *, max_pixels: int) -> Any:
        calls.append(len(content))
        return real(content, max_pixels=max_pixels)

    monkeypatch.setattr(image_scan, "check_image", counting)
    (tmp_path / "a.png").write_bytes(picture())
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}] * 500)
    assert run(source, tmp_path / "A").samples == 500
    assert len(calls) == 1


@pytest.mark.parametrize("check", [True, False])
def test_an_image_that_changes_between_check_and_write_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    from streamshard.convert import job

    source = _source(tmp_path, "a.bmp", picture("BMP", color=(1, 1, 1)), line=3)
    real = job.make_plan

    def and_then_change(*args: Any) -> Any:
        plan = real(*args)
        same_size = picture("BMP", color=(1, 1, 2))
        (tmp_path / "a.bmp").write_bytes(same_size if check else same_size + b"x")
        return plan

    monkeypatch.setattr(job, "make_plan", and_then_change)
    with pytest.raises(ConvertError, match=r"a\.jsonl:3: .*not what it was.*--no-resume"):
        run(source, tmp_path / "A", check=check)
    monkeypatch.undo()
    assert run(source, tmp_path / "A", check=check, resume=False).samples == 3


@pytest.mark.parametrize(
    ("head", "format"),
    [
        (picture("JPEG"), "jpeg"), (picture(), "png"), (picture("GIF"), "gif"), (picture("WEBP"), "webp"),
        (picture("TIFF"), "tiff"), (picture("BMP"), "bmp"), (_heic(), "heic"), (b"", "unknown"), (b"xyz", "unknown"),
    ],
)  # fmt: skip
def test_formats_are_told_by_their_first_bytes(head: bytes, format: str) -> None:
    assert sniff_format(head[:32]) == format


def test_a_huge_image_inside_an_icon_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    # Pillow decodes the PNG inside an icon when it opens the icon.
    inner = picture(size=(3000, 2000))
    directory = struct.pack("<HHH", 0, 1, 1) + struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(inner), 22)
    source = _source(tmp_path, "a.ico", directory + inner)
    with pytest.raises(ConvertError, match="6000000 pixels, more than the limit of 1000000"):
        run(source, tmp_path / "A", max_image_pixels=1_000_000)


def test_an_image_that_is_a_program_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import EpsImagePlugin

    def run_ghostscript(*_: object) -> None:
        raise AssertionError("Ghostscript was called")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", run_ghostscript)
    content = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n"
    source = _source(tmp_path, "a.jpg", content)
    with pytest.raises(ConvertError, match="EPS is not decoded, since that would run Ghostscript"):
        run(source, tmp_path / "A")
    run(source, tmp_path / "B", check=False)
    with pytest.raises(FormatError, match="would run Ghostscript"):
        LocalDataset(str(tmp_path / "B"))[0]


@pytest.mark.parametrize(
    ("step", "options"), [("load", {}), ("resize", {"max_side": 4}), ("save", {"max_side": 4})]
)
def test_an_image_that_memory_does_not_suffice_for_is_no_bad_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, options: dict[str, Any]
) -> None:
    source = _source(tmp_path, "a.png", picture(), line=2)

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ImageFile.ImageFile if step == "load" else Image.Image, step, fail)
        with pytest.raises(ConvertError, match=r"image 'a\.png': this machine has not the memory"):
            run(source, tmp_path / "A", on_error="skip", **options)
    summary = run(source, tmp_path / "A", on_error="skip", **options)
    assert (summary.samples, summary.skipped) == (2, {})


_TIGHT = """
import resource, sys
from streamshard.convert.images import check_image, own_pixel_limit
content = open(sys.argv[1], "rb").read()
with own_pixel_limit(10**9):
    check_image(open(sys.argv[2], "rb").read(), max_pixels=10**9)
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (130 << 20), resource.RLIM_INFINITY))
    try:
        check_image(content, max_pixels=10**9)
    except MemoryError:
        print("memory")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are Linux's")
def test_a_progressive_jpeg_that_memory_does_not_suffice_for_is_no_bad_image(tmp_path: Path) -> None:
    Image.new("RGB", (5000, 5000)).save(tmp_path / "a.jpg", progressive=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "b.jpg", progressive=True)
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.jpg")]
    done = subprocess.run([sys.executable, "-c", _TIGHT, *paths], capture_output=True, text=True, check=True)
    assert done.stdout == "memory\n"
