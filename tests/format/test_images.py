"""Images keep the bytes of their file; what has none is saved; what is broken is named."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from PIL import Image

from streamshard.errors import FormatError, SampleError
from streamshard.format.encodings import parse_encoding
from streamshard.format.images import sniff_format
from streamshard.format.schema import Schema


def picture(mode: str = "RGB", size: tuple[int, int] = (16, 8)) -> Image.Image:
    image = Image.new(mode, size)
    if mode in ("RGB", "L"):
        image.paste(200 if mode == "L" else (200, 10, 30), (0, 0, 5, 5))
    return image


def file_bytes(format: str, mode: str = "RGB", **options) -> bytes:
    out = io.BytesIO()
    picture(mode).save(out, format=format, **options)
    return out.getvalue()


JPEG, PNG = file_bytes("JPEG", quality=93), file_bytes("PNG")


def test_b056_the_bytes_of_a_file_are_stored_as_they_are():
    assert parse_encoding("jpeg").encode(JPEG) == JPEG
    assert parse_encoding("png").encode(bytearray(PNG)) == PNG
    assert parse_encoding("list[jpeg]").stored(parse_encoding("list[jpeg]").encode([JPEG, PNG])) == [
        JPEG,
        PNG,
    ]


@pytest.mark.parametrize(("name", "content"), [("jpeg", JPEG), ("png", PNG)])
@pytest.mark.parametrize("load", [False, True])
def test_b056_a_pil_image_opened_from_a_path_stores_its_file(name, content, load, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content)
    with Image.open(path) as image:
        if load:
            image.load()
        assert parse_encoding(name).encode(image) == content
        assert image.getpixel((1, 1)) == Image.open(io.BytesIO(content)).getpixel((1, 1))


def test_b057_a_pil_image_opened_from_memory_stores_its_bytes():
    image = Image.open(io.BytesIO(JPEG))
    assert parse_encoding("jpeg").encode(image) == JPEG
    image.load()
    again = parse_encoding("jpeg").encode(image)
    assert Image.open(io.BytesIO(again)).size == image.size


def test_b058_an_mpo_is_a_jpeg_and_keeps_both_pictures():
    out = io.BytesIO()
    Image.new("RGB", (8, 8), (255, 0, 0)).save(
        out, format="MPO", save_all=True, append_images=[Image.new("RGB", (8, 8), (0, 255, 0))]
    )
    encoding = parse_encoding("jpeg")
    payload = encoding.encode(out.getvalue())
    assert payload == out.getvalue() == encoding.encode(Image.open(io.BytesIO(payload)))
    assert encoding.decode(payload).getpixel((4, 4))[0] > 250


@pytest.mark.parametrize(
    "change",
    [
        lambda image: image.thumbnail((4, 4)),
        lambda image: image.putpixel((0, 0), (1, 2, 3)),
        lambda image: image.paste((9, 9, 9), (0, 0, 8, 8)),
        lambda image: image.draft("L", (8, 4)),
    ],
    ids=["thumbnail", "putpixel", "paste", "draft"],
)
def test_s11_a_pil_image_changed_in_place_stores_the_change(change, tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(JPEG)
    with Image.open(path) as image:
        change(image)
        payload = parse_encoding("jpeg").encode(image)
        assert payload != JPEG
        found = parse_encoding("jpeg").decode(payload)
        assert (found.size, found.mode) == (image.size, image.mode)


def test_s11_a_file_replaced_after_it_was_opened_is_not_stored(tmp_path):
    path = tmp_path / "a.png"
    path.write_bytes(PNG)
    with Image.open(path) as image:
        image.load()
        path.write_bytes(file_bytes("PNG", "L"))
        found = parse_encoding("png").decode(parse_encoding("png").encode(image))
        assert found.tobytes() == picture().tobytes()


@pytest.mark.parametrize("mode", ["P", "PA"])
def test_s11_pil_refuses_palette_images_that_it_would_strip(mode):
    with pytest.raises(SampleError, match=r"lose its palette.*png column"):
        parse_encoding("pil").encode(Image.new("P", (2, 2)) if mode == "P" else Image.new("PA", (2, 2)))


def test_b055_palette_and_alpha_survive_in_a_png_column():
    for image in (picture("RGBA"), picture("LA"), picture().quantize(8)):
        encoding = parse_encoding("png")
        found = encoding.decode(encoding.encode(image))
        assert found.mode == image.mode
        assert found.convert("RGBA").tobytes() == image.convert("RGBA").tobytes()


@pytest.mark.parametrize(
    "mode", ["1", "L", "RGB", "RGBA", "CMYK", "I", "F", "LA", "YCbCr", "I;16", "LAB", "HSV"]
)
def test_raw_images_of_every_other_mode_read_back_equal(mode):
    image = Image.new(mode, (9, 5))
    encoding = parse_encoding("pil")
    payload = encoding.encode(image)
    found = encoding.decode(payload)
    assert (found.mode, found.size, found.tobytes()) == (image.mode, image.size, image.tobytes())
    assert payload[:12] == struct.pack("<III", 9, 5, len(mode))


@pytest.mark.parametrize("mode", ["RGBA", "P", "F"])
def test_what_a_jpeg_cannot_hold_is_refused_with_a_way_out(mode):
    with pytest.raises(SampleError, match=f"mode {mode} cannot be saved as JPEG.*pass the bytes"):
        parse_encoding("jpeg").encode(Image.new(mode, (2, 2)))


@pytest.mark.parametrize("format", ["GIF", "BMP", "TIFF", "WEBP", "PPM", "PNG"])
def test_a_jpeg_column_takes_files_of_any_format_and_a_png_column_only_its_own(format):
    content = file_bytes(format, **({"lossless": True} if format == "WEBP" else {}))
    assert sniff_format(content) == format
    encoding = parse_encoding("jpeg")
    assert encoding.decode(encoding.encode(content)).convert("RGB").tobytes() == picture().tobytes()
    if format != "PNG":
        with pytest.raises(SampleError, match=f"expected a PNG file, found {format}"):
            parse_encoding("png").encode(content)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "0 bytes given as an image: an empty file"),
        (b"hello", "not a readable image"),
        ("a.jpg", "expected the bytes of an image file or a PIL image, found str"),
        (None, "found NoneType"),
    ],
)
def test_b033_b060_what_is_no_image_is_refused(value, words):
    for name in ("jpeg", "png"):
        with pytest.raises(SampleError, match=words):
            parse_encoding(name).encode(value)


def test_b031_any_number_of_images_keeps_order_count_and_bytes():
    encoding = parse_encoding("list[jpeg]")
    for files in ([], [JPEG], [JPEG, PNG, file_bytes("GIF")]):
        payload = encoding.encode(files)
        assert payload[:8] == struct.pack("<II", 0, len(files))
        assert encoding.stored(payload) == files
        assert len(encoding.decode(payload)) == len(files)


def test_a_jpeg_array_has_no_reserved_word():
    payload = parse_encoding("jpeg_array").encode([JPEG, JPEG])
    assert payload == struct.pack("<III", 2, len(JPEG), len(JPEG)) + JPEG + JPEG
    assert parse_encoding("jpegarray").stored(payload) == [JPEG, JPEG]


@pytest.mark.parametrize("name", ["jpeg_array", "jpegarray"])
def test_an_empty_jpeg_array_is_refused_because_mosaicml_cannot_read_it(name):
    with pytest.raises(SampleError, match=r"not read it; use list\[jpeg\]"):
        parse_encoding(name).encode([])


def test_a_list_names_the_image_that_is_none():
    with pytest.raises(SampleError, match="image 1 of 2: expected the bytes"):
        parse_encoding("list[png]").encode([PNG, 5])
    for value in (PNG, "a.png", 3):
        with pytest.raises(SampleError, match="expected a list of images"):
            parse_encoding("list[png]").encode(value)


@pytest.mark.parametrize(
    ("name", "payload", "words"),
    [
        ("jpeg", JPEG[: len(JPEG) // 2], "cannot be decoded"),
        ("jpeg", b"", "cannot be decoded"),
        ("png", PNG[:50], "cannot be decoded"),
        ("png", PNG[:40] + b"\0\0" + PNG[42:], "cannot be decoded"),
        ("pil", b"1234", "its header takes 12"),
        ("pil", struct.pack("<III", 2, 2, 1) + b"Z" + bytes(4), "unknown mode 'Z'"),
        ("pil", struct.pack("<III", 2, 2, 2**31) + b"L", "unknown mode"),
        (
            "pil",
            struct.pack("<III", 2**32 - 1, 2**32 - 1, 1) + b"L",
            "takes 18446744065119617025 bytes, found 0",
        ),
        ("pil", struct.pack("<III", 2, 2, 1) + b"L" + bytes(5), "takes 4 bytes, found 5"),
        ("list[png]", b"\0" * 7, "its header takes 8"),
        ("list[png]", b"\1\0\0\0" + b"\0" * 4, "reserved word"),
        ("list[png]", struct.pack("<II", 0, 2**32 - 1), "says it holds 4294967295 images"),
        ("list[png]", struct.pack("<III", 0, 1, 5) + b"abcd", "end at 17"),
        ("jpeg_array", struct.pack("<III", 2, 2**32 - 1, 2**32 - 1) + b"ab", "end at 8589934602"),
        ("list[jpeg]", struct.pack("<II", 0, 0) + b"x", "end at 8"),
    ],
)
def test_hostile_image_bytes_are_format_errors(name, payload, words):
    for form in (payload, memoryview(payload)):
        with pytest.raises(FormatError, match=words):
            parse_encoding(name).decode(form)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_far_too_large_is_an_error_and_not_an_allocation(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(FormatError, match="DecompressionBombError"):
        parse_encoding("png").decode(PNG)


def test_a_decoded_image_is_loaded_and_independent_of_the_buffer():
    memory = bytearray(PNG)
    image = parse_encoding("png").decode(memoryview(memory))
    memory[:] = bytes(len(memory))
    assert image.tobytes() == picture().tobytes()


def test_b051_b052_orientation_is_kept_in_the_bytes_and_never_applied_on_reading():
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.new("RGB", (24, 16)).save(out, format="JPEG", exif=exif)
    encoding = parse_encoding("jpeg")
    image = encoding.decode(encoding.encode(out.getvalue()))
    assert image.size == (24, 16)
    assert image.getexif()[0x0112] == 6


def test_b054_a_cmyk_jpeg_keeps_its_bytes():
    out = io.BytesIO()
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(out, format="JPEG", quality=95)
    encoding = parse_encoding("jpeg")
    assert encoding.encode(out.getvalue()) == out.getvalue()
    red, green, blue = encoding.decode(out.getvalue()).convert("RGB").getpixel((4, 4))
    assert red > 250
    assert max(green, blue) < 8


@pytest.mark.parametrize("format", ["GIF", "WEBP"])
def test_b059_an_animation_keeps_its_bytes_and_shows_its_first_frame(format):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    out = io.BytesIO()
    options = {"lossless": True} if format == "WEBP" else {}
    frames[0].save(out, format=format, save_all=True, append_images=frames[1:], **options)
    encoding = parse_encoding("jpeg")
    assert encoding.encode(out.getvalue()) == out.getvalue()
    assert encoding.decode(out.getvalue()).convert("RGB").getpixel((1, 1)) == (255, 0, 0)


def test_b046_half_a_jpeg_in_a_sample_names_the_row_and_the_column():
    schema = Schema.from_columns({"image": "jpeg"})
    payload = schema.encode_sample({"image": JPEG[: len(JPEG) // 2]})
    with pytest.raises(FormatError, match=r"row 0: column 'image' \(encoding 'jpeg'\): .*cannot be decoded"):
        schema.decoder().many(payload, np.array([0]), np.array([len(payload)]))
    assert schema.decoder(decode_images=False).one(payload)["image"] == JPEG[: len(JPEG) // 2]


def test_a_lack_of_memory_is_not_blamed_on_the_file(monkeypatch):
    content = io.BytesIO()
    Image.new("RGB", (8, 8), (250, 3, 90)).save(content, "JPEG")
    picture = Image.open(io.BytesIO(content.getvalue()))
    picture.load()

    def no_memory(self):
        raise MemoryError

    monkeypatch.setattr(type(picture), "load", no_memory)
    encoding = parse_encoding("jpeg")
    with pytest.raises(MemoryError):
        encoding.decode(content.getvalue())
    with pytest.raises(MemoryError):
        encoding.encode(picture)
