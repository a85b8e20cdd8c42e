"""Audio and video inside chat messages: pointed out by default, stored in columns of their own with ``file_keys``."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, convert_records
from streamshard.convert.media_parts import take_media
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, picture, run, write_lines

_WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(range(40))
_MP4 = b"\x00\x00\x00\x18ftypmp42" + bytes(100)
_BASE64 = base64.b64encode(_WAV).decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.wav").write_bytes(_WAV)
    (tmp_path / "v.mp4").write_bytes(_MP4)
    (tmp_path / "0.png").write_bytes(picture())
    return tmp_path


def _user(*parts: Any) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": [*parts, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "a"},
    ]


_FORMS: list[tuple[Any, Any, str, str]] = [
    ({"type": "audio", "audio": "a.wav"}, None, "audios", "a.wav"),
    ({"type": "video", "video": "v.mp4", "fps": 2}, None, "videos", "v.mp4"),
    ({"audio": "a.wav"}, None, "audios", "a.wav"),
    ({"type": "audio", "audio_url": "a.wav"}, None, "audios", "a.wav"),
    ({"type": "audio_url", "audio_url": {"url": "a.wav"}}, None, "audios", "a.wav"),
    ({"type": "video_url", "video_url": {"url": "v.mp4"}}, None, "videos", "v.mp4"),
    ({"type": "audio", "path": "a.wav"}, None, "audios", "a.wav"),
    ({"type": "audio", "base64": _BASE64}, {"type": "audio", "base64": ""}, "audios", "data:"),
    (
        {"type": "input_audio", "input_audio": {"data": _BASE64, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        "audios",
        "data:audio/wav",
    ),
    (
        {"inline_data": {"mime_type": "audio/wav", "data": _BASE64}},
        {"inline_data": {"mime_type": "audio/wav", "data": ""}},
        "audios",
        "data:audio/wav",
    ),
    ({"type": "file", "mediaType": "video/mp4", "data": "data:video/mp4;base64," + _BASE64},
     {"type": "file", "mediaType": "video/mp4", "data": "data:video/mp4;base64,"}, "videos", "data:video/mp4"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "kept", "column", "path"), _FORMS, ids=range(len(_FORMS)))
def test_a_file_inside_a_message_is_stored_and_the_chat_kept(
    folder: Path, part: Any, kept: Any, column: str, path: str
) -> None:
    rows = [{"id": 1, "messages": _user(part)}, {"id": 2, "messages": _user()}]
    source = write_lines(folder / "a.jsonl", rows)
    content = _MP4 if path == "v.mp4" else _WAV
    assert converted(source, folder / "A", file_keys=("messages",)) == [
        {"id": 1, "messages": _user(kept or part), column: content, f"{column}_path": path},
        {"id": 2, "messages": _user(), column: b"", f"{column}_path": ""},
    ]
    summary = run(source, folder / "B")
    (warning,) = summary.warnings
    assert (
        "messages under 'messages' name audio or video, whose files are not stored: --file-key messages"
        in warning
    )
    assert set(summary.columns) == {"id", "messages"}
    assert run(source, folder / "C", file_keys=("none",)).warnings == ()


def test_files_come_in_their_order_beside_images_and_can_be_added_to(folder: Path) -> None:
    frames = {"type": "video", "video": ["0.png", "v.mp4"]}
    sound = {"type": "audio", "audio": "a.wav"}
    seen = {"type": "image", "image": "0.png"}
    rows = [
        {"messages": _user(seen, sound, frames, {"type": "video", "video": "v.mp4"}) + _user(sound)},
        {"messages": _user({"type": "audio"}, {"type": "video", "video": []})},
    ]
    source = write_lines(folder / "a.jsonl", rows)
    expected = [
        {
            "messages": rows[0]["messages"],
            "images": [picture()], "images_path": ["0.png"],
            "audios": [_WAV, _WAV], "audios_path": ["a.wav", "a.wav"],
            "videos": [picture(), _MP4, _MP4], "videos_path": ["0.png", "v.mp4", "v.mp4"],
        },
        {
            "messages": rows[1]["messages"],
            "images": [], "images_path": [], "audios": [], "audios_path": [], "videos": [], "videos_path": [],
        },
    ]  # fmt: skip
    out = folder / "A"
    summary = run(source, out, file_keys=("messages",), append=True)
    assert (summary.images, summary.files) == (
        {"images": {"png": 1}},
        {"audios": {"wav": 2}, "videos": {"mp4": 2, "other": 1}},
    )
    assert list(LocalDataset(str(out), decode_images=False)) == expected
    assert run(source, out, file_keys=("messages",), append=True).finished_before
    more = write_lines(folder / "b.jsonl", rows[::-1])
    run(more, out, file_keys=("messages",), append=True)
    assert list(LocalDataset(str(out), decode_images=False)) == [*expected, *expected[::-1]]
    assert converted(out, folder / "B", samples_per_shard=1) == [*expected, *expected[::-1]]
    run(write_lines(folder / "c.jsonl", rows[1:]), out, file_keys=("messages",), append=True)
    assert LocalDataset(str(out), decode_images=False)[4] == expected[1]


def test_images_of_chats_are_added_to_those_of_chats(folder: Path) -> None:
    rows = [{"messages": _user({"type": "image", "image": "0.png"})}, {"messages": _user()}]
    for name in ("a", "b"):
        run(
            write_lines(folder / f"{name}.jsonl", [*rows, {"messages": _user(), "n": name}]),
            folder / "A",
            append=True,
        )
    samples = list(LocalDataset(str(folder / "A"), decode_images=False))
    assert [sample["images"] for sample in samples] == [[picture()], [], []] * 2
    assert [sample["messages"] for sample in samples[3:5]] == [row["messages"] for row in rows]


def test_what_is_wrong_is_told_with_its_line(folder: Path) -> None:
    rows = [
        {"messages": _user({"type": "audio", "audio": "a.wav"})},
        {"messages": _user({"type": "audio", "audio": "gone.wav"})},
        {"messages": _user({"type": "video", "video": 5})},
        {"messages": _user({"type": "audio", "base64": "!!"})},
        {"messages": _user({"type": "audio", "audio": "a.wav"}), "audios": "mine"},
        {"messages": _user({"type": "video", "video": "https://example.org/a.mp4"})},
    ]
    with pytest.raises(ConvertError) as caught:
        run(write_lines(folder / "a.jsonl", rows), folder / "A", file_keys=("messages",))
    for text in (
        "a.jsonl:2: file 'gone.wav' does not exist",
        "a.jsonl:3: video inside 'messages' is int '5', expected a path",
        "a.jsonl:4: audio inside 'messages': broken base64",
        "a.jsonl:5: audio inside the messages under 'messages' belongs into column 'audios'",
        "a.jsonl:6: file 'https://example.org/a.mp4' is a URL",
    ):
        assert text in str(caught.value)


def test_a_key_of_files_in_some_records_and_of_messages_in_others_is_refused(folder: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"content": "a.wav"},
        {"content": _user({"type": "audio", "audio": "a.wav"})},
    ]
    with pytest.raises(
        ConvertError, match="--file-key content: 1 of 2 records have files there, and others messages"
    ):
        run(write_lines(folder / "a.jsonl", rows), folder / "A", file_keys=("content",))


def test_files_of_messages_from_tables(folder: Path) -> None:
    rows = [
        {
            "messages": _user(
                {"type": "audio", "audio": {"bytes": _WAV, "path": "of/elsewhere.wav"}},
                {"type": "image", "image": {"bytes": picture(), "path": "x/y.png"}},
                {"image": {"bytes": picture(), "path": None}},
            )
        }
    ]
    convert_records(rows, folder / "A", workers=1, file_keys=("messages",))
    (sample,) = LocalDataset(str(folder / "A"), decode_images=False)
    assert (sample["audios"], sample["audios_path"]) == (_WAV, "elsewhere.wav")
    assert (sample["images"], sample["images_path"]) == ([picture()] * 2, ["y.png", ""])
    assert sample["messages"] == _user(
        {"type": "audio", "audio": {"bytes": None, "path": "of/elsewhere.wav"}},
        {"type": "image", "image": {"bytes": None, "path": "x/y.png"}},
        {"image": {"bytes": None, "path": None}},
    )


def test_what_is_no_part_stays(folder: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "audio": "a.wav", "content": "x"}, {"type": 5}, "audio", None]},
        {"messages": [{"role": "user", "content": [{"type": "video"}, {"audio": 3}, {"type": "audios"}]}]},
    ]
    for row in rows:
        assert take_media(row["messages"]) == (row["messages"], {})
    deep: Any = {"type": "audio", "audio": "a.wav"}
    for _ in range(400):
        deep = [deep]
    assert take_media(deep)[1] == {}
