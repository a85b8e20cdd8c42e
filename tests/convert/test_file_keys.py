"""Audio and video files: stored as they are under ``file_keys``, pointed out where nobody has named the keys."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset
from streamshard.convert.job import dry_run
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, picture, run, write_lines

_WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(range(40))
_MP4 = b"\x00\x00\x00\x18ftypmp42" + bytes(1000)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a.wav").write_bytes(_WAV)
    (tmp_path / "media" / "v.mp4").write_bytes(_MP4)
    # An image by its first bytes, and a broken one.
    (tmp_path / "media" / "half.png").write_bytes(picture()[:40])
    (tmp_path / "empty.wav").write_bytes(b"")
    return tmp_path


def _message(rows: list[dict[str, Any]], folder: Path, **options: Any) -> str:
    with pytest.raises(ConvertError) as caught:
        run(write_lines(folder / "bad.jsonl", rows), folder / "bad", **options)
    return str(caught.value)


def test_files_are_stored_as_they_are_with_their_names(files: Path) -> None:
    text = base64.b64encode(_WAV).decode()
    rows: list[dict[str, Any]] = [
        {"videos": ["media/v.mp4"], "sound": "media/a.wav"},
        {"videos": "media/v.mp4", "sound": {"bytes": text, "path": "/of/elsewhere/b.flac"}},
        {"videos": [], "sound": f"data:audio/x-wav;base64,{text}"},
        {"videos": None, "sound": {"path": "media/a.wav"}},
        {"sound": "media/half.png"},
    ]
    source = write_lines(files / "a.jsonl", rows)
    summary = run(source, files / "A", file_keys=("videos", "sound"))
    assert list(LocalDataset(str(files / "A"))) == [
        {"sound": _WAV, "sound_path": "media/a.wav", "videos": _MP4, "videos_path": "media/v.mp4"},
        {"sound": _WAV, "sound_path": "b.flac", "videos": _MP4, "videos_path": "media/v.mp4"},
        {"sound": _WAV, "sound_path": "data:audio/x-wav", "videos": b"", "videos_path": ""},
        {"sound": _WAV, "sound_path": "media/a.wav", "videos": b"", "videos_path": ""},
        {"sound": picture()[:40], "sound_path": "media/half.png", "videos": b"", "videos_path": ""},
    ]
    assert summary.columns == {
        "sound": "bytes",
        "sound_path": "str",
        "videos": "bytes",
        "videos_path": "str",
    }
    assert summary.files == {"sound": {"wav": 3, "flac": 1, "other": 1}, "videos": {"mp4": 2}}
    assert summary.images == {}
    assert summary.warnings == ()
    assert "files under 'sound': 3 wav, 1 flac, 1 other" in summary.lines()
    assert run(source, files / "A", file_keys=("sound", "videos")).finished_before


def test_several_files_in_a_sample_are_a_list(files: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"videos": ["media/v.mp4", "media/a.wav"]},
        {"videos": "media/v.mp4"},
        {"videos": []},
        {"videos": [f"data:audio/wav;base64,{base64.b64encode(_WAV).decode()}", {"path": "media/a.wav"}]},
        {},
    ]
    expected = [
        {"videos": [_MP4, _WAV], "videos_path": ["media/v.mp4", "media/a.wav"]},
        {"videos": [_MP4], "videos_path": ["media/v.mp4"]},
        {"videos": [], "videos_path": []},
        {"videos": [_WAV, _WAV], "videos_path": ["data:audio/wav", "media/a.wav"]},
        {"videos": [], "videos_path": []},
    ]
    source = write_lines(files / "a.jsonl", rows)
    summary = run(source, files / "A", file_keys=("videos",))
    assert list(LocalDataset(str(files / "A"))) == expected
    assert summary.columns == {"videos": "list[bytes]", "videos_path": "json"}
    assert summary.files == {"videos": {"mp4": 2, "wav": 3}}
    (warning,) = summary.warnings
    assert "'videos': some records have several" in warning
    assert "mosaicml-streaming does not read" in warning
    assert run(source, files / "A", file_keys=("videos",)).finished_before
    # Sharded again, added to, and cut elsewhere.
    assert converted(files / "A", files / "B", size_limit=100) == expected
    one = write_lines(files / "one.jsonl", [{"videos": "media/a.wav"}])
    run(one, files / "A", file_keys=("videos",), append=True)
    assert LocalDataset(str(files / "A"))[5] == {"videos": [_WAV], "videos_path": ["media/a.wav"]}
    run(one, files / "C", file_keys=("videos",))
    with pytest.raises(ConvertError, match=r"'videos' \(bytes\) has at most one file"):
        run(source, files / "C", file_keys=("videos",), append=True)


def test_files_stand_beside_images_whatever_is_made_of_these(files: Path) -> None:
    (files / "big.png").write_bytes(picture(size=(64, 64)))
    held = f"data:image/png;base64,{base64.b64encode(picture(size=(64, 64))).decode()}"
    rows = [
        {"image": "big.png", "audio": "media/a.wav", "text": "<image> what is heard?"},
        # The same file as a picture and as it is.
        {"image": "big.png", "audio": "big.png", "text": "<image>"},
        {"image": "big.png", "audio": held, "text": "<image>"},
    ]
    source = write_lines(files / "a.jsonl", rows)
    samples = converted(source, files / "A", file_keys=("audio",), max_side=16)
    assert [sample["audio"] for sample in samples] == [_WAV, *[picture(size=(64, 64))] * 2]
    assert [len(sample["image"]) < len(picture(size=(64, 64))) for sample in samples] == [True] * 3
    summary = run(source, files / "A", file_keys=("audio",), overwrite=True)
    assert summary.warnings == ()
    assert (summary.images, summary.files) == ({"image": {"png": 3}}, {"audio": {"wav": 1, "other": 2}})
    (sample, *_) = converted(source, files / "B", file_keys=("audio",), image_keys=("none",))
    assert (sample["image"], sample["audio"]) == ("big.png", _WAV)


def test_a_usual_key_of_images_may_hold_files(files: Path) -> None:
    rows = [{"image": "half.png", "images": ["whole.png"]}]
    (files / "media" / "whole.png").write_bytes(picture())
    source = write_lines(files / "a.jsonl", rows)
    (sample,) = converted(source, files / "A", file_keys=("image",), image_root=str(files / "media"))
    assert (sample["image"], sample["images"]) == (picture()[:40], picture())
    options: dict[str, Any] = {"image_root": str(files / "media"), "image_keys": ("none",)}
    assert run(source, files / "B", file_keys=("image",), **options).warnings == ()


def test_all_that_is_wrong_with_files_is_told_with_its_line(files: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"audio": "media/a.wav"},
        {"audio": "gone.wav"},
        {"audio": "empty.wav"},
        {"audio": "../outside.wav"},
        {"audio": 5},
        {"audio": ["media/a.wav", 7]},
        {"audio": "https://example.org/a.wav"},
        {"audio": "data:audio/wav;base64,????"},
    ]
    message = _message(rows, files, file_keys=("audio",))
    for expected in (
        "bad.jsonl:2: file 'gone.wav' does not exist",
        "bad.jsonl:3: file 'empty.wav' is an empty file",
        "bad.jsonl:4: file '../outside.wav'",
        "bad.jsonl:5: 'audio' is int '5', expected a path",
        "leave out its --file-key",
        "bad.jsonl:6: audio[1] is int '7', expected a path",
        "bad.jsonl:7: file 'https://example.org/a.wav' is a URL",
        "bad.jsonl:8: broken base64",
    ):
        assert expected in message
    assert "7 records cannot be converted" in message
    summary = run(files / "bad.jsonl", files / "A", file_keys=("audio",), on_error="skip")
    assert (summary.samples, summary.skipped["missing file"], summary.skipped["empty file"]) == (1, 1, 1)
    again = run(files / "bad.jsonl", files / "A", file_keys=("audio",), on_error="skip")
    assert again.finished_before
    rejected = [json.loads(line) for line in (files / "A" / "rejected.jsonl").read_text().splitlines()]
    assert [(each["line"], each["path"]) for each in rejected[:2]] == [(2, "gone.wav"), (3, "empty.wav")]


def test_a_file_that_changes_between_check_and_shard_is_noticed(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert import job

    real = job.make_plan

    def and_then_change(*args: Any) -> Any:
        plan = real(*args)
        (files / "media" / "v.mp4").write_bytes(_MP4 + b"more")
        return plan

    monkeypatch.setattr(job, "make_plan", and_then_change)
    message = _message([{"video": "media/v.mp4"}], files, file_keys=("video",))
    assert "bad.jsonl:1" in message
    assert "the input changed while it was converted" in message


def test_names_of_files_that_nobody_has_named_are_pointed_out(files: Path) -> None:
    rows = [
        {"videos": ["media/v.mp4"], "audio_path": "media/a.wav", "heard": "x.MP3", "text": "no .wav here"}
    ]
    source = write_lines(files / "a.jsonl", rows)
    shown = dry_run(ConvertOptions(sources=(str(source),), out=str(files / "A"), workers=1))
    (warning,) = shown.warnings
    for key in ("videos", "audio_path", "heard"):
        assert f"--file-key {key}" in warning
    assert "text'" not in warning
    assert converted(source, files / "A", file_keys=("none",)) == rows
    assert run(source, files / "A", file_keys=("none",), overwrite=True).warnings == ()
    keys = ("videos", "audio_path", "heard")
    assert "bad.jsonl:1: file 'x.MP3' does not exist" in _message(rows, files, file_keys=keys)


def test_a_name_beside_what_it_names_is_not_pointed_out(files: Path) -> None:
    (files / "f.png").write_bytes(picture())
    frames = write_lines(files / "a.jsonl", [{"image": "f.png", "from": "film.mp4"}])
    assert run(frames, files / "A").warnings == ()


@pytest.mark.parametrize("path", ["a.wav", "/of/elsewhere/a.wav"])
def test_audio_in_a_table_is_the_same_column_named_or_not(files: Path, path: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = files / "a.parquet"
    pq.write_table(pa.table({"audio": [{"bytes": _WAV, "path": path}], "path": ["a.wav"]}), table)
    assert run(table, files / "B").warnings == ()
    named = run(table, files / "C", file_keys=("audio",))
    assert named.files == {"audio": {"wav": 1}}
    assert list(LocalDataset(str(files / "C"))) == list(LocalDataset(str(files / "B")))


def test_lists_of_audio_and_of_binary_in_a_table(files: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    sound = {"bytes": _WAV, "path": "/of/elsewhere/a.wav"}
    columns = {
        "sounds": pa.array([[sound, sound], [], None, [sound]]),
        "parts": pa.array([[b"a", b"bc"], [b""], [], None], pa.list_(pa.large_binary())),
    }
    pq.write_table(pa.table(columns), files / "a.parquet")
    summary = run(files / "a.parquet", files / "A")
    assert {k: v for k, v in summary.columns.items() if k != "sounds_path"} == dict.fromkeys(
        columns, "list[bytes]"
    )
    (warning,) = summary.warnings
    assert "which mosaicml-streaming does not read" in warning
    samples = list(LocalDataset(str(files / "A")))
    assert [sample["sounds"] for sample in samples] == [[_WAV, _WAV], [], [], [_WAV]]
    assert [sample["parts"] for sample in samples] == [[b"a", b"bc"], [b""], [], []]
    assert [sample["sounds_path"] for sample in samples[::3]] == [["a.wav", "a.wav"], ["a.wav"]]
    mixed = pa.table({"a": pa.array([[{"bytes": b"x", "path": None, "n": 1}]])})
    pq.write_table(mixed, files / "b.parquet")
    with pytest.raises(ConvertError, match="binary inside a nested value"):
        run(files / "b.parquet", files / "B")


def test_more_files_can_be_added(files: Path) -> None:
    first = write_lines(files / "a.jsonl", [{"audio": "media/a.wav"}])
    more = write_lines(files / "b.jsonl", [{"audio": "media/v.mp4"}, {"audio": None}])
    run(first, files / "A", file_keys=("audio",))
    run(more, files / "A", file_keys=("audio",), append=True)
    assert [(each["audio"], each["audio_path"]) for each in LocalDataset(str(files / "A"))] == [
        (_WAV, "media/a.wav"),
        (_MP4, "media/v.mp4"),
        (b"", ""),
    ]
    again = converted(files / "A", files / "B")
    assert [each["audio"] for each in again] == [_WAV, _MP4, b""]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"file_keys": ("none", "a")}, "'none' stands alone"),
        ({"file_keys": ("",)}, "file_keys: expected the name of a key"),
        ({"file_keys": ("a",), "image_keys": ("a",)}, "'a' is also an image key"),
        ({"file_keys": ("a",), "columns": (("a", "str"),)}, "also a file key"),
    ],
)
def test_keys_that_cannot_be_are_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        ConvertOptions(sources=("a.jsonl",), out="A", **options)


def test_a_key_that_no_record_has_is_refused(files: Path) -> None:
    assert "--file-key 'audoi': no record has that key; there are: 'audio'" in _message(
        [{"audio": "media/a.wav"}], files, file_keys=("audoi",)
    )
