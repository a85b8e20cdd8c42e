"""WebDataset tar files as sources."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, files_of, picture, run, shards_of


def write_tar(path: Path, members: list[tuple[str, Any]], **options: Any) -> Path:
    """A tar file of these members; a value that is no bytes is a TarInfo with more to it."""
    with tarfile.open(path, "w", **options) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                tar.addfile(info)
    return path


def _samples(count: int) -> list[tuple[str, bytes]]:
    return [
        (f"dir.v1/{number:04}.{ending}", content)
        for number in range(count)
        for ending, content in (
            ("jpg", picture("JPEG", color=(number, 0, 0))),
            ("seg.png", picture(color=(0, number, 0))),
            ("txt", f"caption {number} ☃".encode()),
            ("cls", str(number % 3).encode()),
            ("json", json.dumps({"a": [number, None]}).encode()),
            ("bin", bytes([number])),
        )
    ]


def _wanted(number: int) -> dict[str, Any]:
    return {
        "__key__": f"dir.v1/{number:04}",
        "jpg": picture("JPEG", color=(number, 0, 0)),
        "seg.png": picture(color=(0, number, 0)),
        "txt": f"caption {number} ☃",
        "cls": number % 3,
        "json": {"a": [number, None]},
        "bin": bytes([number]),
    }


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_to_mds_sample_for_sample(tmp_path: Path, form: int) -> None:
    source = write_tar(tmp_path / "a.tar", _samples(20), format=form)
    assert converted(source, tmp_path / "A", samples_per_shard=6) == [_wanted(number) for number in range(20)]
    summary = run(source, tmp_path / "B", samples_per_shard=6, workers=2)
    assert summary.columns["jpg"] == "jpeg"
    assert summary.columns["seg.png"] == "png"
    assert summary.warnings == ()
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
    assert run(source, tmp_path / "B", samples_per_shard=6).finished_before


def test_many_packed_tar_files_in_a_folder_are_shuffled(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    samples = _samples(12)
    for number in range(3):
        plain = write_tar(tmp_path / f"{number}.tar", samples[number * 24 : number * 24 + 24])
        (tmp_path / "in" / f"{number}.tar.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "in" / "sizes.json").write_text("{}")
    mixed = converted(tmp_path / "in", tmp_path / "A", shuffle=1)
    assert sorted(mixed, key=lambda sample: sample["__key__"]) == [_wanted(number) for number in range(12)]
    assert mixed != sorted(mixed, key=lambda sample: sample["__key__"])


def test_long_names_of_every_format_are_whole(tmp_path: Path) -> None:
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        key = "d" * 120 + "/" + "ü" * 60
        source = write_tar(tmp_path / "a.tar", [(f"{key}.txt", b"x")], format=form)
        assert converted(source, tmp_path / f"A{form}") == [{"__key__": key, "txt": "x"}]


def test_b044_equal_names_in_two_folders_are_two_samples_and_repeated_keys_are_counted(
    tmp_path: Path,
) -> None:
    members = [("x/1.txt", b"a"), ("y/1.txt", b"b"), ("x/1.cls", b"5"), ("x/1.txt", b"c")]
    source = write_tar(tmp_path / "a.tar", members)
    summary = run(source, tmp_path / "A")
    assert summary.samples == 3
    (warning,) = summary.warnings
    assert warning.startswith("1 records repeat the id of an earlier record; all are kept")


def test_folders_hidden_files_and_files_without_an_ending_are_no_samples(tmp_path: Path) -> None:
    members: list[tuple[str, Any]] = [
        ("./d", (tarfile.DIRTYPE, "")), ("./d/1.txt", b"a"), ("d/.hidden", b""), ("README", b""),
        ("__meta__.json", b"{"), ("d/._1.txt", b""), ("d/1.CLS", b"7"),
    ]  # fmt: skip
    assert converted(write_tar(tmp_path / "a.tar", members), tmp_path / "A") == [
        {"__key__": "d/1", "txt": "a", "cls": 7}
    ]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            [("1.txt", (tarfile.SYMTYPE, "/etc/passwd"))],
            r"a\.tar: sample 1: member '1\.txt' is no regular file",
        ),
        ([("1.txt", (tarfile.LNKTYPE, "../x"))], r"member '1\.txt' is no regular file"),
        ([("1.txt", (tarfile.FIFOTYPE, ""))], r"member '1\.txt' is no regular file"),
        ([("1.txt", b"a"), ("1.txt", b"b")], r"member '1\.txt' stands twice in the sample"),
        ([("1.txt", b"\xff")], r"member 'txt' of '1' is no txt: 'utf-8' codec"),
        ([("1.cls", b"cat")], r"member 'cls' of '1' is no cls"),
        ([("1.json", b"{")], r"member 'json' of '1' is no json"),
        ([("1.jpg", b"\xff\xd8\xff..")], r"image in the record: content is not a readable image"),
    ],
)
def test_bad_samples_are_named_and_skipped(tmp_path: Path, members: list[Any], words: str) -> None:
    source = write_tar(tmp_path / "a.tar", [*members, ("2.npy", b"good")])
    with pytest.raises(ConvertError, match=words):
        run(source, tmp_path / "A")
    assert converted(source, tmp_path / "A", on_error="skip") == [{"__key__": "2", "npy": b"good"}]


def test_names_that_leave_the_folder_write_nothing_anywhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    members = [("../../evil.txt", b"a"), ("/etc/evil.txt", b"b")]
    source = write_tar(tmp_path / "in" / "a.tar", members)
    samples = converted(source, tmp_path / "in" / "A")
    assert [sample["__key__"] for sample in samples] == ["../../evil", "/etc/evil"]
    assert not any("evil" in name for name in files_of(tmp_path))


def test_a_pickle_stays_bytes(tmp_path: Path) -> None:
    content = pickle.dumps({"a": 1})
    (sample,) = converted(
        write_tar(tmp_path / "a.tar", [("1.pkl", content), ("1.pyd", content)]), tmp_path / "A"
    )
    assert sample == {"__key__": "1", "pkl": content, "pyd": content}


def test_a_cut_or_broken_tar_is_named_wherever_it_is_cut(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", _samples(3))
    content = source.read_bytes()
    end = len(content.rstrip(b"\0")) + 511 & ~511
    for length in (end, end - 512, end - 700, 512, 1024, 100):
        source.write_bytes(content[:length])
        with pytest.raises(
            ConvertError, match=r"'a\.tar': (the tar file (ends without|has a broken)|not a sound tar)"
        ):
            run(source, tmp_path / "A")
    broken = bytearray(content)
    second = 512 + (len(_samples(1)[0][1]) + 511 & ~511)
    broken[second : second + 76] = b"\xff" * 76
    source.write_bytes(bytes(broken))
    with pytest.raises(ConvertError, match="a broken header"):
        run(source, tmp_path / "A")
    assert not (tmp_path / "A" / "index.json").exists()


@pytest.mark.filterwarnings("ignore")  # webdataset leaves files open
def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as sink:
        for number in range(5):
            sink.write(
                {
                    "__key__": f"{number}",
                    "jpg": picture("JPEG"),
                    "cls": number,
                    "json": {"n": number},
                    "txt": "ü",
                }
            )
    theirs = list(webdataset.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode())
    ours = converted(tmp_path / "a.tar", tmp_path / "A")
    assert [(s["__key__"], s["cls"], s["json"], s["txt"]) for s in ours] == [
        (s["__key__"], s["cls"], s["json"], s["txt"]) for s in theirs
    ]
    assert [s["jpg"] for s in ours] == [picture("JPEG")] * 5
