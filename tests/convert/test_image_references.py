"""How records name their images, and which files that leads to."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from streamshard import LocalDataset
from streamshard.convert.written_bytes import image_in
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import (
    chat_rows,
    converted,
    files_of,
    noise,
    picture,
    run,
    shards_of,
    write_lines,
)

_PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgZGIGAAAOAAfXb+R4AAAA"
    "AElFTkSuQmCC"
)


def _message(source: Path, out: Path, **options: Any) -> str:
    with pytest.raises(ConvertError) as caught:
        run(source, out, **options)
    assert not (out / "index.json").exists()
    return str(caught.value)


@pytest.fixture
def images(tmp_path: Path) -> dict[str, bytes]:
    made = {"1.png": picture(color=1, mode="L"), "2.jpg": picture("JPEG"), "3.png": picture(color=(9, 9, 9))}
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    return made


def test_b025_rows_with_and_without_images_mix(tmp_path: Path, images: dict[str, bytes]) -> None:
    rows = [{"id": 1, "images": ["1.png"]}, {"id": 2}, {"id": 3, "images": []}, {"id": 4, "images": None}]
    samples = converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A")
    assert [sample["images"] for sample in samples] == [[images["1.png"]], [], [], []]
    assert [sample["images_path"] for sample in samples] == [["1.png"], [], [], []]


def test_b027_a_string_and_a_list_of_one_are_the_same_image(tmp_path: Path, images: dict[str, bytes]) -> None:
    rows = [{"image": "1.png"}, {"image": ["1.png"]}]
    first, second = converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A")
    assert first == second == {"image": images["1.png"], "image_path": "1.png"}


def test_b028_more_or_fewer_tags_than_images_is_a_counted_warning(
    tmp_path: Path, images: dict[str, bytes]
) -> None:
    rows = [
        {"image": "1.png", "text": "<image> fine"},
        {"image": "1.png", "text": "<image> and <image>"},
        {"image": "1.png", "text": "none"},
    ]
    source = write_lines(tmp_path / "a.jsonl", rows)
    summary = run(source, tmp_path / "A")
    assert summary.warnings == (
        "1 of 3 records have another number of <image> tags than images (first: a.jsonl:2 has 2 <image> and 1 image)",
        "1 of 3 records have images and no <image> tag, while others have one (first: a.jsonl:3)",
    )
    assert run(source, tmp_path / "B", workers=2).warnings == summary.warnings


def test_data_that_uses_no_tags_is_not_warned_about(tmp_path: Path, images: dict[str, bytes]) -> None:
    rows = [{"image": "1.png", "text": "a picture"}] * 3
    assert run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A").warnings == ()


@pytest.mark.parametrize("key", ["image", "images", "image_path", "img", "image_file"])
def test_b029_the_usual_image_keys_are_found(tmp_path: Path, images: dict[str, bytes], key: str) -> None:
    (sample,) = converted(write_lines(tmp_path / "a.jsonl", [{key: "1.png"}]), tmp_path / "A")
    assert sample == {key: images["1.png"], f"{key}_path": "1.png"}


def test_b029_any_key_can_be_named_as_the_image_key(tmp_path: Path, images: dict[str, bytes]) -> None:
    rows = [{"photo": "2.jpg", "image": "not a path"}]
    source = write_lines(tmp_path / "a.jsonl", rows)
    (sample,) = converted(source, tmp_path / "A", image_keys=("photo",))
    assert sample == {"photo": images["2.jpg"], "photo_path": "2.jpg", "image": "not a path"}
    assert "no record has that key" in _message(source, tmp_path / "B", image_keys=("pictures",))
    assert converted(source, tmp_path / "C", image_keys=("none",)) == rows


def test_b029_no_image_at_all_under_a_given_root_is_a_warning(tmp_path: Path) -> None:
    summary = run(
        write_lines(tmp_path / "a.jsonl", [{"picture": "1.png"}]), tmp_path / "A", image_root=str(tmp_path)
    )
    assert "no record yields an image although --image-root was given" in summary.warnings[0]
    assert "--image-key picture" in summary.warnings[0]


def test_b029_images_under_two_keys_are_an_error_unless_asked_for(
    tmp_path: Path, images: dict[str, bytes]
) -> None:
    rows = [{"image": "1.png"}, {"image": "1.png", "images": ["2.jpg", "3.png"]}]
    source = write_lines(tmp_path / "a.jsonl", rows)
    assert "a.jsonl:2: images under 'image' and 'images'" in _message(source, tmp_path / "A")
    samples = converted(source, tmp_path / "B", image_keys=("image", "images"))
    assert [sample["image"] for sample in samples] == [images["1.png"]] * 2
    assert [sample["images"] for sample in samples] == [[], [images["2.jpg"], images["3.png"]]]


def test_two_image_keys_in_different_rows_are_two_columns(tmp_path: Path, images: dict[str, bytes]) -> None:
    rows = [{"image": "1.png"}, {"images": ["2.jpg"]}]
    samples = converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A")
    assert [(sample["image"], sample["images"]) for sample in samples] == [
        ([images["1.png"]], []),
        ([], [images["2.jpg"]]),
    ]


@pytest.mark.parametrize("tag", ["<|vision_start|>/d/1.jpg<|vision_end|>", "<image>", "<img>x</img>"])
def test_b030_tags_without_an_image_are_a_counted_warning(tmp_path: Path, tag: str) -> None:
    rows = [{"value": f"{tag} what?"}, {"value": "text"}]
    summary = run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A")
    assert summary.warnings == (
        "1 of 2 records have image tags in their text and no image (first: a.jsonl:1)",
    )


def test_b031_any_number_of_images_of_any_format_keeps_order_and_bytes(
    tmp_path: Path, images: dict[str, bytes]
) -> None:
    rows: list[dict[str, Any]] = [
        {"images": []},
        {"images": ["2.jpg"]},
        {"images": ["3.png", "2.jpg", "1.png"]},
    ]
    source = write_lines(tmp_path / "a.jsonl", rows)
    samples = converted(source, tmp_path / "A")
    assert [sample["images"] for sample in samples] == [
        [images[name] for name in row["images"]] for row in rows
    ]
    assert [sample["images_path"] for sample in samples] == [row["images"] for row in rows]
    decoded = LocalDataset(str(tmp_path / "A"))[2]["images"]
    assert [image.format for image in decoded] == ["PNG", "JPEG", "PNG"]


@pytest.mark.parametrize(
    ("rows", "encoding"),
    [
        ([["1.png"], ["3.png"]], "png"),
        ([["2.jpg"]], "jpeg"),
        ([["2.jpg"], ["1.png"]], "jpeg"),
        ([["1.png", "3.png"]], "list[png]"),
        ([["1.png"], []], "list[png]"),
        ([["1.png", "2.jpg"], []], "list[jpeg]"),
    ],
)
def test_the_image_column_fits_all_records(
    tmp_path: Path, images: dict[str, bytes], rows: list[list[str]], encoding: str
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"image": names} for names in rows])
    summary = run(source, tmp_path / "A")
    assert summary.columns == {"image": encoding, "image_path": "json" if "list" in encoding else "str"}
    extra = json.loads((tmp_path / "A" / "index.json").read_bytes())["streamshard"]
    formats = [{"1.png": "png", "2.jpg": "jpeg", "3.png": "png"}[name] for names in rows for name in names]
    assert extra["images"] == {"image": {name: formats.count(name) for name in set(formats)}}


def test_a_known_key_that_never_names_an_image_is_an_ordinary_column(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"id": 1, "images": []}, {"id": 2, "images": None}]
    assert converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A") == rows


def test_the_path_column_must_not_clash(tmp_path: Path, images: dict[str, bytes]) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"photo": "1.png", "photo_path": 5}])
    assert "'photo_path'" in _message(source, tmp_path / "A", image_keys=("photo",))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (5, "'image' is int '5', expected a path"),
        ({"photo": "1.png"}, "'image' is dict"),
        (["1.png", None], r"image[1] is NoneType"),
        (["1.png", ""], r"image[1] is an empty string"),
    ],
)
def test_b039_what_is_no_reference_is_named(
    tmp_path: Path, images: dict[str, bytes], value: Any, words: str
) -> None:
    message = _message(write_lines(tmp_path / "a.jsonl", [{"image": value}]), tmp_path / "A")
    assert f"a.jsonl:1: {words}" in message


def test_b032_all_missing_images_are_listed_at_once(tmp_path: Path, images: dict[str, bytes]) -> None:
    rows = [{"id": f"i{number}", "image": "1.png"} for number in range(5)]
    rows[2]["image"] = "nope.jpg"
    source = write_lines(tmp_path / "a.jsonl", rows)
    message = _message(source, tmp_path / "A")
    assert "1 record cannot be converted (1 missing image)" in message
    assert "a.jsonl:3: image 'nope.jpg' does not exist" in message
    summary = run(source, tmp_path / "B", on_error="skip")
    assert (summary.samples, summary.skipped) == (4, {"missing image": 1})
    assert any("(id i2)" in line for line in summary.lines())
    many = write_lines(tmp_path / "b.jsonl", [{"image": f"no{number}.jpg"} for number in range(300)])
    message = _message(many, tmp_path / "C")
    assert "300 records cannot be converted (300 missing image)" in message
    assert message.count("does not exist (") == 20


def test_b033_an_empty_image_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}, {"image": "empty.jpg"}])
    for check in (True, False):
        assert "a.jsonl:2: image 'empty.jpg' is an empty file" in _message(
            source, tmp_path / "A", check=check
        )


def test_b034_a_missing_image_names_the_candidate_next_to_it(tmp_path: Path) -> None:
    for name in ("a.png", "Photo.JPG", "holiday_001.jpg"):
        (tmp_path / name).write_bytes(picture())
    for wanted, near in (
        ("a.jpg", "a.png"),
        ("photo.jpg", "Photo.JPG"),
        ("holiday-001.jpg", "holiday_001.jpg"),
    ):
        source = write_lines(tmp_path / "a.jsonl", [{"image": wanted}])
        assert f"nearby: '{near}'" in _message(source, tmp_path / "A")
    source = write_lines(tmp_path / "a.jsonl", [{"image": "no/folder.jpg"}])
    assert "does not exist either" in _message(source, tmp_path / "A")


def test_b034_a_tilde_means_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "imgs").mkdir()
    (tmp_path / "imgs" / "a.png").write_bytes(picture())
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}, {"image": "~/imgs/a.png"}])
    samples = converted(source, tmp_path / "A", image_root="~/imgs")
    assert [sample["image_path"] for sample in samples] == ["a.png", "a.png"]


def test_b035_the_current_directory_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_lines(tmp_path / "a.jsonl", chat_rows(3, tmp_path / "images"))
    (tmp_path / "x" / "images").mkdir(parents=True)
    (tmp_path / "x" / "images" / "p0.png").write_bytes(picture(color=(0, 0, 0)))
    run(source, tmp_path / "A")
    monkeypatch.chdir(tmp_path / "x")
    run(source, tmp_path / "B", workers=2)
    monkeypatch.chdir(tmp_path)
    run(Path("a.jsonl"), tmp_path / "C")
    run(Path("a.jsonl"), tmp_path / "D", image_root=".")
    assert (
        files_of(tmp_path / "A")
        == files_of(tmp_path / "B")
        == files_of(tmp_path / "C")
        == files_of(tmp_path / "D")
    )


def test_relative_references_start_at_the_folder_of_their_own_file(tmp_path: Path) -> None:
    for name, color in (("x", 1), ("y", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(picture(color=color, mode="L"))
        write_lines(tmp_path / name / "a.jsonl", [{"image": "1.png"}])
    samples = converted([tmp_path / "x" / "a.jsonl", tmp_path / "y" / "a.jsonl"], tmp_path / "A")
    assert [sample["image"] for sample in samples] == [picture(color=1, mode="L"), picture(color=2, mode="L")]


@pytest.mark.parametrize(
    "make",
    [
        lambda base: str(base / "secret.png"),
        lambda base: "../secret.png",
        lambda base: "sub/../../secret.png",
        lambda base: "link.png",
        lambda base: "linked-folder/secret.png",
        lambda base: "file://" + str(base / "secret.png"),
    ],
    ids=["absolute", "dots", "inner dots", "link", "linked folder", "file URL"],
)
def test_b037_what_leaves_the_image_root_is_refused(tmp_path: Path, make: Callable[[Path], str]) -> None:
    root = tmp_path / "imgs"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "secret.png").write_bytes(picture())
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "linked-folder").symlink_to(tmp_path)
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}, {"image": make(tmp_path)}])
    message = _message(source, tmp_path / "A", image_root=str(root))
    assert "a.jsonl:2: image" in message
    assert "outside the image root" in message
    samples = converted(source, tmp_path / "B", image_root=str(root), allow_outside_root=True)
    assert samples[1]["image"] == [picture()]
    assert str(tmp_path) not in json.dumps(samples[1]["image_path"])


def test_b037_absolute_paths_and_links_that_stay_inside_are_fine(tmp_path: Path) -> None:
    root = tmp_path / "imgs"
    root.mkdir()
    (root / "a.png").write_bytes(picture())
    (root / "link.png").symlink_to("a.png")
    (tmp_path / "other-name").symlink_to(root)
    rows = [{"image": str(root / "a.png")}, {"image": "link.png"}, {"image": "x/../a.png"}]
    samples = converted(
        write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", image_root=str(tmp_path / "other-name")
    )
    assert [sample["image"] for sample in samples] == [picture()] * 3
    assert [sample["image_path"] for sample in samples] == ["a.png", "link.png", "x/../a.png"]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        (tmp_path / "a.png").mkdir()
    else:
        os.mkfifo(tmp_path / "a.png")
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}])
    assert "not a regular file" in _message(source, tmp_path / "A")


@pytest.mark.parametrize(
    "url", ["https://example.com/a.jpg", "HTTP://example.com/a.jpg", "s3://bucket/a.jpg"]
)
def test_b038_url_images_are_refused_line_by_line(tmp_path: Path, url: str) -> None:
    (tmp_path / "https:").mkdir()
    source = write_lines(tmp_path / "a.jsonl", [{"image": url}, {"image": url}])
    message = _message(source, tmp_path / "A")
    assert "a.jsonl:1: image" in message
    assert "a.jsonl:2: image" in message
    assert "URL images are not fetched" in message


@pytest.mark.parametrize("head", ["data:image/png;base64,", "DATA:Image/PNG;Base64,"])
def test_b039_data_uris_are_decoded_and_their_text_is_not_kept(tmp_path: Path, head: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"image": head + _PIXEL.partition(",")[2]}])
    (sample,) = converted(source, tmp_path / "A")
    assert sample == {"image": base64.b64decode(_PIXEL.partition(",")[2]), "image_path": "data:"}
    assert LocalDataset(str(tmp_path / "A"))[0]["image"].convert("RGB").getpixel((0, 0)) == (1, 2, 3)


def test_data_uris_as_urls_and_other_programs_write_them(tmp_path: Path) -> None:
    content = picture("JPEG", color=(250, 120, 3), size=(40, 30))
    text = base64.b64encode(content).decode()
    assert {"+", "/"} <= set(text)
    uris = [
        f"data:image/jpeg;base64,{quote(text, safe='')}",
        f"data:image/jpeg;base64,{base64.urlsafe_b64encode(content).decode()}",
        f"data:image/jpeg;base64,{text.rstrip('=')}",
        f"data:image/jpeg,{quote(content)}",
    ]
    samples = converted(write_lines(tmp_path / "a.jsonl", [{"image": uri} for uri in uris]), tmp_path / "A")
    assert [sample["image"] for sample in samples] == [content] * 4


@pytest.mark.parametrize(
    "uri", [_PIXEL[:27], _PIXEL.replace(";base64", ""), _PIXEL + "!", "data:image/png;base64,", "data:,x"]
)
def test_b039_a_broken_data_uri_is_named_without_printing_all_of_it(tmp_path: Path, uri: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}, {"image": uri}])
    message = _message(source, tmp_path / "A")
    assert "a.jsonl:2: " in message
    assert "data URI" in message
    assert _PIXEL[22:100] not in message


def test_b043_dots_in_names_are_only_dots(tmp_path: Path) -> None:
    (tmp_path / "train.v1").mkdir()
    names = ["train.v1/0001.jpg", "train.v1/0001.b.jpg", "22.05.png"]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(
            picture("JPEG" if name.endswith("jpg") else "PNG", color=(number, 0, 0))
        )
    samples = converted(
        write_lines(tmp_path / "a.jsonl", [{"image": name} for name in names]), tmp_path / "A"
    )
    assert [sample["image"] for sample in samples] == [(tmp_path / name).read_bytes() for name in names]


def test_b044_equal_basenames_and_ids_do_not_collide(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").write_bytes(noise(seed=ord(folder)))
    rows = [{"id": "same", "image": f"{folder}/1.jpg"} for folder in ("x", "y")]
    source = write_lines(tmp_path / "a.jsonl", rows)
    summary = run(source, tmp_path / "A")
    samples = LocalDataset(str(tmp_path / "A"), decode_images=False)
    assert [sample["image"] for sample in samples] == [noise(seed=ord("x")), noise(seed=ord("y"))]
    assert summary.warnings == ("1 records repeat the id of an earlier record; all are kept",)


def test_names_are_the_same_bytes_under_every_locale(tmp_path: Path) -> None:
    (tmp_path / "bücher ☃ +%41.png").write_bytes(picture())
    (sample,) = converted(write_lines(tmp_path / "a.jsonl", [{"image": "bücher ☃ +%41.png"}]), tmp_path / "A")
    assert sample["image_path"] == "bücher ☃ +%41.png"


@pytest.mark.parametrize("reference", ["a\0b.png", "\ud800.png"])
def test_references_that_no_file_system_knows_are_named(tmp_path: Path, reference: str) -> None:
    message = _message(write_lines(tmp_path / "a.jsonl", [{"image": reference}]), tmp_path / "A")
    assert "a.jsonl:1: image" in message


def test_an_image_root_that_is_not_there_is_named_before_any_work(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}])
    assert "no such directory" in _message(source, tmp_path / "A", image_root=str(tmp_path / "nope"))
    assert not (tmp_path / "A").exists()


def test_the_same_shards_whether_an_image_is_named_by_string_or_list(
    tmp_path: Path, images: dict[str, bytes]
) -> None:
    run(write_lines(tmp_path / "a.jsonl", [{"image": "1.png"}]), tmp_path / "A")
    run(write_lines(tmp_path / "b.jsonl", [{"image": ["1.png"]}]), tmp_path / "B")
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")


def test_a_link_behind_a_plain_file_of_the_same_folder_is_checked_too(tmp_path: Path) -> None:
    # The first file of a folder opens it for the others; each link is still followed with care.
    (tmp_path / "in" / "a").mkdir(parents=True)
    outside = tmp_path / "secret.png"
    outside.write_bytes(picture())
    (tmp_path / "in" / "a" / "0.png").write_bytes(picture())
    (tmp_path / "in" / "a" / "inside.png").symlink_to("0.png")
    (tmp_path / "in" / "a" / "out.png").symlink_to(outside)
    (tmp_path / "in" / "a" / "gone.png").symlink_to("nowhere.png")
    (tmp_path / "in" / "a" / "loop.png").symlink_to("loop.png")
    names = ["a/0.png", "a/inside.png", "a/out.png", "a/gone.png", "a/loop.png", "a/..", "/0.png", "a/\0"]
    source = write_lines(tmp_path / "in" / "t.jsonl", [{"image": name} for name in names])
    for check in (True, False):
        out = tmp_path / f"out-{check}"
        summary = run(source, out, on_error="skip", check=check)
        assert summary.samples == 2
        assert summary.skipped == {
            "image outside the root": 3, "missing image": 2, "unusable image reference": 1,
        }  # fmt: skip
        with pytest.raises(ConvertError, match=r"t\.jsonl:3: image 'a/out\.png' is .*outside the image root"):
            run(source, tmp_path / "B", check=check)


def test_a_link_that_appears_after_the_scan_is_not_followed_out_of_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert import worker

    root = tmp_path / "in"
    root.mkdir()
    outside = tmp_path / "secret.png"
    outside.write_bytes(picture())
    for name in ("0.png", "1.png"):
        (root / name).write_bytes(picture())
    source = write_lines(root / "t.jsonl", [{"image": name} for name in ("0.png", "1.png")])
    real = worker.FUNCTIONS["write"]

    def swapped(task: Any, advance: Any) -> int:
        (root / "1.png").unlink()
        (root / "1.png").symlink_to(outside)
        return real(task, advance)

    monkeypatch.setitem(worker.FUNCTIONS, "write", swapped)
    with pytest.raises(ConvertError, match=r"t\.jsonl:2: image '1\.png' is .*outside the image root"):
        run(source, tmp_path / "A", workers=1)


def test_python_text_that_its_parser_refuses_is_no_image() -> None:
    assert image_in("b''+" + "-" * 100_000 + "1") is None
