"""``streamshard show``."""

from __future__ import annotations

import base64
import io
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from streamshard.cli.show import command
from streamshard.storage import open_store
from tests.support.small_datasets import text_samples, write_dataset


def show(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def picture(kind: str, size: tuple[int, int] = (24, 16), color: tuple[int, int, int] = (9, 99, 200)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, kind)
    return out.getvalue()


def test_one_line_per_column(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(35))
    code, out, _ = show(tmp_path, 12, -1)
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines == [
        "sample 12 (shard 'shard.00001.mds', row 2)",
        "id str a12",
        "number int 12",
        "text str text of 12",
        "sample 34 (shard 'shard.00003.mds', row 4)",
        "id str a34",
        "number int 34",
        "text str text of 34 text of 34",
    ]


COLUMNS = {
    "array": "ndarray", "bytes": "bytes", "image": "jpeg", "images": "list[png]", "json": "json",
    "long": "str", "none": "list[jpeg]", "raw": "pil", "scalar": "uint8", "wide": "float32",
}  # fmt: skip
SAMPLE: dict[str, Any] = {
    "array": np.arange(100, dtype=np.uint16).reshape(4, 25),
    "bytes": bytes(range(256)),
    "image": picture("PNG"),
    "images": [picture("PNG", (8, 8)), picture("PNG", (4, 6))],
    "json": {"turns": [{"from": "human", "value": "héllo"}], "n": [1.5, None]},
    "long": "x" * 5000,
    "none": [],
    "raw": Image.new("RGBA", (3, 5), (1, 2, 3, 4)),
    "scalar": 7,
    "wide": 0.5,
}


@pytest.fixture
def rich(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "rich", [SAMPLE], COLUMNS)
    return tmp_path / "rich"


def test_long_values_are_cut_with_their_length_and_pictures_described(rich: Path) -> None:
    code, out, _ = show(rich, 0)
    assert code == 0
    line = {text.split()[0]: " ".join(text.split()[2:]) for text in out.splitlines()[1:]}
    assert line["array"] == "uint16 [4, 25]: 0, 1, 2, 3, 4, 5, 6, 7, ..."
    assert line["bytes"].startswith("256 bytes: 00 01 02")
    assert line["image"] == f"PNG 24x16 RGB, {len(SAMPLE['image'])} bytes"
    assert line["images"].startswith("2 pictures: PNG 8x8 RGB, ")
    assert line["json"] == '{"turns": [{"from": "human", "value": "héllo"}], "n": [1.5, null]}'
    assert line["long"] == "x" * 200 + "... (5,000 characters)"
    assert line["none"] == "0 pictures"
    assert line["raw"] == "pixels 3x5 RGBA"
    assert line["scalar"] == "7"
    assert max(map(len, out.splitlines())) < 320


def test_json_holds_whole_values(rich: Path) -> None:
    code, out, _ = show(rich, 0, "--json")
    assert code == 0
    ((shown,)) = json.loads(out)
    assert (shown["sample"], shown["shard"], shown["row"]) == (0, "shard.00000.mds", 0)
    values = shown["columns"]
    assert values["array"]["values"] == SAMPLE["array"].tolist()
    assert base64.b64decode(values["bytes"]["base64"]) == SAMPLE["bytes"]
    assert values["image"] == {
        "nbytes": len(SAMPLE["image"]), "format": "PNG", "width": 24, "height": 16, "mode": "RGB"
    }  # fmt: skip
    assert values["json"] == SAMPLE["json"]
    assert values["long"] == SAMPLE["long"]
    assert values["none"] == []
    assert values["scalar"] == 7


def test_columns_can_be_chosen(rich: Path) -> None:
    code, out, _ = show(rich, 0, "--column", "scalar", "--column", "wide")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == ["scalar", "wide"]
    code, _, err = show(rich, 0, "--column", "nope")
    assert code == 1
    assert "'nope'" in err
    assert "'scalar'" in err


def test_a_picture_is_written_with_its_stored_bytes(rich: Path, tmp_path: Path) -> None:
    code, _, err = show(rich, 0, "--column", "image", "--image", tmp_path / "a.png")
    assert code == 0
    assert (tmp_path / "a.png").read_bytes() == SAMPLE["image"]
    assert "a.png" in err


def test_several_pictures_are_numbered_or_chosen(rich: Path, tmp_path: Path) -> None:
    assert show(rich, 0, "--column", "images", "--image", tmp_path / "b.png")[0] == 0
    assert [(tmp_path / f"b.{i}.png").read_bytes() for i in range(2)] == SAMPLE["images"]
    assert not (tmp_path / "b.png").exists()
    assert show(rich, 0, "--column", "images", "--image", tmp_path / "c.png", "--image-index", 1)[0] == 0
    assert (tmp_path / "c.png").read_bytes() == SAMPLE["images"][1]
    code, _, err = show(rich, 0, "--column", "images", "--image", tmp_path / "d.png", "--image-index", 2)
    assert code == 1
    assert "holds 2 pictures" in err
    assert not (tmp_path / "d.png").exists()


def test_bare_pixels_become_a_png_that_loses_nothing(rich: Path, tmp_path: Path) -> None:
    assert show(rich, 0, "--column", "raw", "--image", tmp_path / "e.png")[0] == 0
    with Image.open(tmp_path / "e.png") as opened:
        assert (opened.mode, opened.size, opened.getpixel((0, 0))) == ("RGBA", (3, 5), (1, 2, 3, 4))


def test_a_sample_without_picture_is_exit_1(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(3))
    code, _, err = show(tmp_path, 1, "--image", tmp_path / "x.png")
    assert code == 1
    assert "sample 1 holds no picture" in err


def test_hostile_text_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    evil = "a\x1b]0;owned\x07\r\n\x9b2J\u202egnp.exe\u2066\x7f\ud7ff"
    write_dataset(tmp_path, [{"te\x1bxt": evil, "j": {"k\x1b": evil}}], {"te\x1bxt": "str", "j": "json"})
    for arguments in ([], ["--json"]):
        code, out, _ = show(tmp_path, 0, *arguments)
        assert code == 0
        assert all(character.isprintable() or character == "\n" for character in out)
    assert "\\x1b]0;owned\\x07\\r\\n\\x9b2J\\u202e" in show(tmp_path, 0)[1]
    _, _, err = show(tmp_path, 0, "--column", "\x1b[2J")
    assert "\x1b" not in err


def test_b046_a_damaged_picture_is_shown_as_one_and_its_bytes_can_be_fetched(tmp_path: Path) -> None:
    whole = picture("JPEG", (200, 200))
    samples = [{"image": whole}, {"image": b"no image" + whole}]
    write_dataset(tmp_path, [samples[0], samples[0]], {"image": "jpeg"})
    path = tmp_path / "shard.00000.mds"
    content = path.read_bytes()
    place = content.rindex(whole)
    path.write_bytes(content[:place] + b"x" * 40 + content[place + 40 :])
    code, out, _ = show(tmp_path, 1, "--image", tmp_path / "x.jpg")
    assert code == 0
    assert "not a readable picture" in out
    assert (tmp_path / "x.jpg").read_bytes() == b"x" * 40 + whole[40:]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_url_is_read_without_copying_the_dataset(tmp_path: Path, compression: str | None) -> None:
    write_dataset(tmp_path, text_samples(35), compression=compression)
    url = f"memory://{uuid.uuid4().hex}"
    for path in tmp_path.iterdir():
        open_store(url).put(f"val/{path.name}", path)
    code, out, _ = show(url, 0, 34, "--split", "val")
    assert code == 0
    assert "a0" in out
    assert "a34" in out


def test_beyond_the_end_and_no_number(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(5))
    code, _, err = show(tmp_path, 5)
    assert code == 1
    assert "5 samples, so from -5 to 4" in err
    assert show(tmp_path, "x")[0] == 2
    assert show(tmp_path)[0] == 2
    assert show(tmp_path, 0, "--nope")[0] == 2


def test_pickled_columns_are_refused_and_others_shown(tmp_path: Path) -> None:
    write_dataset(tmp_path, [{"p": {"a": 1}, "n": 3}], {"p": "pkl", "n": "int"})
    code, _, err = show(tmp_path, 0)
    assert code == 1
    assert "'p'" in err
    assert show(tmp_path, 0, "--column", "n")[0] == 0
    assert "{'a': 1}" in show(tmp_path, 0, "--allow-unsafe-types")[1]


def test_a_cut_shard_is_a_message_without_traceback(tmp_path: Path) -> None:
    write_dataset(tmp_path, text_samples(5))
    (tmp_path / "shard.00000.mds").write_bytes(b"short")
    code, _, err = show(tmp_path, 0)
    assert code == 1
    assert "shard.00000.mds" in err
    assert "Traceback" not in err
