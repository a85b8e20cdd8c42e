"""Pixels of image files: what Pillow gives, whoever decodes them."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from streamshard import pixels_of
from streamshard.errors import FormatError
from streamshard.format import pixels as module
from streamshard.format.images import open_image


def picture(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    patches = (-(-size[0] // 5), -(-size[1] // 5))
    seed = random.Random(str((size, mode))).randbytes(patches[0] * patches[1] * 3)
    return Image.frombytes("RGB", patches, seed).resize(size, Image.Resampling.BICUBIC).convert(mode)


def file_of(image: Image.Image, form: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(picture((40, 20)), exif=exif)


def of_few_colours() -> bytes:
    """4:4:1, which libjpeg-turbo knows and simplejpeg has no name for."""
    content = bytearray(file_of(picture((32, 32)), subsampling="4:4:4", quality=80))
    content[content.index(b"\xff\xc0") + 11] = 0x14
    return bytes(content)


FILES: dict[str, Callable[[], bytes]] = {
    "4:4:1": of_few_colours,
    **{
        f"{size[0]}x{size[1]}, {subsampling}, progressive={progressive}": (
            lambda size=size, subsampling=subsampling, progressive=progressive: file_of(
                picture(size), subsampling=subsampling, progressive=progressive, quality=80
            )
        )
        for size in [(1, 1), (33, 17), (250, 187)]
        for subsampling in ("4:4:4", "4:2:2", "4:2:0")
        for progressive in (False, True)
    },
    "grey": lambda: file_of(picture((50, 31), "L")),
    "CMYK": lambda: file_of(picture((50, 31), "CMYK")),
    "RGB within": lambda: file_of(picture((50, 31)), keep_rgb=True),
    "rotated by EXIF": rotated,
    "bytes behind the end": lambda: file_of(picture((50, 31))) + b"behind",
    "several pictures": lambda: file_of(
        picture((50, 31)), "MPO", save_all=True, append_images=[picture((8, 9))]
    ),
    "transparent PNG": lambda: file_of(picture((20, 30), "RGBA"), "PNG"),
    "palette": lambda: file_of(picture((20, 30)).quantize(16), "GIF"),
}


@pytest.fixture(params=["simplejpeg", "Pillow alone"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(module, "_simplejpeg", lambda: None)
    return str(request.param)


def by_pillow(content: bytes, size: tuple[int, int] | None = None, resample: str = "bilinear") -> Any:
    image = open_image(content).convert("RGB")
    if size is not None:
        image = image.resize((size[1], size[0]), Image.Resampling[resample.upper()])
    return np.array(image)


@pytest.mark.parametrize("kind", FILES)
def test_pixels_are_those_of_pillow(kind: str, decoder: str) -> None:
    content = FILES[kind]()
    for size in (None, (24, 30)):
        found = pixels_of(content, size)
        assert found.dtype == np.uint8
        assert found.flags.writeable
        assert np.array_equal(found, by_pillow(content, size))
    assert np.array_equal(pixels_of(Image.open(io.BytesIO(content))), by_pillow(content))


@pytest.mark.parametrize("resample", module.RESAMPLINGS)
def test_every_filter_is_pillows(resample: str) -> None:
    content = file_of(picture((50, 31)))
    assert np.array_equal(
        pixels_of(content, (9, 70), resample=resample), by_pillow(content, (9, 70), resample)
    )


def test_a_plain_jpeg_does_not_pass_through_pillows_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("simplejpeg")
    content = file_of(picture((50, 31)))
    expected = by_pillow(content)
    monkeypatch.setattr(module, "open_image", lambda _content: pytest.fail("Pillow was asked"))
    for given in (content, memoryview(content)):
        assert np.array_equal(pixels_of(given), expected)


def outcome(get: Callable[[bytes], Any], content: bytes) -> Any:
    """Pixels, or an error's message without an address in it."""
    try:
        return get(content)
    except FormatError as error:
        return str(error).partition(" at 0x")[0]


def test_damaged_files_give_the_same_pixels_or_the_same_error() -> None:
    pytest.importorskip("simplejpeg")
    choose = random.Random(7)
    whole = [file_of(picture((90, 70)), progressive=each, quality=85) for each in (False, True)]
    decoded = refused = 0
    for _ in range(150):
        content = bytearray(choose.choice(whole))
        if choose.random() < 0.3:
            del content[choose.randrange(1, len(content)) :]
        else:
            content[choose.randrange(len(content))] = choose.randrange(256)
        expected, found = (outcome(get, bytes(content)) for get in (by_pillow, pixels_of))
        assert type(found) is type(expected)
        assert np.array_equal(found, expected)
        refused += isinstance(expected, str)
        decoded += isinstance(expected, np.ndarray)
    assert decoded > 20 < refused


def test_pixels_beyond_pillows_limit_are_refused_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch, decoder: str
) -> None:
    content = file_of(picture((50, 31)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 700)
    if decoder == "simplejpeg":
        import simplejpeg

        monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *_: pytest.fail("decoded"))
    with pytest.raises(FormatError, match="DecompressionBombError"):
        pixels_of(content)
    monkeypatch.undo()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    assert pixels_of(content).shape == (31, 50, 3)


def test_another_library_in_pillow_decodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module._simplejpeg.cache_clear()
    monkeypatch.setattr(features, "check_feature", lambda _name: False)
    assert module._simplejpeg() is None
    module._simplejpeg.cache_clear()


@pytest.mark.parametrize("size", [(0, 5), (5, -1)])
def test_sizes_and_filters_that_there_are_not(size: tuple[int, int]) -> None:
    content = file_of(picture((5, 5)))
    with pytest.raises(ValueError, match=r"expected \(height, width\)"):
        pixels_of(content, size)
    with pytest.raises(ValueError, match="expected one of nearest, box"):
        pixels_of(content, resample="cubic")


def test_what_is_no_image_is_named() -> None:
    with pytest.raises(FormatError, match="an image of 5 bytes that cannot be decoded"):
        pixels_of(b"\xff\xd8abc")
