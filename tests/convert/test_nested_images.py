"""Images inside chat messages, as dicts, as base64: found without being told."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, picture, run, write_lines

_PICTURES = [picture(color=(number, 0, 0), size=(16, 16)) for number in range(3)]
_BASE64 = [base64.b64encode(content).decode() for content in _PICTURES]
_URIS = [f"data:image/png;base64,{text}" for text in _BASE64]
_HEAD = "data:image/png;base64,"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, content in enumerate(_PICTURES):
        (tmp_path / f"{number}.png").write_bytes(content)
    return tmp_path


def _user(*parts: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": "what?"}]},
        {"role": "assistant", "content": "a"},
    ]


_FORMS: list[tuple[Any, Any, str]] = [
    ({"type": "image_url", "image_url": {"url": "0.png", "detail": "low"}}, None, "0.png"),
    ({"type": "image_url", "image_url": "0.png"}, None, "0.png"),
    ({"type": "input_image", "image_url": _URIS[0]}, {"type": "input_image", "image_url": _HEAD}, "data:"),
    ({"type": "image", "image": "0.png", "max_pixels": 50176}, None, "0.png"),
    ({"image": "0.png"}, None, "0.png"),
    ({"type": "image", "path": "0.png"}, None, "0.png"),
    ({"type": "image", "url": "0.png"}, None, "0.png"),
    ({"type": "image", "base64": _BASE64[0]}, {"type": "image", "base64": ""}, "data:"),
    (
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _BASE64[0]}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}},
        "data:",
    ),
    (
        {"type": "image_url", "image_url": {"url": _URIS[0]}},
        {"type": "image_url", "image_url": {"url": _HEAD}},
        "data:",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("part", "kept", "path"), _FORMS, ids=range(len(_FORMS)))
def test_b039_an_image_inside_a_message_is_found_and_the_chat_kept(
    folder: Path, tmp_path: Path, part: Any, kept: Any, path: str
) -> None:
    source = write_lines(folder / "a.jsonl", [{"id": 1, "messages": _user(part)}])
    summary = run(source, tmp_path / "A")
    assert summary.warnings == ()
    (sample,) = converted(source, tmp_path / "B")
    assert sample == {
        "id": 1,
        "messages": _user(kept or part),
        "images": [_PICTURES[0]] if summary.columns["images"] == "list[png]" else _PICTURES[0],
        "images_path": [path] if summary.columns["images"] == "list[png]" else path,
    }


def test_images_come_in_the_order_in_which_they_stand(folder: Path, tmp_path: Path) -> None:
    def image(number: int) -> dict[str, Any]:
        return {"type": "image", "image": f"{number}.png"}

    rows = [
        {"messages": _user(image(2), {"type": "text", "text": "and"}, image(0)) + _user(image(1))},
        {"messages": [{"role": "user", "content": "no image"}]},
        {"conversations": [{"from": "human", "value": [image(1)]}]},
        {"content": [image(0), {"type": "text", "text": "x"}]},
    ]
    source = write_lines(folder / "a.jsonl", rows)
    assert [sample["images_path"] for sample in converted(source, tmp_path / "A")] == [
        ["2.png", "0.png", "1.png"], [], ["1.png"], ["0.png"],
    ]  # fmt: skip
    assert run(source, tmp_path / "A").finished_before
    named = write_lines(folder / "b.jsonl", [{**row, "image": "0.png"} for row in rows[:2]])
    samples = converted(named, tmp_path / "B", image_keys=("messages",))
    assert [sample["images_path"] for sample in samples] == [["2.png", "0.png", "1.png"], []]
    assert [sample["image"] for sample in samples] == ["0.png", "0.png"]
    assert [sample["messages"] for sample in samples] == [row["messages"] for row in rows[:2]]


def test_bare_marks_are_counted_against_the_images_beside_the_chat(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"images": ["0.png", "1.png"], "messages": _user({"type": "image"}, {"type": "image"})},
        {"images": ["0.png"], "messages": _user({"type": "image"}, {"type": "image"})},
        {"images": [], "messages": _user({"type": "image"})},
    ]
    source = write_lines(folder / "a.jsonl", rows)
    summary = run(source, tmp_path / "A")
    assert summary.warnings == (
        "1 of 3 records have image tags in their text and no image (first: a.jsonl:3)",
        "1 of 3 records have another number of <image> tags than images (first: a.jsonl:2 has 2 <image> and 1 image)",
    )


def test_images_beside_and_inside_a_chat_are_refused_unless_chosen(folder: Path, tmp_path: Path) -> None:
    row = {"images": ["0.png"], "messages": _user({"type": "image", "image": "1.png"})}
    source = write_lines(folder / "a.jsonl", [row])
    with pytest.raises(
        ConvertError, match=r"a\.jsonl:1: images under 'images' and inside the messages under 'messages'"
    ):
        run(source, tmp_path / "A")
    (sample,) = converted(source, tmp_path / "B", image_keys=("images",))
    assert sample["images"] in ([_PICTURES[0]], _PICTURES[0])
    (sample,) = converted(write_lines(folder / "b.jsonl", [{**row, "images": []}]), tmp_path / "C")
    assert sample["images_path"] in (["1.png"], "1.png")


def test_problems_inside_messages_name_line_and_path(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": _user({"type": "image", "image": "0.png"})},
        {"messages": _user({"type": "image_url", "image_url": {"url": "nope.png"}})},
        {"messages": _user({"type": "image", "image": "https://host/a.png"})},
        {"messages": _user({"type": "image", "image": 5})},
        {"messages": _user({"type": "image", "base64": "!!"})},
        {"messages": _user({"type": "image", "image": "/etc/hostname"})},
    ]
    with pytest.raises(ConvertError) as caught:
        run(write_lines(folder / "a.jsonl", rows), tmp_path / "A")
    text = str(caught.value)
    for words in (
        "a.jsonl:2: image 'nope.png' does not exist",
        "a.jsonl:3: image 'https://host/a.png' is a URL",
        "a.jsonl:4: an image inside 'messages' is int '5'",
        "a.jsonl:5: an image inside 'messages': broken base64",
        "a.jsonl:6: image '/etc/hostname' is '/etc/hostname', outside the image root",
    ):
        assert words in text


def test_other_parts_and_odd_messages_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "video", "video": "v.mp4"}, {"type": "text"}]}]},
        {"messages": [{"role": "user", "content": [{"type": 5, "image": None}, ["image"], None, "image"]}, 3]},
        {"messages": {"kind": "image", "image": "0.png"}},
        {"messages": [[[[[[{"type": "image", "image": "0.png"}]]]]]]},
    ]  # fmt: skip
    assert converted(write_lines(folder / "a.jsonl", rows), tmp_path / "A") == rows


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"bytes": _BASE64[0], "path": "x/y.png"}, "y.png"),
        ({"bytes": None, "path": "0.png"}, "0.png"),
        ({"path": "0.png"}, "0.png"),
        (_BASE64[0], "data:"),
        ("\n".join(_BASE64[0][begin : begin + 76] for begin in range(0, 200, 76)), "data:"),
        (_URIS[0], "data:"),
    ],
)
def test_b039_images_in_other_clothes(folder: Path, tmp_path: Path, value: Any, path: str) -> None:
    value = value if not isinstance(value, str) or "\n" not in value else "\n".join(
        _BASE64[0][begin : begin + 76] for begin in range(0, len(_BASE64[0]), 76)
    )  # fmt: skip
    samples = converted(write_lines(folder / "a.jsonl", [{"image": value}, {"image": value}]), tmp_path / "A")
    assert samples == [{"image": _PICTURES[0], "image_path": path}] * 2


def test_text_that_only_begins_like_base64_is_a_path(folder: Path, tmp_path: Path) -> None:
    name = "iVBORw0KGgo" + "a" * 60 + ".png"
    (folder / name).write_bytes(_PICTURES[1])
    (sample,) = converted(write_lines(folder / "a.jsonl", [{"image": name}]), tmp_path / "A")
    assert sample["image_path"] == name


def test_nested_images_of_parquet_keep_no_bytes_in_the_chat(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    messages = [[{"role": "user", "content": [{"type": "image", "image": _PICTURES[1]}]}]]
    pq.write_table(pa.table({"messages": messages}), tmp_path / "a.parquet")
    (sample,) = converted(tmp_path / "a.parquet", tmp_path / "A")
    assert sample["images"] == _PICTURES[1]
    assert json.dumps(sample["messages"]) == json.dumps(
        [{"role": "user", "content": [{"type": "image", "image": None}]}]
    )
    assert "images_path" not in sample
