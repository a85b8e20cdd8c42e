"""Which inputs an argument stands for, and of which kind they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from streamshard.convert.braces import expanded
from streamshard.convert.job import convert
from streamshard.convert.kinds import kind_by_name
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import find_origins
from streamshard.convert.progress import SilentProgress
from streamshard.convert.scan import held_objects
from streamshard.errors import ConvertError, StorageError
from streamshard.storage import open_store
from tests.support.jsonl_inputs import converted, picture, run, write_lines


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "b").mkdir(parents=True)
    for number, name in enumerate(("c.jsonl", "a.jsonl", "b/d.jsonl")):
        write_lines(root / name, [{"id": number}])
    (root / "README.md").write_text("x")
    (root / "_SUCCESS").write_text("")
    (root / ".x.jsonl").write_text("{")
    return root


def _names(*sources: str | Path) -> list[str]:
    return [origin.name for origin in find_origins([str(source) for source in sources], None)]


def test_a_folder_is_its_files_at_any_depth_in_order_of_name(tree: Path, tmp_path: Path) -> None:
    assert _names(tree) == ["a.jsonl", "d.jsonl", "c.jsonl"]
    assert [sample["id"] for sample in converted(tree, tmp_path / "A")] == [1, 2, 0]


def test_patterns_are_those_of_a_shell(tree: Path) -> None:
    assert _names(tree / "*.jsonl") == ["a.jsonl", "c.jsonl"]
    assert _names(tree / "**" / "*.jsonl") == ["a.jsonl", "d.jsonl", "c.jsonl"]
    assert _names(tree / "[ab]*") == ["a.jsonl", "d.jsonl"]
    (tree / "[x].jsonl").write_text('{"id": 1}')
    assert _names(tree / "[x].jsonl") == ["[x].jsonl"]  # a file of that very name comes first
    with pytest.raises(ConvertError, match="no file matches the pattern"):
        _names(tree / "*.csv")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("x-{08..11}.tar", ["x-08.tar", "x-09.tar", "x-10.tar", "x-11.tar"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{a,b}/{0..1}", ["a/0", "a/1", "b/0", "b/1"]),
        ("{x}{}{a..c}{1..}", ["{x}{}{a..c}{1..}"]),
        ("plain", ["plain"]),
    ],
)
def test_braces_are_those_of_a_shell(text: str, names: list[str]) -> None:
    assert expanded(text) == names


def test_braces_stand_for_several_sources(tree: Path, tmp_path: Path) -> None:
    assert _names(tree / "{c,a}.jsonl") == ["c.jsonl", "a.jsonl"]
    with pytest.raises(ConvertError, match=r"b\.jsonl': no such file"):
        _names(tree / "{a,b}.jsonl")
    url = f"memory://{tmp_path.name}/braces"
    for number in range(2):
        open_store(url).put(f"{number:03}.jsonl", tree / "a.jsonl")
    assert _names(url + "/{000..001}.jsonl") == ["000.jsonl", "001.jsonl"]
    write_lines(tree / "{a,c}.jsonl", [{"id": 1}])
    assert _names(tree / "{a,c}.jsonl") == ["{a,c}.jsonl"]  # a file of that very name comes first
    with pytest.raises(ConvertError, match="more than 1000000 names"):
        _names(tree / "{0..999}{0..999}{0..1}")
    with pytest.raises(ConvertError, match="source 's3://data/") as found:
        _names("s3://key:secret@data/{0..9999999}.jsonl")
    assert "secret" not in str(found.value)
    assert len(_names(tree / f"{{{','.join(['a', 'c'] * 200)}}}.jsonl")) == 400, "longer than a name may be"


def test_a_pipe_is_no_source(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in ("-", tmp_path / "pipe"):
        with pytest.raises(
            ConvertError, match="cannot be standard input or another pipe: write it into a file"
        ):
            _names(source)


def test_a_source_that_is_named_twice_is_told(tree: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    progress = SilentProgress()
    progress.note = notes.append  # type: ignore[method-assign]
    sources = (str(tree), str(tree / "a.jsonl"))
    convert(ConvertOptions(sources, str(tmp_path / "A"), workers=1), progress)
    assert notes == ["a.jsonl is named 2 times, and its records are taken as often"]


def test_links_to_folders_are_followed_where_images_may_leave_the_root(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for name in ("in/cat/1.png", "else/dog/2.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(picture())
    (root / "dog").symlink_to(tmp_path / "else" / "dog")
    # Ways back, and a second way to what is there.
    (root / "cat" / "up").symlink_to("..")
    (root / "twin").symlink_to("cat")
    (tmp_path / "else" / "dog" / "all").symlink_to(tmp_path / "else")
    (tmp_path / "else" / "dog" / "in").symlink_to(root)
    (root / "gone").symlink_to("nowhere")
    (root / "itself.txt").symlink_to("itself.txt")
    summary = run(root, tmp_path / "A")
    (warning,) = summary.warnings
    assert warning.startswith(
        "links to folders (dog) are not followed, and what is there is left out: --allow-outside"
    )
    samples = converted(root, tmp_path / "B", allow_outside_root=True)
    assert [(sample["image_path"], sample["class"]) for sample in samples] == [
        ("cat/1.png", "cat"),
        ("dog/2.png", "dog"),
    ]
    shutil.rmtree(root / "cat")
    with pytest.raises(
        ConvertError, match=r"known kind .*; links to folders \(dog\) are followed with --allow"
    ):
        run(root, tmp_path / "C")
    (root / "itself.png").symlink_to("itself.png")
    with pytest.raises(ConvertError, match=r"'itself\.png' cannot be read \(Too many levels"):
        run(root, tmp_path / "C")


def test_urls_have_folders_and_patterns_too(tree: Path, tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/data"
    for name in ("c.jsonl", "a.jsonl", "b/d.jsonl", "README.md"):
        open_store(url).put(name, tree / name)
    assert _names(url) == _names(url + "/") == ["a.jsonl", "d.jsonl", "c.jsonl"]
    assert _names(url + "/*.jsonl") == ["a.jsonl", "c.jsonl"]
    assert _names(url + "/**/*.jsonl") == ["a.jsonl", "d.jsonl", "c.jsonl"]
    assert _names(url + "/[!a].jsonl") == ["c.jsonl"]
    with pytest.raises(ConvertError, match="no file matches the pattern"):
        _names(url + "/*.csv")
    with pytest.raises(StorageError, match="nothing"):
        _names(url + "/nothing")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "jsonl"), ("a.JSON.GZ", "jsonl"), ("a.ndjson.zst", "jsonl"), ("a.csv.xz", "csv"), ("a.tab", "tsv"),
        ("a.pq", "parquet"), ("a.arrow", "hf"), ("a.tar.gz", "webdataset"), ("a.txt", None), ("gz", None),
        ("a.b/c", None),
    ],
)  # fmt: skip
def test_endings_tell_the_kind(name: str, kind: str | None) -> None:
    assert kind_by_name(name) == kind


def test_content_tells_more_than_an_ending(tmp_path: Path) -> None:
    for name, head in (
        ("a.jsonl", b"PAR1"),
        ("b", b"ARROW1"),
        ("c.json", bytes(257) + b"ustar" + bytes(300)),
    ):
        (tmp_path / name).write_bytes(head)
    kinds = [
        origin.kind
        for origin in find_origins([str(tmp_path / name) for name in ("a.jsonl", "b", "c.json")], None)
    ]
    assert kinds == ["parquet", "hf", "webdataset"]


def test_a_kind_can_be_forced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a,b\n1,2\n")
    assert converted(tmp_path / "a.txt", tmp_path / "A", kind="csv") == [{"a": "1", "b": "2"}]
    with pytest.raises(ConvertError, match="--from mds takes a folder"):
        run(tmp_path / "a.txt", tmp_path / "B", kind="mds")
    with pytest.raises(ValueError, match=r"kind='xml': expected one of jsonl, csv"):
        ConvertOptions(sources=("a",), out="b", kind="xml")


def test_folders_of_two_kinds_are_refused_and_descriptions_beside_data_are_not(tmp_path: Path) -> None:
    for name in ("a.csv", "b.tsv"):
        (tmp_path / name).write_text("a\n1\n")
    with pytest.raises(ConvertError, match=r"files of several kinds \(1 csv, 1 tsv\); say which with --from"):
        _names(tmp_path)
    assert [origin.name for origin in find_origins([str(tmp_path)], None, "tsv")] == ["b.tsv"]
    write_lines(tmp_path / "c.jsonl", [{}])
    with pytest.raises(ConvertError, match=r"files of several kinds \(1 csv, 1 jsonl, 1 tsv\)"):
        _names(tmp_path)
    for name in ("a.csv", "b.tsv"):
        (tmp_path / name).unlink()
    (tmp_path / "stats.json").write_text("{}")
    assert _names(tmp_path) == ["c.jsonl"]


@pytest.mark.parametrize(
    ("names", "shown", "such"),
    [
        (["train.jsonl", "test.jsonl"], "test.jsonl, train.jsonl", "/test.*"),
        (["data/train-0-of-1.jsonl", "data/validation-0-of-1.jsonl"], "data/train-0", "/data/train-*"),
        (["Train/a.jsonl", "val/a.jsonl"], "Train/a.jsonl, val/a.jsonl", "/Train/"),
    ],
)
def test_files_of_several_splits_are_not_joined_unasked(
    tmp_path: Path, names: list[str], shown: str, such: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_lines(tmp_path / name, [{"a": 1}])
    with pytest.raises(ConvertError) as caught:
        _names(tmp_path)
    assert f"its files are of several splits ({shown}" in str(caught.value)
    assert f"such as '{tmp_path}{such}'" in str(caught.value)
    (tmp_path / "README.md").write_text("no records")
    every = str(caught.value).rpartition("all of them with '")[2].rstrip("'")
    assert len(find_origins([every], None)) == 2
    assert len(find_origins([f"{tmp_path}{such}"], None)) == 1
    (tmp_path / "README.md").unlink()
    assert len(find_origins([f"{tmp_path}/**"], None)) == 2
    found = find_origins([f"{tmp_path}/**/*.jsonl"], None)
    assert len(found) == 2
    (tmp_path / names[0]).rename(tmp_path / "training_notes.jsonl")
    assert len(_names(tmp_path)) == 2


def test_a_strange_index_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(ConvertError, match=r"index\.json: not JSON"):
        _names(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"files": []}))
    with pytest.raises(ConvertError, match="neither an MDS index"):
        _names(tmp_path)


def test_what_lies_in_a_folder_is_not_pointed_out_where_records_have_it(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "lang=de"
    folder.mkdir(parents=True)
    (folder / "r.jsonl").write_text(json.dumps({"pic": "a.png", "lang": "de"}) + "\n")
    (folder / "a.png").write_bytes(picture())
    assert run(tmp_path / "in", tmp_path / "A", file_keys=("pic",)).warnings == ()


def test_lists_of_objects_are_no_columns_of_a_table() -> None:
    splits = {"train": [{"q": 1}, {"q": 2}], "test": [{"q": 3}, {"q": 4}]}
    assert held_objects(splits) == {"train": 2, "test": 2}
