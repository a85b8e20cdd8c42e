"""Parquet and Arrow files as sources."""

from __future__ import annotations

import decimal
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset
from streamshard.convert import worker
from streamshard.convert.forms.arrow import BatchTyping
from streamshard.errors import ConvertError, MissingDependencyError
from tests.support.jsonl_inputs import (
    converted,
    files_of,
    picture,
    run,
    shards_of,
    stopped_after,
    write_lines,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write_table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    """A Parquet file of these columns (lists, or arrays of pyarrow)."""
    pq.write_table(pa.table(columns), path, **options)
    return path


def _columns(out: Path) -> dict[str, str]:
    (schema,) = LocalDataset(str(out))._index.schemas
    return dict(zip(schema.names, schema.encodings, strict=True))


_TYPES: list[tuple[Any, str, list[Any]]] = [
    (pa.array([1, -2], pa.int64()), "int", [1, -2]),
    (pa.array([1, -2], pa.int8()), "int8", [1, -2]),
    (pa.array([1, 2**63], pa.uint64()), "uint64", [1, 2**63]),
    (pa.array([0.1, 2.5], pa.float32()), "float32", [np.float32(0.1), 2.5]),
    (pa.array([1.5, float("inf")]), "float64", [1.5, float("inf")]),
    (pa.array(["a", "ü☃"]), "str", ["a", "ü☃"]),
    (pa.array(["a", "b"], pa.large_string()), "str", ["a", "b"]),
    (pa.array(["a", "a"]).dictionary_encode(), "str", ["a", "a"]),
    (pa.array([b"\0x", b""], pa.binary()), "bytes", [b"\0x", b""]),
    (pa.array([b"\0x", None], pa.binary()), "bytes", [b"\0x", b""]),
    (pa.array([b"ab", b"cd"], pa.binary(2)), "bytes", [b"ab", b"cd"]),
    (pa.array([True, False]), "json", [True, False]),
    (pa.array([1, None], pa.int32()), "json", [1, None]),
    (pa.array(["a", None]), "json", ["a", None]),
    (pa.array([None, None]), "json", [None, None]),
    (pa.array([[1, 2], []], pa.list_(pa.int32())), "ndarray:int32", [[1, 2], []]),
    (pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), "ndarray:float32:2", [[1, 2], [3, 4]]),
    (pa.array([[1, None], [2]]), "json", [[1, None], [2]]),
    (pa.array([[1], None]), "json", [[1], None]),
    (pa.array([["a"], []]), "json", [["a"], []]),
    (pa.array([{"a": 1, "b": [{"c": None}]}] * 2), "json", [{"a": 1, "b": [{"c": None}]}] * 2),
    (pa.array([datetime(2026, 1, 2, 3)] * 2, pa.timestamp("s")), "str", ["2026-01-02 03:00:00.000"] * 2),
    (pa.array([decimal.Decimal("1.50")] * 2), "str", ["1.50"] * 2),
]


def test_every_type_has_the_encoding_that_holds_it(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", {f"x{n}": values for n, (values, _, _) in enumerate(_TYPES)})
    samples = converted(source, tmp_path / "A")
    assert _columns(tmp_path / "A") == {f"x{n}": encoding for n, (_, encoding, _) in enumerate(_TYPES)}
    for number, (values, _, read) in enumerate(_TYPES):
        found = [sample[f"x{number}"] for sample in samples]
        plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in found]
        np.testing.assert_equal(plain, read, err_msg=str(values.type))


def _table(count: int) -> dict[str, Any]:
    return {
        "id": list(range(count)),
        "text": [f"text {number} ☃" * (number % 7) for number in range(count)],
        "tokens": pa.array([list(range(number % 11)) for number in range(count)], pa.list_(pa.uint16())),
        "image": [
            {"bytes": picture(color=(number % 256, 1, 2)), "path": f"/home/me/{number}.png"} for number in range(count)
        ],
    }  # fmt: skip


def test_parquet_round_trip_sample_for_sample_for_any_workers_row_groups_and_shuffle(tmp_path: Path) -> None:
    table = _table(300)
    one = write_table(tmp_path / "one.parquet", table, row_group_size=300)
    many = write_table(tmp_path / "many.parquet", table, row_group_size=17)
    samples = converted(one, tmp_path / "A", samples_per_shard=50)
    assert [sample["id"] for sample in samples] == table["id"]
    assert [sample["text"] for sample in samples] == table["text"]
    assert [sample["tokens"].tolist() for sample in samples] == table["tokens"].to_pylist()
    assert [sample["image"] for sample in samples] == [image["bytes"] for image in table["image"]]
    assert [sample["image_path"] for sample in samples] == [f"{number}.png" for number in range(300)]
    assert _columns(tmp_path / "A")["image"] == "png"
    run(many, tmp_path / "B", samples_per_shard=50, workers=2)
    assert shards_of(tmp_path / "B") == shards_of(tmp_path / "A")
    mixed = converted(many, tmp_path / "C", samples_per_shard=50, shuffle=3)
    assert sorted(sample["id"] for sample in mixed) == table["id"]
    assert [sample["id"] for sample in mixed] != table["id"]
    by_id = {sample["id"]: sample for sample in mixed}
    np.testing.assert_equal([by_id[number] for number in range(300)], samples)


def test_a_large_file_is_divided_among_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamshard.convert.forms import arrow

    source = write_table(tmp_path / "a.parquet", {"id": list(range(100))}, row_group_size=10)
    monkeypatch.setattr(arrow, "_PART_NBYTES", 1)
    assert arrow.row_group_spans(source, "a")[-1] == ((9, 10), 90)
    assert [sample["id"] for sample in converted(source, tmp_path / "A")] == list(range(100))


def test_an_interrupted_run_reads_no_part_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_table(tmp_path / "a.parquet", _table(60))
    run(source, tmp_path / "whole", samples_per_shard=10)
    with stopped_after(2):
        run(source, tmp_path / "A", samples_per_shard=10)
    for stage in ("stage", "scan"):
        monkeypatch.setitem(worker.FUNCTIONS, stage, lambda *_: pytest.fail("done again"))
    assert run(source, tmp_path / "A", samples_per_shard=10).resumed_shards == 2
    assert files_of(tmp_path / "A") == files_of(tmp_path / "whole")


def test_the_same_job_over_its_own_outcome_has_nothing_to_do(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", _table(20))
    run(source, tmp_path / "A")
    assert run(source, tmp_path / "A").finished_before
    write_table(source, {**_table(20), "text": ["other"] * 20})
    with pytest.raises(ConvertError, match="other records"):
        run(source, tmp_path / "A")


def test_a_column_that_files_type_differently_is_typed_by_all_values(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", {"n": pa.array([1, 2], pa.int32()), "t": pa.array([[1]] * 2)})
    write_table(
        tmp_path / "b.parquet", {"n": pa.array([3], pa.int64()), "t": pa.array([None], pa.list_(pa.int64()))}
    )
    samples = converted([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "A")
    assert samples == [{"n": 1, "t": [1]}, {"n": 2, "t": [1]}, {"n": 3, "t": None}]
    assert _columns(tmp_path / "A") == {"n": "int", "t": "json"}


def test_rows_with_problems_are_named_and_skipped(tmp_path: Path) -> None:
    images = [{"bytes": picture(), "path": None}, {"bytes": b"\x89PNG\r\n\x1a\nbroken", "path": None}]
    source = write_table(tmp_path / "a.parquet", {"image": images, "n": [1, 2]})
    with pytest.raises(
        ConvertError, match=r"a\.parquet: row 2: image in the record: content is not a readable image"
    ):
        run(source, tmp_path / "A")
    assert converted(source, tmp_path / "A", on_error="skip") == [{"image": images[0]["bytes"], "n": 1}]


def test_tensors_of_fixed_shape_keep_it(tmp_path: Path) -> None:
    rows = pa.array([list(range(6)), list(range(6, 12))], pa.list_(pa.float32(), 6))
    plain = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    turned = pa.fixed_shape_tensor(pa.float32(), (2, 3), permutation=[1, 0])
    columns = {
        "plain": pa.ExtensionArray.from_storage(plain, rows),
        "turned": pa.ExtensionArray.from_storage(turned, rows),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    summary = run(tmp_path / "a.parquet", tmp_path / "A")
    assert summary.columns == {"plain": "ndarray:float32:2,3", "turned": "ndarray:float32:3,2"}
    for number, sample in enumerate(LocalDataset(str(tmp_path / "A"))):
        wanted = np.arange(6, dtype=np.float32).reshape(2, 3) + 6 * number
        np.testing.assert_array_equal(sample["plain"], wanted)
        np.testing.assert_array_equal(sample["turned"], wanted.T)
    holes = pa.ExtensionArray.from_storage(plain, pa.array([list(range(6)), None], pa.list_(pa.float32(), 6)))
    pq.write_table(pa.table({"x": holes}), tmp_path / "b.parquet")
    assert run(tmp_path / "b.parquet", tmp_path / "B").columns == {"x": "json"}


def _features(**shapes: Any) -> dict[str, str]:
    named = {name: {"shape": shape, "_type": "Array2D"} for name, shape in shapes.items()}
    return {"huggingface": json.dumps({"info": {"features": named}})}


def test_nested_lists_whose_shape_is_said_are_arrays(tmp_path: Path) -> None:
    pairs = pa.list_(pa.list_(pa.int16()))
    columns = {
        "fixed": pa.array([[[1, 2, 3], [4, 5, 6]]] * 2, pa.list_(pa.list_(pa.float32(), 3), 2)),
        "said": pa.array([[[1, 2], [3, 4], [5, 6]]] * 2, pairs),
        "rows": pa.array([[[1, 2]], [[3, 4], [5, 6]]], pairs),
        # All that is no array of a known shape stays JSON.
        "plain": pa.array([[[1, 2], [3, 4]]] * 2, pairs),
        "null": pa.array([[[1, 2]], None], pairs),
        "hole": pa.array([[[1, None]], [[1, 2]]], pairs),
        "ragged": pa.array([[[1, 2]], [[3]]], pairs),
        "flat": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16())),
        "flags": pa.array([[[True, False]]] * 2, pa.list_(pa.list_(pa.bool_()))),
    }
    shapes = {"said": [3, 2], "rows": [None, 2]}
    shapes |= {key: [1, 2] for key in ["null", "hole", "ragged", "flat", "flags"]}
    table = pa.table(columns).replace_schema_metadata(_features(**shapes))
    pq.write_table(table, tmp_path / "a.parquet")
    summary = run(tmp_path / "a.parquet", tmp_path / "A")
    assert summary.columns == {
        "fixed": "ndarray:float32:2,3",
        "said": "ndarray:int16:3,2",
        "rows": "ndarray:int16",
        "flat": "ndarray:int16",
        **dict.fromkeys(["plain", "null", "hole", "ragged", "flags"], "json"),
    }
    for row, sample in zip(table.to_pylist(), LocalDataset(str(tmp_path / "A")), strict=True):
        assert {
            key: value if value is None else np.array(value).tolist() for key, value in sample.items()
        } == row


@pytest.mark.parametrize(
    "shape", [None, 3, [], [2], ["2", 2], [2, None], [2, -1], [True, 2], [1 << 70, 2], [1] * 40]
)
def test_a_shape_that_is_none_says_nothing(tmp_path: Path, shape: Any) -> None:
    table = pa.table({"x": [[[1, 2], [3, 4]]]}).replace_schema_metadata(_features(x=shape))
    typing = BatchTyping()
    (values,) = typing.columns(table.to_batches()[0])
    assert (values, typing.declared()) == ([[[1, 2], [3, 4]]], {})


@pytest.mark.parametrize("shape", [[0, -1], [None, 1 << 70], [0, 1 << 40, 1 << 40]])
def test_a_shape_that_no_array_has_says_nothing_of_empty_lists(tmp_path: Path, shape: Any) -> None:
    kind = pa.int32()
    for _ in shape:
        kind = pa.list_(kind)
    table = pa.table({"x": pa.array([[], []], kind)}).replace_schema_metadata(_features(x=shape))
    typing = BatchTyping()
    (values,) = typing.columns(table.to_batches()[0])
    assert (values, typing.declared()) == ([[], []], {})


def test_image_files_in_a_binary_column_are_found_by_content(tmp_path: Path) -> None:
    source = write_table(
        tmp_path / "a.parquet", {"photo": [picture(), None], "jpgs": [[picture("JPEG")] * 2, []]}
    )
    summary = run(source, tmp_path / "A")
    assert summary.columns == {"photo": "list[png]", "jpgs": "list[jpeg]"}
    assert summary.images == {"photo": {"png": 1}, "jpgs": {"jpeg": 2}}
    mixed = write_table(tmp_path / "b.parquet", {"photo": [picture(), b"no image"]})
    with pytest.raises(ConvertError, match=r"'photo' holds image files in 1 of 2 records and something else"):
        run(mixed, tmp_path / "B")
    assert run(mixed, tmp_path / "C", columns=(("photo", "bytes"),)).columns == {"photo": "bytes"}


def test_audio_files_are_kept_as_bytes_with_their_name(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", {"audio": [{"bytes": b"RIFF....WAVE", "path": "x/a.wav"}]})
    assert converted(source, tmp_path / "A") == [{"audio": b"RIFF....WAVE", "audio_path": "a.wav"}]


def test_a_cut_or_false_file_is_named(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", _table(50))
    content = source.read_bytes()
    for damaged in (content[:-100], content[:100], b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1"):
        source.write_bytes(damaged)
        with pytest.raises(ConvertError, match=r"'a\.parquet': not a sound Parquet file"):
            run(source, tmp_path / "A")
    # A flipped page may decode or not, but what is said names the file.
    damaged = bytearray(content)
    damaged[200:240] = b"\xff" * 40
    source.write_bytes(bytes(damaged))
    with pytest.raises(ConvertError, match=r"a\.parquet"):
        run(source, tmp_path / "A")
    assert not (tmp_path / "A" / "index.json").exists()


def test_no_rows_are_no_dataset_and_one_empty_file_is_mentioned(tmp_path: Path) -> None:
    empty = write_table(tmp_path / "empty.parquet", {"id": pa.array([], pa.int64())})
    with pytest.raises(ConvertError, match=r"0 samples: no records in empty\.parquet"):
        run(empty, tmp_path / "A")
    full = write_table(tmp_path / "full.parquet", {"id": pa.array([1], pa.int16())})
    summary = run([empty, full], tmp_path / "A")
    assert summary.columns == {"id": "int16"}
    assert "no records in empty.parquet" in summary.warnings


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_files_of_both_forms_are_read(tmp_path: Path, stream: bool) -> None:
    table = pa.table(_table(30))
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        make = pa.ipc.new_stream if stream else pa.ipc.new_file
        with make(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    run(tmp_path / "a.arrow", tmp_path / "A")
    run(write_table(tmp_path / "a.parquet", _table(30)), tmp_path / "B")
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "B")
    cut = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(cut[: len(cut) // 2])
    with pytest.raises(ConvertError, match=r"'a\.arrow': not a sound Arrow file"):
        run(tmp_path / "a.arrow", tmp_path / "C")


def test_parquet_beside_jsonl_gives_one_dataset(tmp_path: Path) -> None:
    lines = write_lines(tmp_path / "a.jsonl", [{"n": 1, "t": "a"}])
    table = write_table(tmp_path / "b.parquet", {"n": pa.array([2], pa.int8()), "t": ["b"]})
    assert converted([lines, table], tmp_path / "A") == [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}]


def test_columns_can_be_dropped_renamed_and_typed(tmp_path: Path) -> None:
    source = write_table(tmp_path / "a.parquet", {"a": [1], "b": [b"x"], "c": [[1, 2]]})
    options: dict[str, Any] = {
        "drop": ("b",),
        "rename": (("c", "d"),),
        "columns": (("d", "json"), ("a", "uint8")),
    }
    assert converted(source, tmp_path / "A", **options) == [{"a": 1, "d": [1, 2]}]
    assert _columns(tmp_path / "A") == {"a": "uint8", "d": "json"}
    refused = write_table(tmp_path / "b.parquet", {"a": [1, 256, None]})
    with pytest.raises(
        ConvertError, match=r"row 2: key 'a' holds '256': 256 is out of range(.|\n)*row 3: key 'a' is null"
    ):
        run(refused, tmp_path / "B", columns=(("a", "uint8"),))


def test_a_missing_pyarrow_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_table(tmp_path / "a.parquet", {"a": [1]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'streamshard\[parquet\]'"):
        run(source, tmp_path / "A")


def test_tensors_keep_their_shape_beside_null(tmp_path: Path) -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 2), permutation=[1, 0])
    rows = pa.array([[1, 2, 3, 4], None], pa.list_(pa.float32(), 4))
    values, encoding = BatchTyping()._values(pa.ExtensionArray.from_storage(kind, rows))
    assert (values, encoding) == ([[[1, 3], [2, 4]], None], None)
