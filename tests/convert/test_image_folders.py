"""Trees of images as sources."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest

from streamshard.errors import ConvertError
from streamshard.storage import open_store
from tests.support.jsonl_inputs import converted, picture, run, shards_of


def _tree(root: Path, names: dict[str, bytes]) -> Path:
    for name, content in names.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


_PETS = {
    "dog/b.PNG": picture(color=(1, 0, 0)),
    "cat/a.jpg": picture("JPEG"),
    "cat/deep/er/c.png": picture(color=(2, 0, 0)),
    "notes/readme.txt": b"not an image",
    ".hidden/x.png": b"",
    "cat/.DS_Store": b"",
    "cat/Thumbs.db": b"",
}


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    root = _tree(tmp_path / "pets", _PETS)
    samples = converted(root, tmp_path / "A")
    assert [(s["image_path"], s["class"], s["label"], s["image"]) for s in samples] == [
        ("cat/a.jpg", "cat", 0, _PETS["cat/a.jpg"]),
        ("cat/deep/er/c.png", "cat", 0, _PETS["cat/deep/er/c.png"]),
        ("dog/b.PNG", "dog", 1, _PETS["dog/b.PNG"]),
    ]
    assert run(root, tmp_path / "A").finished_before
    (root / "dog/b.PNG").write_bytes(picture(color=(9, 9, 9), size=(30, 30)))
    with pytest.raises(ConvertError, match="other records or images"):
        run(root, tmp_path / "A")


def test_a_flat_folder_is_images_alone(tmp_path: Path) -> None:
    root = _tree(tmp_path / "flat", {"b.png": picture(), "a.webp": picture("WEBP")})
    assert [sample["image_path"] for sample in converted(root, tmp_path / "A")] == ["a.webp", "b.png"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_metadata_describes_the_images(tmp_path: Path, kind: str, encoding: str) -> None:
    rows = [{"file_name": "x/2.png", "text": "two"}, {"file_name": "1.png", "text": "one, uno"}]
    metadata = (
        "".join(json.dumps(row) + "\n" for row in rows)
        if kind == "jsonl"
        else 'file_name,text\nx/2.png,two\n1.png,"one, uno"\n'
    )
    root = _tree(
        tmp_path / "all",
        {
            "1.png": picture(),
            "x/2.png": picture(),
            "3.png": picture(),
            f"metadata.{kind}": metadata.encode(encoding),
        },
    )
    samples = converted(root, tmp_path / "A")
    assert [(sample["image_path"], sample["text"]) for sample in samples] == [
        ("x/2.png", "two"),
        ("1.png", "one, uno"),
    ]


def _metadata_parquet(rows: list[dict[str, object]]) -> bytes:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    out = BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_metadata_may_name_several_images_of_a_row(tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, object]] = [
        {
            "file_name": "1.png",
            "mask_file_name": "m/1.png",
            "frame_file_names": ["f/1.jpg", "f/2.jpg"],
            "original_file_name": "DSC_1.JPG",
            "n": 1,
        },
        {
            "file_name": "2.png",
            "mask_file_name": None,
            "frame_file_names": [],
            "original_file_name": None,
            "n": 2,
        },
    ]
    if kind == "jsonl":
        metadata = "".join(json.dumps(row) + "\n" for row in rows).encode()
    elif kind == "parquet":
        metadata = _metadata_parquet(rows)
    else:
        text = ",".join(rows[0]) + "\n1.png,m/1.png,\"['f/1.jpg', 'f/2.jpg']\",DSC_1.JPG,1\n2.png,,,,2\n"
        metadata = text.encode()
    files = {name: picture(color=(n, 0, 0)) for n, name in enumerate(["1.png", "2.png", "m/1.png"])}
    files |= {name: picture("JPEG", color=(n, 9, 0)) for n, name in enumerate(["f/1.jpg", "f/2.jpg"])}
    root = _tree(tmp_path / "all", {**files, f"metadata.{kind}": metadata})
    one, two = converted(root, tmp_path / "A")
    assert (one["image"], one["image_path"]) == (files["1.png"], "1.png")
    assert (one["mask"], one["mask_path"]) == ([files["m/1.png"]], ["m/1.png"])
    assert one["frame"] == [files["f/1.jpg"], files["f/2.jpg"]]
    assert one["original_file_name"] == "DSC_1.JPG"  # names no image of the folder
    assert (two["image"], two["mask"], two["frame"]) == (files["2.png"], [], [])
    assert run(root, tmp_path / "A").finished_before
    renamed = converted(root, tmp_path / "B", rename=(("mask", "m"),), drop=("frame",))
    assert (renamed[0]["m"], "frame" in renamed[0]) == ([files["m/1.png"]], False)


def test_metadata_of_lists_alone_is_a_column_of_lists(tmp_path: Path) -> None:
    metadata = (
        b'{"file_names": ["1.png", "2.png"], "text": "two"}\n{"file_names": ["1.png"], "text": "one"}\n'
    )
    root = _tree(
        tmp_path / "all", {"1.png": picture(), "2.png": picture(color=(9, 0, 0)), "metadata.jsonl": metadata}
    )
    assert [sample["images_path"] for sample in converted(root, tmp_path / "A")] == [
        ["1.png", "2.png"],
        ["1.png"],
    ]


def test_each_sub_folder_may_describe_its_images(tmp_path: Path) -> None:
    row = b'{"file_name": "x.png", "n": %d}\n'
    files = {f"{name}/x.png": picture(color=(n, 0, 0)) for n, name in enumerate(["a", "b"])}
    rows = {f"{name}/metadata.jsonl": row % n for n, name in enumerate(["a", "b"])}
    root = _tree(tmp_path / "all", {**files, **rows})
    assert [(sample["image"], sample["n"]) for sample in converted(root, tmp_path / "A")] == [
        (files["a/x.png"], 0),
        (files["b/x.png"], 1),
    ]
    splits = {
        name.replace("a/", "train/").replace("b/", "test/"): text for name, text in (files | rows).items()
    }
    with pytest.raises(
        ConvertError, match=r"its folders test, train are splits; .*such as .*splits/test, or"
    ):
        run(_tree(tmp_path / "splits", splits), tmp_path / "B")


def test_every_bad_image_is_named_with_its_path(tmp_path: Path) -> None:
    root = _tree(tmp_path / "pets", {"a/1.png": b"", "a/2.jpg": b"\xff\xd8\xffnope", "b/3.png": picture()})
    with pytest.raises(ConvertError) as caught:
        run(root, tmp_path / "A")
    assert "pets: image 1: image 'a/1.png' is an empty file" in str(caught.value)
    assert "pets: image 2: image 'a/2.jpg': content is not a readable image" in str(caught.value)
    assert run(root, tmp_path / "A", on_error="skip").samples == 1


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train/cat/1.png", "val/cat/2.png"], r"its folders train, val are splits.*pets/train"),
        (["cat/1.png", "2.png"], r"images both in class folders \(cat, …\) and beside them \(2\.png\)"),
        (["cat/1.txt"], r"a folder without files of a known kind"),
    ],
)
def test_trees_that_can_be_read_in_two_ways_are_refused(tmp_path: Path, names: list[str], words: str) -> None:
    root = _tree(tmp_path / "pets", dict.fromkeys(names, picture()))
    with pytest.raises(ConvertError, match=words):
        run(root, tmp_path / "A")


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ('{"name": "1.png"}\n', r"metadata\.jsonl: no row has a key 'file_name'.*--from jsonl"),
        ('{"x_file_name": "no.png"}\n', r"'x_file_name' names no image of the folder"),
        ('{"file_name": "1.png"}\n{"file_name": ""}\n', r"row 2 has nothing under 'file_name'"),
        ('{"file_name": "1.png", "_file_name": "1.png"}\n', r"'file_name' and '_file_name' would both be"),
        ('{"mask_file_name": "1.png", "mask": 1}\n', r"row 1 has a key 'mask'"),
        ('{"file_name": "1.png"\n', r"metadata\.jsonl:1: broken JSON"),
        (
            '{"file_name": "../1.png"}\n',
            r"metadata\.jsonl row 1: image '\.\./1\.png'.*outside the image root",
        ),
        ('{"file_name": "1.png", "image": 1}\n', r"row 1 has a key 'image'"),
    ],
)
def test_metadata_that_does_not_fit_is_named(tmp_path: Path, metadata: str, words: str) -> None:
    root = _tree(tmp_path / "all", {"1.png": picture(), "metadata.jsonl": metadata.encode()})
    with pytest.raises(ConvertError, match=words):
        run(root, tmp_path / "A")


def test_links_do_not_leave_the_tree(tmp_path: Path) -> None:
    root = _tree(tmp_path / "pets", {"a/1.png": picture()})
    (tmp_path / "secret.png").write_bytes(picture())
    (root / "a" / "2.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ConvertError, match=r"image 2: image 'a/2\.png' is .*outside the image root"):
        run(root, tmp_path / "A")


@pytest.mark.parametrize("ending", ["txt", "json"])
def test_links_beside_images_do_not_leave_the_tree(tmp_path: Path, ending: str) -> None:
    root = _tree(tmp_path / "pets", {"a/1.png": picture(), "a/2.png": picture(), "a/inside": b'{"n": 1}'})
    (tmp_path / "pets.json").write_text('{"n": 2}')
    (root / "a" / f"1.{ending}").symlink_to("inside")
    run(root, tmp_path / "A")
    (root / "a" / f"2.{ending}").symlink_to(tmp_path / "pets.json")
    with pytest.raises(ConvertError, match=rf"pets/a/2\.{ending}: a link to .*, outside the folder; put"):
        run(root, tmp_path / "B")
    assert run(root, tmp_path / "B", allow_outside_root=True).samples == 2


def test_a_tree_below_a_url_gives_the_same_shards(tmp_path: Path) -> None:
    root = _tree(tmp_path / "pets", _PETS)
    url = f"memory://{tmp_path.name}/pets"
    for name in _PETS:
        open_store(url).put(name, root / name)
    run(root, tmp_path / "A")
    run(url, tmp_path / "B")
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
