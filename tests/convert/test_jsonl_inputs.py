"""JSONL as people really have it."""

from __future__ import annotations

import bz2
import gzip
import json
import math
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

from streamshard import LocalDataset
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, files_of, run, shards_of, write_lines


def _raw(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_b001_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    line = b'{"id":"a","conversations":[]}\n'
    with_mark = _raw(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + line)
    without = _raw(tmp_path / "b.jsonl", line)
    samples = converted(with_mark, tmp_path / "A")
    assert samples == [{"id": "a", "conversations": []}]
    run(without, tmp_path / "B")
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


def test_b003_blank_lines_are_no_records_but_count_as_lines(tmp_path: Path) -> None:
    source = _raw(tmp_path / "a.jsonl", b'{"id":1}\n\n   \n{"id":2}\n\n')
    assert converted(source, tmp_path / "A") == [{"id": 1}, {"id": 2}]
    broken = _raw(tmp_path / "b.jsonl", b'{"id":1}\n\n   \n{"id":\n\n')
    with pytest.raises(ConvertError, match=r"b\.jsonl:4: broken JSON"):
        run(broken, tmp_path / "B")


@pytest.mark.parametrize("last_end", [b"\r\n", b""])
def test_b004_carriage_returns_are_line_ends(tmp_path: Path, last_end: bytes) -> None:
    windows = _raw(tmp_path / "a.jsonl", b'{"id":"a"}\r\n{"id":"b"}' + last_end)
    unix = _raw(tmp_path / "b.jsonl", b'{"id":"a"}\n{"id":"b"}\n')
    assert converted(windows, tmp_path / "A") == [{"id": "a"}, {"id": "b"}]
    run(unix, tmp_path / "B")
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")


def test_b007_nan_and_infinity_come_back_as_themselves(tmp_path: Path) -> None:
    source = _raw(tmp_path / "a.jsonl", b'{"id":"a","score":NaN}\n{"id":"b","score":-Infinity}\n')
    first, second = converted(source, tmp_path / "A")
    assert math.isnan(first["score"])
    assert second["score"] == -math.inf
    nested = _raw(tmp_path / "b.jsonl", b'{"s":[NaN,Infinity]}\n')
    (sample,) = converted(nested, tmp_path / "B")
    assert math.isnan(sample["s"][0])
    assert sample["s"][1] == math.inf


@pytest.mark.parametrize("largest", [2**63 - 1, 2**63, 2**64, -(2**63) - 1])
def test_b009_big_integers_are_exact(tmp_path: Path, largest: int) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"n": 2**63 - 1}, {"n": largest}])
    summary = run(source, tmp_path / "A")
    assert [sample["n"] for sample in LocalDataset(str(tmp_path / "A"))] == [2**63 - 1, largest]
    assert summary.columns["n"] == ("int" if -(2**63) <= largest < 2**63 else "json")


def test_b010_types_depend_on_all_lines_and_not_on_their_order(tmp_path: Path) -> None:
    rows = [{"s": 1.0}, {"s": 2}, {"s": 2.5}]
    for number, order in enumerate([(0, 1, 2), (2, 1, 0), (1, 0, 2)]):
        source = write_lines(tmp_path / "a.jsonl", [rows[place] for place in order])
        samples = converted(source, tmp_path / str(number))
        assert [(sample["s"], type(sample["s"])) for sample in samples] == [
            (rows[place]["s"], type(rows[place]["s"])) for place in order
        ]


def test_b011_a_key_that_one_record_has_is_kept_on_that_record(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": 1}, {"id": 2, "symlink_target": "x"}, {"id": 3}])
    assert converted(source, tmp_path / "A") == [
        {"id": 1, "symlink_target": None},
        {"id": 2, "symlink_target": "x"},
        {"id": 3, "symlink_target": None},
    ]


def test_b012_a_field_that_is_null_for_long_may_become_text(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"meta": {"url": None}, "u": None}] * 5000
    rows = [*rows, {"meta": {"url": "http://x"}, "u": "http://x"}]
    assert converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A") == rows


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_b013_a_json_array_is_its_elements(tmp_path: Path, name: str) -> None:
    source = _raw(tmp_path / name, b'[\n {"id":1},\n {"id":2,\n  "t":"x, ] y"}\n]\n')
    assert converted(source, tmp_path / "A") == [{"id": 1, "t": None}, {"id": 2, "t": "x, ] y"}]
    assert set(files_of(tmp_path / "A")) == {"index.json", "shard.00000.mds"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"id":1},', "expected ',' or ']'|is cut|broken JSON in element 2"),
        (b'[{"id":1} {"id":2}]', "after element 1"),
        (b'[{"id":1}]\n[{"id":2}]\n', "text follows the end of the JSON array"),
        (b'[{"id":1},{"id":tru}' + b" " * 300 + b"]", "broken JSON in element 2"),
        (b'[{"id":1},{"id":1,"id":2}]', "element 2: key 'id' stands twice"),
        (b"[1,2]", "element 1: found a number"),
    ],
)
def test_b013_a_broken_json_array_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(ConvertError, match=words):
        run(_raw(tmp_path / "a.json", content), tmp_path / "A")
    assert not (tmp_path / "A" / "index.json").exists()


def test_a_json_array_larger_than_the_read_block_keeps_every_element(tmp_path: Path) -> None:
    rows = [{"id": number, "t": "é" * 1000 + "\n"} for number in range(3000)]
    source = tmp_path / "a.json"
    source.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8")
    assert converted(source, tmp_path / "A", workers=2) == rows


def test_b014_nested_lists_of_mixed_types_come_back_equal(tmp_path: Path) -> None:
    rows = [{"ner": [[[0, 4, "P"], [15, 16, "Q"]], [], None, {"k": [1, "2", 3.5, True]}]}]
    assert converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A") == rows


def test_b015_text_that_looks_like_json_stays_text(tmp_path: Path) -> None:
    rows = [{"body": '{"a": 1} ,action: string, t: timestamp[s]', "id": 1}, {"body": "[1]", "id": 2}]
    assert converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A") == rows


def test_b016_a_line_longer_than_any_block_is_one_record(tmp_path: Path) -> None:
    rows = [{"t": "a"}, {"t": "x" * 40_000_000}, {"t": "b"}]
    samples = converted(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", workers=2)
    assert [len(sample["t"]) for sample in samples] == [1, 40_000_000, 1]


def test_b079_memory_follows_the_chunk_and_the_shard_and_not_the_file(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    with source.open("wb") as file:
        for number in range(40):
            file.write(b'{"t":"' + b"y" * 1_000_000 + b'","n":%d}\n' % number)
    tracemalloc.start()
    run(source, tmp_path / "A", size_limit=1 << 21)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".zst", zstandard.ZstdCompressor().compress),
        (".two-members.gz", lambda data: gzip.compress(data[:500]) + gzip.compress(data[500:])),
        (
            ".two-frames.zst",
            lambda d: b"".join(zstandard.ZstdCompressor().compress(p) for p in (d[:500], d[500:])),
        ),
    ],
)
def test_b018_compressed_sources_are_read_and_cut_ones_are_named(
    tmp_path: Path, suffix: str, pack: Any
) -> None:
    plain = write_lines(
        tmp_path / "train.jsonl", [{"id": number, "t": str(number) * 9} for number in range(2000)]
    )
    packed = pack(plain.read_bytes())
    source = _raw(tmp_path / f"train.jsonl{suffix}", packed)
    run(plain, tmp_path / "plain")
    run(source, tmp_path / "A")
    assert files_of(tmp_path / "A") == files_of(tmp_path / "plain")
    cut = _raw(tmp_path / f"cut.jsonl{suffix}", packed[:-8])
    with pytest.raises(ConvertError, match=r"cut\.jsonl.*(ends before its end mark|broken)"):
        run(cut, tmp_path / "B")
    assert not (tmp_path / "B" / "index.json").exists()


def test_compressed_garbage_is_named(tmp_path: Path) -> None:
    source = _raw(tmp_path / "train.jsonl.gz", b"\x1f\x8b\x08\x00garbage that is not deflate" * 10)
    with pytest.raises(ConvertError, match=r"train\.jsonl\.gz.*broken gzip data"):
        run(source, tmp_path / "A")


def test_b020_an_empty_file_among_others_is_mentioned(tmp_path: Path) -> None:
    a = write_lines(tmp_path / "a.jsonl", [{"id": number} for number in range(3)])
    b = write_lines(tmp_path / "b.jsonl", [{"id": number} for number in range(3, 5)])
    summary = run([a, _raw(tmp_path / "empty.jsonl", b""), b], tmp_path / "A")
    assert summary.samples == 5
    assert "no records in empty.jsonl" in summary.warnings
    assert [sample["id"] for sample in LocalDataset(str(tmp_path / "A"))] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("content", [b"", b"\n  \n\r\n", b"\xef\xbb\xbf", b"[]"])
def test_b021_no_records_at_all_is_an_error_and_no_dataset(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConvertError, match=r"0 samples: no records in a\.jsonl"):
        run(_raw(tmp_path / "a.jsonl", content), tmp_path / "A")
    assert not (tmp_path / "A" / "index.json").exists()


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (b'{"id":"z","conver', r"a\.jsonl:4: broken JSON at column 11: Unterminated string"),
        (b'{"id":1,}\n', r"a\.jsonl:4: broken JSON at column"),
        (b"[1, 2]\n", r"a\.jsonl:4: found a list"),
        (b'"text"\n', r"a\.jsonl:4: found a string"),
        (b"null\n", r"a\.jsonl:4: found null"),
        (b'{"a":1} {"a":2}\n', r"a\.jsonl:4: broken JSON at column 9: Extra data"),
        (b'{"id":"\xff"}\n', r"a\.jsonl:4: byte 8 of the line is not UTF-8"),
        (b'{"id":"\xed\xa0\x80"}\n', r"a\.jsonl:4: byte 8 of the line is not UTF-8"),
        (b'{"id":' + b"[" * 100_000 + b"\n", r"a\.jsonl:4: JSON nested more than 500 levels deep"),
        (b'{"id":' + b"7" * 5000 + b"}\n", r"a\.jsonl:4: a value that cannot be parsed"),
        (b'{"id":1,"id":1}\n', r"a\.jsonl:4: key 'id' stands twice"),
        (b'{"id":{"x":[{"y":1,"y":2}]}}\n', r"a\.jsonl:4: key 'y' stands twice"),
        (b'{"\\ud800":1}\n', r"a\.jsonl:4: key .* is not valid Unicode"),
        (b'{"":1}\n', r"a\.jsonl:4: a key is the empty string"),
    ],
)
def test_b023_a_broken_line_is_named_or_skipped_and_counted(tmp_path: Path, last: bytes, words: str) -> None:
    source = _raw(tmp_path / "a.jsonl", b'{"id":"a"}\n{"id":"b"}\n{"id":"c"}\n' + last)
    with pytest.raises(ConvertError, match=words) as caught:
        run(source, tmp_path / "A")
    assert "--on-error skip" in str(caught.value)
    assert not (tmp_path / "A" / "index.json").exists()
    summary = run(source, tmp_path / "B", on_error="skip")
    assert summary.samples == 3
    assert sum(summary.skipped.values()) == 1
    assert str(summary.skips[0]).startswith("a.jsonl:4: ")


@pytest.mark.parametrize("workers", [1, 2])
def test_how_deep_json_may_be_does_not_depend_on_who_parses_it(tmp_path: Path, workers: int) -> None:
    depths = [1, 499, 500, 900, 960, 980, 985, 990, 1000, 5000]
    lines = [f'{{"id":{depth},"v":{"[" * (depth - 1)}{"]" * (depth - 1)}0}}' for depth in depths[:1]]
    lines += [f'{{"id":{depth},"v":{"[" * (depth - 1)}{"]" * (depth - 1)}}}' for depth in depths[1:]]
    source = _raw(tmp_path / "a.jsonl", "\n".join(lines).encode())
    summary = run(source, tmp_path / "A", on_error="skip", workers=workers, samples_per_shard=1)
    assert [sample["id"] for sample in LocalDataset(str(tmp_path / "A"))] == [1, 499, 500]
    assert summary.skipped == {"broken JSON": 7}


def test_sources_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name, text in (
        ("x/t.jsonl", b'{"a":1}\n'),
        ("y/t.jsonl", b'{"a":1}\n{bad\n'),
        ("u.jsonl", b"{bad\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        _raw(tmp_path / name, text)
    sources = [tmp_path / name for name in ("x/t.jsonl", "y/t.jsonl", "y/t.jsonl", "u.jsonl")]
    with pytest.raises(ConvertError) as caught:
        run(sources, tmp_path / "A")
    assert [line.split(": ")[0] for line in str(caught.value).split("\n")[1:-1]] == [
        "  y/t.jsonl:2",
        "  y/t.jsonl:2",
        "  u.jsonl:1",
    ]


def test_skipping_everything_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConvertError, match=r"0 samples: all 2 records of a\.jsonl were skipped \(2 broken JSON\)"
    ):
        run(_raw(tmp_path / "a.jsonl", b"{\n}\n"), tmp_path / "A", on_error="skip")
    assert not (tmp_path / "A" / "index.json").exists()


_LINES = '{"id": 1, "t": "é"}\n{"id": 2, "t": "\U0001f600"}\n'


@pytest.mark.parametrize(
    ("encoding", "form"),
    [
        ("utf-16", "lines"), ("utf-16-le", "array"), ("utf-16-be", "lines"),
        ("utf-32", "array"), ("utf-32-le", "lines"), ("utf-32-be", "packed"),
    ],
)  # fmt: skip
def test_utf16_and_utf32_are_read_with_and_without_a_mark(tmp_path: Path, encoding: str, form: str) -> None:
    text = f"[{_LINES.strip().replace(chr(10), ',')}]" if form == "array" else _LINES.replace("\n", "\r\n")
    content = text.encode(encoding)
    source = _raw(tmp_path / "a.jsonl", gzip.compress(content) if form == "packed" else content)
    assert [sample["t"] for sample in converted(source, tmp_path / "A")] == ["é", "\U0001f600"]
    assert run(source, tmp_path / "A").finished_before


def test_broken_utf16_is_named_with_its_line_and_a_bad_line_too(tmp_path: Path) -> None:
    cut = (_LINES * 100_000).encode("utf-16")[:-3]
    with pytest.raises(
        ConvertError, match=r"a\.jsonl.*: line 200000: not UTF-16, as which it begins: .*the file was cut"
    ):
        run(_raw(tmp_path / "a.jsonl", cut), tmp_path / "A")
    with pytest.raises(ConvertError, match=r"a\.jsonl:3: broken JSON"):
        run(_raw(tmp_path / "a.jsonl", f"{_LINES}nope\n".encode("utf-16")), tmp_path / "A")
    # Zeros alone make no UTF-32 of it.
    with pytest.raises(ConvertError, match=r"a\.jsonl:1: broken JSON"):
        run(_raw(tmp_path / "a.jsonl", b"\0\0\0\1\n"), tmp_path / "A")


def test_a_source_that_is_not_there_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match=r"nope\.jsonl.*no such file"):
        run(tmp_path / "nope.jsonl", tmp_path / "A")
    with pytest.raises(ConvertError, match="a folder without files of a known kind"):
        run(tmp_path, tmp_path / "A")
    assert not (tmp_path / "A").exists()


def test_problems_are_listed_up_to_a_bound_with_their_total(tmp_path: Path) -> None:
    source = _raw(tmp_path / "a.jsonl", b"{\n" * 500 + b'{"id":1}\n')
    with pytest.raises(ConvertError, match="500 records cannot be converted") as caught:
        run(source, tmp_path / "A")
    assert "a.jsonl:20: " in str(caught.value)
    assert "a.jsonl:21: " not in str(caught.value)
    assert "and 480 more" in str(caught.value)


@pytest.mark.parametrize("workers", [1, 2])
def test_b003_line_numbers_are_physical_however_far_into_the_file(tmp_path: Path, workers: int) -> None:
    line = json.dumps({"text": "x" * 500}).encode()
    source = _raw(tmp_path / "a.jsonl", (line + b"\n\n") * 2000 + b"{\n" + (line + b"\r\n") * 10 + b"[]")
    with pytest.raises(ConvertError) as caught:
        run(source, tmp_path / "A", workers=workers)
    assert "a.jsonl:4001: broken JSON" in str(caught.value)
    assert "a.jsonl:4012: found a list" in str(caught.value)
