"""LitData chunks as sources."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from streamshard import LocalDataset
from streamshard.convert.forms.litdata_leaves import parse_leaf
from streamshard.errors import ConvertError, FormatError, StorageError
from tests.support.jsonl_inputs import converted, picture, run, shards_of
from tests.support.litdata_chunks import dict_node, node, write_chunks


def _text(text: str) -> bytes:
    return struct.pack("<I", len(text.encode())) + text.encode()


_NESTED: list[tuple[bytes, Any]] = [
    (b'{"a": 1}', {"a": 1}),
    (b"\0" + _text('{"a": [1, "x"]}'), {"a": [1, "x"]}),
    (b"\1" + struct.pack("<I", 2) + _text("a") + _text("ü"), ["a", "ü"]),
    (b"\2" + struct.pack("<Iqq", 2, 1, -5), [1, -5]),
    (b"\3" + struct.pack("<Id", 1, 0.5), [0.5]),
    (b"\4" + struct.pack("<I", 2) + b"\1\0", [True, False]),
    (
        b"\5" + struct.pack("<I", 3) + _text("k") + b"\7" + _text("v") + _text("n") + b"\x0b" + _text("b") + b"\x0a\1",
        {"k": "v", "n": None, "b": True},
    ),
    (
        b"\6" + struct.pack("<II", 2, 2) + _text("a") + _text("b")
        + b"\x12" + struct.pack("<q", 7) + b"\x11" + _text("x") + b"\x10" + b"\x13" + struct.pack("<d", 1.5),
        [{"a": 7, "b": "x"}, {"a": None, "b": 1.5}],
    ),
    (b"\x08" + struct.pack("<q", -3), -3),
    (b"\x09" + struct.pack("<d", 2.5), 2.5),
]  # fmt: skip

_TREE = dict_node(
    i=None, f=None, s=None, b=None, flag=None, ids=None, vec=None, grid=None, box=None, photo=None, pixels=None,
    meta=None,
    nested=dict_node(x=None, y=node("builtins.list", None, [node(), node()])),
)  # fmt: skip
_FORMATS = [
    "int", "float", "str", "bytes", "bool", "no_header_tensor:17", "no_header_numpy:9", "tensor", "numpy", "jpeg",
    "pil",
    "json", "str", "int", "int",
]  # fmt: skip


def _item(number: int) -> list[bytes]:
    return [
        struct.pack("<q", number - 3),
        struct.pack("<d", number / 2),
        f"text {number} ☃".encode(),
        bytes([number]),
        bytes([number % 2]),
        np.arange(number, dtype="<i8").tobytes(),
        np.full(3, number, "<f4").tobytes(),
        struct.pack(">IIII", 15, 2, 2, 3) + np.full(6, number, "<i4").tobytes(),
        struct.pack("<IIII", 10, 2, 1, 2) + np.full(2, number, "<f8").tobytes(),
        picture("JPEG", color=(number, 0, 0)),
        struct.pack("<III", 2, 1, 3) + b"RGB" + bytes([number] * 6),
        _NESTED[number % len(_NESTED)][0],
        b"x",
        struct.pack("<q", number),
        struct.pack("<q", 2 * number),
    ]


def _check(sample: dict[str, Any], number: int) -> None:
    assert sample["photo"] == picture("JPEG", color=(number, 0, 0))
    np.testing.assert_equal(
        {name: value for name, value in sample.items() if name not in ("photo", "pixels")},
        {
            "i": number - 3, "f": number / 2, "s": f"text {number} ☃", "b": bytes([number]), "flag": bool(number % 2),
            "ids": np.arange(number), "vec": np.full(3, number, np.float32), "grid": np.full((2, 3), number, np.int32),
            "box": np.full((1, 2), float(number)), "meta": _NESTED[number % len(_NESTED)][1],
            "nested": {"x": "x", "y": [number, 2 * number]},
        },
    )  # fmt: skip


def test_litdata_to_mds_sample_for_sample(tmp_path: Path) -> None:
    chunks = [[_item(number) for number in range(begin, begin + 5)] for begin in (0, 5)]
    source = write_chunks(tmp_path / "in", _TREE, _FORMATS, chunks)
    summary = run(source, tmp_path / "A", samples_per_shard=3)
    assert summary.columns["ids"] == "ndarray:int64"
    assert summary.columns["photo"] == "jpeg"
    for number, sample in enumerate(LocalDataset(str(tmp_path / "A"), decode_images=False)):
        _check(sample, number)
    pixels = LocalDataset(str(tmp_path / "A"))[7]["pixels"]
    assert (pixels.size, pixels.getpixel((1, 0))) == ((2, 1), (7, 7, 7))
    run(source, tmp_path / "B", samples_per_shard=3, workers=2)
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
    assert run(source, tmp_path / "B", samples_per_shard=3).finished_before
    mixed = converted(source, tmp_path / "C", shuffle=5, drop=("pixels",))
    assert sorted(sample["i"] for sample in mixed) == list(range(-3, 7))
    for sample in mixed:
        _check(sample, sample["i"] + 3)


def test_whole_chunks_compressed_with_zstd_are_unpacked(tmp_path: Path) -> None:
    source = write_chunks(tmp_path / "in", node(), ["str"], [[[b"a"], [b"b"]]], compression="zstd")
    plain = (source / "chunk-0-0.bin").read_bytes()
    (source / "chunk-0-0.bin").unlink()
    (source / "chunk-0-0.zstd.bin").write_bytes(zstandard.compress(plain))
    index = json.loads((source / "index.json").read_text())
    index["chunks"][0]["filename"] = "chunk-0-0.zstd.bin"
    (source / "index.json").write_text(json.dumps(index))
    assert converted(source, tmp_path / "A") == [{"data": "a"}, {"data": "b"}]
    (source / "chunk-0-0.zstd.bin").write_bytes(zstandard.compress(plain)[:-3])
    with pytest.raises(ConvertError, match=r"zstd\.bin': the zstandard data ends before"):
        run(source, tmp_path / "B")


def test_items_that_are_lists_have_numbered_columns(tmp_path: Path) -> None:
    tree = node("builtins.tuple", None, [node(), node()])
    source = write_chunks(tmp_path / "in", tree, ["str", "bool"], [[[b"a", b"\1"]]])
    assert converted(source, tmp_path / "A") == [{"0": "a", "1": True}]


def test_pickled_leaves_are_refused_and_can_be_dropped(tmp_path: Path) -> None:
    source = write_chunks(tmp_path / "in", dict_node(a=None, p=None), ["str", "pickle"], [[[b"a", b"\x80."]]])
    with pytest.raises(ConvertError, match=r"column 'p' is 'pickle', which is not read here.*--drop p"):
        run(source, tmp_path / "A")
    assert converted(source, tmp_path / "A", drop=("p",)) == [{"a": "a"}]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "are encrypted"),
        ({"item_loader": "TokensLoader"}, "a stream of TokensLoader"),
        ({"compression": "zstd", "compression_level": "batch"}, "only whole chunks with zstd"),
        ({"data_format": ["str", "str"]}, "2 leaves, and a tree of 1"),
        ({"data_format": []}, "a tree that does not fit its 0 leaves"),
        ({"data_format": None}, "not an index of LitData"),
        ({"data_spec": "[1, {}]"}, "a tree that does not fit"),
        ({"data_spec": "{"}, "not an index of LitData"),
    ],
)
def test_what_is_not_read_is_named(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    source = write_chunks(tmp_path / "in", node(), ["str"], [[[b"a"]]], **config)
    with pytest.raises(ConvertError, match=rf"index\.json: .*{words}"):
        run(source, tmp_path / "A")


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:2],
        lambda content: b"\xff\xff\xff\xff" + content[4:],
        lambda content: content[:4] + b"\xff" * 4 + content[8:],
        lambda content: content[:8] + content[4:8] + content[12:16] + content[8:12] + content[16:],
    ],
)
def test_damaged_chunks_are_refused_by_name(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    source = write_chunks(tmp_path / "in", node(), ["str"], [[[b"aaa"], [b"bbb"], [b"ccc"]]])
    chunk = source / "chunk-0-0.bin"
    chunk.write_bytes(damage(chunk.read_bytes()))
    with pytest.raises((FormatError, ConvertError), match=r"chunk-0-0\.bin"):
        run(source, tmp_path / "A")


def test_items_that_do_not_fit_are_named_and_skipped(tmp_path: Path) -> None:
    items = [[b"\1\2"], [struct.pack("<q", 5)], [b""]]
    source = write_chunks(tmp_path / "in", dict_node(n=None), ["int"], [items])
    with pytest.raises(
        ConvertError, match=r"chunk-0-0\.bin: item 1: the item cannot be decoded: an int of 2 bytes"
    ):
        run(source, tmp_path / "A")
    assert converted(source, tmp_path / "A", on_error="skip") == [{"n": 5}]


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    source = write_chunks(tmp_path / "in", node(), ["str"], [[[b"a"]]])
    text = (source / "index.json").read_text()
    (source / "index.json").write_text(text.replace("chunk-0-0.bin", "../chunk-0-0.bin"))
    with pytest.raises(StorageError, match="no plain relative path"):
        run(source, tmp_path / "A")


@given(
    st.binary(max_size=60), st.sampled_from(["json", "tensor", "numpy", "jpeg_array", "no_header_numpy:3"])
)
def test_hostile_leaves_are_values_or_errors(content: bytes, kind: str) -> None:
    leaf = parse_leaf(kind)
    assert leaf is not None
    with contextlib.suppress(ValueError, struct.error, IndexError, OverflowError, RecursionError):
        leaf(content)


_WRITE = """
import sys, io, numpy as np, torch
from PIL import Image
from litdata import optimize
def item(n):
    return {"n": n, "text": f"ü {n}", "ids": torch.arange(n), "grid": np.full((2, 3), n, np.float32), "ok": n % 2 == 0,
            "meta": {"a": [n, "x"]}, "raw": bytes([n])}
if __name__ == "__main__":
    optimize(item, list(range(20)), sys.argv[1], num_workers=1, chunk_size=7)
"""


@pytest.mark.slow
def test_what_litdata_writes_is_read(tmp_path: Path) -> None:
    pytest.importorskip("litdata")
    (tmp_path / "write.py").write_text(_WRITE)
    subprocess.run(
        [sys.executable, str(tmp_path / "write.py"), str(tmp_path / "in")], check=True, timeout=200
    )
    samples = converted(tmp_path / "in", tmp_path / "A")
    assert [sample["n"] for sample in samples] == list(range(20))
    for n, sample in enumerate(samples):
        np.testing.assert_equal(
            sample,
            {
                "n": n, "text": f"ü {n}", "ids": np.arange(n), "grid": np.full((2, 3), n, np.float32), "ok": n % 2 == 0,
                "meta": {"a": [n, "x"]}, "raw": bytes([n]),
            },
        )  # fmt: skip
