"""Trees of images as sources."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_metadata_describes_the_images(tmp_path: Path, kind: str) -> None:
    rows = [{"file_name": "x/2.png", "text": "two"}, {"file_name": "1.png", "text": "one, uno"}]
    metadata = (
        "".join(json.dumps(row) + "\n" for row in rows)
        if kind == "jsonl"
        else 'file_name,text\nx/2.png,two\n1.png,"one, uno"\n'
    )
    root = _tree(
        tmp_path / "all",
        {"1.png": picture(), "x/2.png": picture(), "3.png": picture(), f"metadata.{kind}": metadata.encode()},
    )
    samples = converted(root, tmp_path / "A")
    assert [(sample["image_path"], sample["text"]) for sample in samples] == [
        ("x/2.png", "two"),
        ("1.png", "one, uno"),
    ]


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
        ('{"name": "1.png"}\n', r"metadata\.jsonl: row 1 has no text under 'file_name'"),
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


def test_a_tree_below_a_url_gives_the_same_shards(tmp_path: Path) -> None:
    root = _tree(tmp_path / "pets", _PETS)
    url = f"memory://{tmp_path.name}/pets"
    for name in _PETS:
        open_store(url).put(name, root / name)
    run(root, tmp_path / "A")
    run(url, tmp_path / "B")
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
