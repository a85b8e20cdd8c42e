"""The same references to images in other clothes: found, or refused with what was meant."""

from __future__ import annotations

import base64
import io
import json
import os
import unicodedata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from streamshard import LocalDataset, convert_records
from streamshard.convert.job import convert
from streamshard.convert.listed_text import listed_in_text
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError


def drawn(kind: str = "JPEG", mode: str = "RGB") -> bytes:
    target = io.BytesIO()
    Image.new(mode, (8, 8)).save(target, kind)
    return target.getvalue()


JPEG, PNG = drawn(), drawn("PNG")
TEXT = base64.b64encode(PNG).decode()


def converted(folder: Path, records: list[Any], files: dict[str, bytes], **options: Any):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return convert(ConvertOptions((str(folder / "in.jsonl"),), str(folder / "out"), workers=1, **options))


def chat(part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, part]}]}


DATA = f"data:image/png;base64,{TEXT}"
CHATS = {
    "openai-url": {"type": "image_url", "image_url": {"url": "a.png"}},
    "openai-detail": {"type": "image_url", "image_url": {"url": "a.png", "detail": "low"}},
    "openai-text": {"type": "image_url", "image_url": "a.png"},
    "openai-responses": {"type": "input_image", "image_url": DATA},
    "openai-data": {"type": "image_url", "image_url": {"url": DATA}},
    "qwen": {"type": "image", "image": "a.png"},
    "qwen-pixels": {"type": "image", "image": "a.png", "min_pixels": 50176},
    "qwen-bare": {"image": "a.png"},
    "transformers-path": {"type": "image", "path": "a.png"},
    "transformers-url": {"type": "image", "url": "a.png"},
    "transformers-base64": {"type": "image", "base64": TEXT},
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}},
    "gemini": {"inline_data": {"mime_type": "image/png", "data": TEXT}},
    "gemini-camel": {"inlineData": {"mimeType": "image/png", "data": TEXT}},
    "bedrock": {"image": {"format": "png", "source": {"bytes": TEXT}}},
    "ai-sdk": {"type": "file", "mediaType": "image/png", "data": TEXT},
    "in-a-tool-result": {"type": "tool_result", "content": [{"type": "image", "image": "a.png"}]},
}


def test_an_image_inside_a_message(tmp_path):
    summary = converted(tmp_path, [chat(part) for part in CHATS.values()], {"a.png": PNG})
    assert not summary.warnings
    for name, sample in zip(CHATS, LocalDataset(tmp_path / "out", decode_images=False), strict=True):
        assert sample["images"] == PNG, name
        assert TEXT not in json.dumps(sample["messages"]), name


WHOLE_CHATS: dict[str, Any] = {
    "gemini": [{"role": "user", "parts": [{"text": "q"}, CHATS["gemini"]]}],
    "ollama": [{"role": "user", "content": "q", "images": [TEXT]}],
    "ollama-path": [{"role": "user", "content": "<image> q", "images": ["a.png"]}],
    "one-message": {"role": "user", "content": [CHATS["qwen"]]},
    "lists-in-a-list": [[{"role": "user", "content": [CHATS["qwen"]]}]],
    "langchain": [{"type": "human", "content": [CHATS["anthropic"]]}],
}


def test_an_image_inside_messages_of_another_form(tmp_path):
    converted(tmp_path, [{"contents": each} for each in WHOLE_CHATS.values()], {"a.png": PNG})
    for name, sample in zip(WHOLE_CHATS, LocalDataset(tmp_path / "out", decode_images=False), strict=True):
        assert sample["images"] == PNG, name
        assert TEXT not in json.dumps(sample["contents"]), name
        assert json.dumps(sample["contents"]).count("{") == json.dumps(WHOLE_CHATS[name]).count("{"), name


def test_messages_as_text_are_pointed_out_and_taken_when_named(tmp_path):
    record = {"messages": json.dumps(chat(CHATS["qwen"])["messages"]), "text": "[no image]"}
    summary = converted(tmp_path, [record], {"a.png": PNG})
    assert ["--image-key messages" in warning for warning in summary.warnings] == [True]
    summary = converted(tmp_path, [record], {}, image_keys=("messages",), overwrite=True)
    sample = LocalDataset(tmp_path / "out", decode_images=False)[0]
    assert (sample["images"], sample["messages"]) == (PNG, chat(CHATS["qwen"])["messages"])


def test_audio_and_video_inside_messages_are_pointed_out(tmp_path):
    parts = [{"type": "video", "video": "v.mp4"}, {"type": "audio", "audio_url": "a.wav"}, {"type": "text"}]
    records = [{key: chat(part)["messages"] for key, part in zip("vat", parts, strict=True)}]
    (warning,) = converted(tmp_path, records, {}).warnings
    assert "messages under 'v', 'a' name audio or video" in warning


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_preference_counts_the_images_of_the_chosen_answer(tmp_path, in_parts):
    content: Any = [{"type": "image"}, {"type": "text", "text": "q"}] if in_parts else "<image> q"

    def record(tags: int) -> dict[str, Any]:
        asked = [{"role": "user", "content": content}] * tags
        return {
            "images": ["a.png"],
            "chosen": [*asked, {"role": "assistant", "content": "good"}],
            "rejected": [*asked, {"role": "assistant", "content": "bad"}],
        }

    assert not converted(tmp_path, [record(1)], {"a.png": PNG}).warnings
    (warning,) = converted(tmp_path, [record(2)], {}, overwrite=True).warnings
    assert "another number of <image> tags" in warning


CELLS = {
    "json": '"[""a.png"", ""b.png""]"',
    "json-of-objects": '"[{""path"": ""a.png""}, {""bytes"": null, ""path"": ""b.png""}]"',
    "python": "\"['a.png', 'b.png']\"",
    "numpy": "\"['a.png'\n 'b.png']\"",
}


@pytest.mark.parametrize("name", list(CELLS))
def test_a_list_of_images_in_a_cell(tmp_path, name):
    for file in ("a.png", "b.png", "[x].png"):
        (tmp_path / file).write_bytes(PNG)
    (tmp_path / "in.csv").write_text(f"id,images\n1,{CELLS[name]}\n2,[]\n3,\n4,[x].png\n")
    convert(ConvertOptions((str(tmp_path / "in.csv"),), str(tmp_path / "out"), workers=1))
    samples = LocalDataset(tmp_path / "out", decode_images=False)
    assert [sample["images_path"] for sample in samples] == [["a.png", "b.png"], [], [], ["[x].png"]]
    assert samples[0]["images"] == [PNG, PNG]


def test_python_text_in_a_cell_that_would_take_much_memory_stays_text():
    for text in (
        "[" + "'a'," * 100_000 + "]",
        "['', " + "1+" * 100_000 + "1j]",
        "[" + "'a' " * 100_000 + "]",
    ):
        assert listed_in_text(text) is text
    assert listed_in_text(f"[{bytes(300_000)!r}]") == [bytes(300_000)]
    assert listed_in_text(r"['C:\\a' 'b']") == r"['C:\\a' 'b']"


def test_an_array_that_no_column_fits_is_no_image(tmp_path):
    rows = [{"image": np.zeros(4, np.uint8)}, {"image": None}]
    with pytest.raises(ConvertError, match="row 1: 'image' is ndarray"):
        convert_records(rows, tmp_path / "out", workers=1)


def test_what_names_no_image_beside_a_message_stays_as_it_is(tmp_path):
    said = [
        {"role": "user", "content": "q", "images": [0]},
        {"role": "user", "content": "q", "images": [None]},
    ]
    converted(tmp_path, [{"images": ["a.png"], "messages": said}, {"messages": said}], {"a.png": PNG})
    samples = list(LocalDataset(tmp_path / "out", decode_images=False))
    assert [sample["images"] for sample in samples] == [[PNG], []]
    assert [sample["messages"] for sample in samples] == [said, said]


REFERENCES = {
    "plain": "dir/a b.png",
    "dots": "./dir/../dir/a b.png",
    "double-slash": "dir//a b.png",
    "absolute": "{root}/dir/a b.png",
    "file-url": "file://{root}/dir/a b.png",
    "file-url-escaped": "file://{root}/dir/a%20b.png",
    "file-url-host": "file://localhost{root}/dir/a%20b.png",
    "file-url-capitals": "FILE://{root}/dir/a%20b.png",
    "list": ["dir/a b.png"],
    "dict": {"path": "dir/a b.png"},
    "dict-null-bytes": {"bytes": None, "path": "dir/a b.png"},
    "dict-base64": {"bytes": TEXT, "path": None},
    "dict-url": {"url": "dir/a b.png"},
    "list-of-dict": [{"file_name": "dir/a b.png"}],
    "data": DATA,
    "data-no-padding": DATA.rstrip("="),
    "data-lines": "data:image/png;base64," + base64.encodebytes(PNG).decode(),
    "data-escaped": "data:image/png;base64," + quote(TEXT, safe=""),
    "data-url-alphabet": "data:image/png;base64," + base64.urlsafe_b64encode(PNG).decode(),
    "data-capitals": "DATA:IMAGE/PNG;BASE64," + TEXT,
    "base64": TEXT,
    "base64-lines": base64.encodebytes(PNG).decode(),
}


def test_one_picture_in_twenty_clothes(tmp_path):
    text = json.dumps(list(REFERENCES.values())).replace("{root}", str(tmp_path))
    summary = converted(tmp_path, [{"image": each} for each in json.loads(text)], {"dir/a b.png": PNG})
    assert summary.images == {"image": {"png": len(REFERENCES)}}
    for name, sample in zip(REFERENCES, LocalDataset(tmp_path / "out", decode_images=False), strict=True):
        assert sample["image"] == PNG, name
        assert str(tmp_path) not in json.dumps(sample["image_path"]), name


def test_a_percent_in_a_file_name_is_no_escape(tmp_path):
    files = {"a%20b.png": PNG}
    converted(tmp_path, [{"image": f"file://{tmp_path}/a%20b.png"}, {"image": "a%20b.png"}], files)
    assert len(LocalDataset(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("reference", "file", "hint"),
    [
        ("a%20b.png", "a b.png", "/a b.png' does"),
        ("dir\\a.png", "dir/a.png", "/dir/a.png' does"),
        ("a.png ", "a.png", "/a.png' does"),
        ("a.png\n", "a.png", "/a.png' does"),
        (" dir / a.png", "dir/a.png", "/dir/a.png' does"),
        ("A.PNG", "a.png", "nearby: 'a.png'"),
        ("a.jpg", "a.png", "nearby: 'a.png'"),
        ("pciture.png", "picture.png", "nearby: 'picture.png'"),
        ("no/a.png", "b.png", "does not exist either"),
        ("dir/b/a.png", "DIR/b/a.png", "nearby: 'DIR'"),
        ("zzz.png", "a.png", "nothing of a similar name"),
        ("C:\\data\\a.png", "A.png", "nearby: 'A.png'"),
        ("a.png;a.png", "a.png", "these are 2 files that do"),
    ],
)
def test_a_missing_image_names_the_file_that_was_meant(tmp_path, reference, file, hint):
    with pytest.raises(ConvertError) as caught:
        converted(tmp_path, [{"image": reference}], {file: PNG})
    assert hint in str(caught.value)
    assert "in.jsonl:1" in str(caught.value)


def test_a_name_with_the_other_kind_of_accent_is_found_nearby(tmp_path):
    stored = unicodedata.normalize("NFD", "é.png")
    with pytest.raises(ConvertError, match="nearby"):
        converted(tmp_path, [{"image": unicodedata.normalize("NFC", "é.png")}], {stored: PNG})


def test_the_hint_is_of_the_folder_as_it_is_now(tmp_path):
    with pytest.raises(ConvertError, match="nothing of a similar name"):
        converted(tmp_path, [{"image": "picture.png"}], {})
    with pytest.raises(ConvertError, match=r"nearby: 'picture\.jpg'"):
        converted(tmp_path, [{"image": "picture.png"}], {"picture.jpg": JPEG})


CONTENTS = {
    "html": b"<!DOCTYPE html><html>404",
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n",
    "pdf": b"%PDF-1.4 x",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>',
    "packed": b"\x1f\x8b\x08\x00rest",
    "empty": b"",
    "half": drawn()[:400],
    "half-png": PNG[:40],
    "checksum": PNG[:-20] + b"zzzz" + PNG[-16:],
    "text": b"just words",
    "answer": b'{"message": "Not Found"}',
    "film": b"\0\0\0\x18ftypmp42",
    "zeros": bytes(500),
    "base64": TEXT.encode(),
}
WHAT_IT_IS = {
    "html": "a web page", "pointer": "git lfs pull", "pdf": "a PDF", "svg": "SVG", "packed": "a gzip file",
    "answer": "JSON", "film": "a video", "zeros": "all of its 500 bytes are zero", "base64": "base64 text of a PNG",
}  # fmt: skip


def test_what_is_no_picture_is_named_with_its_line_and_what_it_is(tmp_path):
    records = [{"image": "good"}, *({"image": name} for name in CONTENTS)]
    with pytest.raises(ConvertError) as caught:
        converted(tmp_path, records, {"good": PNG, **CONTENTS})
    lines = str(caught.value).splitlines()
    for number, name in enumerate(CONTENTS, 2):
        (line,) = (line for line in lines if f"in.jsonl:{number}: image '{name}'" in line)
        assert WHAT_IT_IS.get(name, "") in line
    summary = converted(tmp_path, records, {}, on_error="skip")
    assert (summary.samples, sum(summary.skipped.values())) == (1, len(CONTENTS))


def test_every_common_kind_of_file_is_kept_as_it_is(tmp_path):
    kinds = [("BMP", "RGB"), ("TIFF", "I;16"), ("TIFF", "RGB"), ("ICO", "RGBA"), ("WEBP", "RGBA"), ("PNG", "P"),
     ("PNG", "LA"), ("PNG", "1"), ("GIF", "P"), ("JPEG", "L"), ("JPEG", "CMYK"), ("PPM", "RGB")]  # fmt: skip
    contents = {f"{kind}-{mode}": drawn(kind, mode) for kind, mode in kinds}
    converted(tmp_path, [{"image": name} for name in contents], contents)
    stored = LocalDataset(tmp_path / "out", decode_images=False)
    assert [sample["image"] for sample in stored] == list(contents.values())
    assert {sample["image"].size for sample in LocalDataset(tmp_path / "out")} <= {(8, 8), (16, 16)}


WRITTEN = {
    "base64": TEXT,
    "no padding": TEXT.rstrip("="),
    "other alphabet": base64.urlsafe_b64encode(JPEG).decode(),
    "python": repr(PNG),
    "numbers": list(PNG),
    "node": {"type": "Buffer", "data": list(PNG)},
    "mongo": {"$binary": {"base64": TEXT, "subType": "00"}},
    "old mongo": {"$binary": TEXT, "$type": "00"},
}


@pytest.mark.parametrize("name", list(WRITTEN))
def test_an_image_whose_bytes_are_written_out(tmp_path, name):
    wanted = JPEG if name == "other alphabet" else PNG
    converted(tmp_path, [{"image": WRITTEN[name]}, {"image": [WRITTEN[name]] * 2}], {})
    samples = LocalDataset(tmp_path / "out", decode_images=False)
    assert [sample["image"] for sample in samples] == [[wanted], [wanted] * 2]


@pytest.mark.parametrize(
    "value",
    [
        "b'" + "x" * 60 + "'",
        "b'" + "\\" * 61,
        [1, 2, 3],
        [256],
        [1, "a"],
        {"type": "Buffer", "data": [1, 2]},
        {"type": "Buffer", "data": "x"},
        {"$binary": {"base64": "!!"}},
        {"$binary": 5},
        "iVBORw0KGgo" + "!" * 60,
    ],
    ids=range(10),
)
def test_what_is_no_written_image_is_refused_with_its_line(tmp_path, value):
    with pytest.raises(ConvertError, match=r"in\.jsonl:1: ('image' is|image\[0\] is|image .*does not exist)"):
        converted(tmp_path, [{"image": value}], {})


@pytest.mark.parametrize(
    ("reference", "root", "files", "hint"),
    [
        ("images/a.jpg", "images", ["images/a.jpg"], "images/a.jpg' does: --image-root '{root}'"),
        ("a.jpg", "", ["pictures/a.jpg"], "pictures/a.jpg' does: --image-root '{root}/pictures'"),
        ("x/a.jpg", "", ["pictures/x/a.jpg"], "--image-root '{root}/pictures'"),
        ("/a.jpg", "", ["a.jpg"], "without '/' in front it is a file there: leave that out"),
        ("/home/al/x/a.jpg", "", ["x/a.jpg"], "without '/home/al/' in front it is a file there"),
        ("D:\\data\\x\\a.jpg", "", ["x/a.jpg"], "without 'D:\\\\data\\\\' in front it does: cut that off"),
        ("data/./a.jpg", "", ["a.jpg"], "without 'data/' in front it does"),
    ],
)
def test_an_image_below_another_root_is_pointed_out(tmp_path, reference, root, files, hint):
    with pytest.raises(ConvertError) as caught:
        converted(
            tmp_path, [{"image": reference}], dict.fromkeys(files, JPEG), image_root=str(tmp_path / root)
        )
    assert hint.format(root=tmp_path) in str(caught.value)


def test_a_text_that_is_no_path_is_not_shown_whole(tmp_path):
    bitmap = base64.b64encode(drawn("BMP")).decode()
    with pytest.raises(
        ConvertError, match="File name too long; the content of an image\\? in text it is a data URI"
    ) as caught:
        converted(tmp_path, [{"image": bitmap}], {})
    assert len(str(caught.value)) < 500


def test_an_address_in_a_bucket_says_what_reads_it(tmp_path):
    with pytest.raises(ConvertError, match=r"--image-root 's3://bucket/x' reads those below it"):
        converted(tmp_path, [{"image": "s3://bucket/x/a.jpg"}], {})


def test_a_number_that_is_none_is_no_image(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "in.jsonl").write_text('{"image": NaN}\n{"image": "a.png"}\n')
    convert(ConvertOptions((str(tmp_path / "in.jsonl"),), str(tmp_path / "out"), workers=1))
    assert [sample["image_path"] for sample in LocalDataset(tmp_path / "out")] == [[], ["a.png"]]


@pytest.mark.parametrize("key", ["image_url", "file_name", "Image", "Images"])
def test_names_of_images_under_an_unknown_key_are_pointed_out(tmp_path, key):
    records = [{key: ["a.png"] if key == "Images" else "a.png", "text": "x"}] * 3
    summary = converted(tmp_path, records, {"a.png": PNG})
    assert [key in warning and "--image-key" in warning for warning in summary.warnings] == [True]
    os.remove(tmp_path / "out" / "index.json")
    summary = converted(tmp_path, records, {}, image_keys=(key,), overwrite=True)
    assert summary.images == {key: {"png": 3}}
    assert not summary.warnings


@pytest.mark.parametrize("head", ["", "data:image/png;base64,"])
def test_images_as_text_under_an_unknown_key_are_pointed_out(tmp_path, head):
    records = [{"img_b64": head + base64.b64encode(PNG).decode()}]
    (warning,) = converted(tmp_path, records, {}).warnings
    assert "values of 'img_b64' look like images or names of them" in warning
    assert converted(tmp_path, records, {}, image_keys=("img_b64",), overwrite=True).images == {
        "img_b64": {"png": 1}
    }


def test_messages_inside_objects_are_pointed_out(tmp_path):
    part = {"type": "image_url", "image_url": {"url": "a.png"}}
    records = [{"body": {"messages": [{"role": "user", "content": [part]}], "model": "x"}}]
    (warning,) = converted(tmp_path, records, {"a.png": PNG}).warnings
    assert "messages at .body.messages hold images" in warning
    assert "jq -c '.messages = .body.messages'" in warning


def test_an_image_beside_other_keys_in_an_object_says_where_it_belongs(tmp_path):
    records = [{"images": [{"path": "a.png", "caption": "x"}, {"path": "a.png", "caption": "y"}]}]
    with pytest.raises(
        ConvertError, match=r"in\.jsonl:1: images\[0\] is dict .*if its image is what stands under 'path'"
    ):
        converted(tmp_path, records, {"a.png": PNG})


def test_an_address_beside_an_image_is_not_pointed_out(tmp_path):
    records = [{"image": "a.png", "url": "https://example.org/a.png", "file": "a.png"}]
    assert not converted(tmp_path, records, {"a.png": PNG}).warnings
