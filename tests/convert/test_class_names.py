"""Names of classes stay with the dataset, where its readers and those of mosaicml-streaming look for other things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset, convert_records
from streamshard.convert.class_names import names_in_features, names_in_schema
from streamshard.write.merge import merge_index
from tests.convert.test_saved_datasets import save_dataset
from tests.support.jsonl_inputs import converted, picture, run, write_lines

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def _label(*names: str) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def _table(columns: dict[str, Any], features: dict[str, Any]) -> Any:
    text = json.dumps({"info": {"features": features}})
    return pa.table(columns).replace_schema_metadata({"huggingface": text})


def _names(out: Path) -> Any:
    return json.loads((out / "index.json").read_text())["streamshard"].get("class_names")


_FEATURES = {
    "label": _label("cat", "dog"),
    "text": {"dtype": "string", "_type": "Value"},
    "tags": {"feature": _label("x", "y"), "_type": "List"},
    "objects": {"feature": {"kind": _label("car"), "n": {"_type": "Value"}}, "_type": "Sequence"},
    "boxes": [{"kind": _label("bus")}],
    "inner": {"deep": {"kind": _label("a")}},
}
_EXPECTED = {
    "label": ["cat", "dog"],
    "tags": ["x", "y"],
    "objects.kind": ["car"],
    "boxes.kind": ["bus"],
    "inner.deep.kind": ["a"],
}


def test_names_are_found_in_features_of_any_shape() -> None:
    assert names_in_features(_FEATURES) == _EXPECTED


@pytest.mark.parametrize(
    "features",
    [
        None,
        [],
        "x",
        {"label": {"_type": "ClassLabel"}},
        {"label": {"_type": "ClassLabel", "names": {"0": "a"}}},
        {"label": {"_type": "ClassLabel", "names": [1]}},
        {"label": {"_type": "ClassLabel", "names": ["x" * (1 << 20), "y"]}},
        {"_type": "ClassLabel", "names": ["a"]},
    ],
)
def test_features_that_say_nothing(features: Any) -> None:
    assert names_in_features(features) == {}
    assert names_in_schema({b"huggingface": json.dumps({"info": {"features": features}}).encode()}) == {}


@pytest.mark.parametrize("metadata", [None, {}, {b"huggingface": b"{"}, {b"huggingface": b"[" * 100_000}])
def test_a_schema_that_says_nothing(metadata: Any) -> None:
    assert names_in_schema(metadata) == {}


def test_names_of_a_parquet_file_follow_their_columns(tmp_path: Path) -> None:
    columns = {"label": [0, 1], "tags": [[0], [1]], "objects": [{"kind": [0]}] * 2, "gone": [0, 0]}
    features = {**_FEATURES, "gone": _label("g"), "lacking": _label("l")}
    pq.write_table(_table(columns, features), tmp_path / "a.parquet")
    run(
        tmp_path / "a.parquet",
        tmp_path / "A",
        drop=("gone",),
        rename=(("label", "class"), ("objects", "seen")),
    )
    assert _names(tmp_path / "A") == {"class": ["cat", "dog"], "tags": ["x", "y"], "seen.kind": ["car"]}
    # Sharded again, with another selection.
    assert len(converted(tmp_path / "A", tmp_path / "B", samples_per_shard=1, drop=("tags",))) == 2
    assert _names(tmp_path / "B") == {"class": ["cat", "dog"], "seen.kind": ["car"]}
    converted(tmp_path / "B", tmp_path / "C", rename=(("class", "kind"),))
    assert _names(tmp_path / "C") == {"kind": ["cat", "dog"], "seen.kind": ["car"]}
    assert [sample["kind"] for sample in LocalDataset(str(tmp_path / "C"))] == [0, 1]


def test_names_of_saved_datasets_folders_and_rows(tmp_path: Path) -> None:
    folder = save_dataset(tmp_path / "set", {"label": [0, 1, 1]})
    for path in folder.glob("*.arrow"):
        table = _table({"label": [0, 1]}, {"label": _label("cat", "dog")})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    run(folder, tmp_path / "A")
    assert _names(tmp_path / "A") == {"label": ["cat", "dog"]}
    for name in ("b", "a"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.png").write_bytes(picture())
    run(tmp_path / "images", tmp_path / "B")
    assert _names(tmp_path / "B") == {"label": ["a", "b"]}
    convert_records(_table({"label": [1]}, {"label": _label("cat", "dog")}), tmp_path / "C", workers=1)
    assert _names(tmp_path / "C") == {"label": ["cat", "dog"]}


def test_names_that_differ_are_told_and_left_out(tmp_path: Path) -> None:
    pq.write_table(
        _table({"label": [0], "k": [0]}, {"label": _label("a", "b"), "k": _label("z")}),
        tmp_path / "a.parquet",
    )
    pq.write_table(_table({"label": [0], "k": [0]}, {"label": _label("a", "c")}), tmp_path / "b.parquet")
    summary = run([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "A")
    (warning,) = summary.warnings
    assert "the classes of 'label' differ: 1 is 'b' in some of the input and 'c' in other input" in warning
    assert _names(tmp_path / "A") == {"k": ["z"]}


def test_what_is_added_has_the_same_classes_or_is_warned_of(tmp_path: Path) -> None:
    for name, names in (("a", ("a", "b")), ("b", ("a", "b")), ("c", ("b", "a")), ("d", ("a", "b", "c"))):
        pq.write_table(
            _table({"label": [0], "name": [name]}, {"label": _label(*names)}), tmp_path / f"{name}.parquet"
        )
    out = tmp_path / "A"
    assert run(tmp_path / "a.parquet", out, append=True).warnings == ()
    assert run(tmp_path / "b.parquet", out, append=True).warnings == ()
    (warning,) = run(tmp_path / "c.parquet", out, append=True).warnings
    assert f"0 is 'a' in {out} and 'b' in what is added" in warning
    (warning,) = run(tmp_path / "d.parquet", out, append=True).warnings
    assert f"2 in {out} and 3 in what is added" in warning
    assert _names(out) == {"label": ["a", "b"]}
    assert (
        run(write_lines(tmp_path / "e.jsonl", [{"label": 1, "name": "e"}]), out, append=True).warnings == ()
    )


def test_names_that_are_added_to_a_dataset_without_any_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "A"
    run(write_lines(tmp_path / "a.jsonl", [{"label": 1, "kind": 0}]), out)
    for name, features in (
        ("b", {"label": _label("x", "y")}),
        ("c", {"label": _label("x", "y"), "kind": _label("z")}),
    ):
        pq.write_table(_table({"label": [0], "kind": [0]}, features), tmp_path / f"{name}.parquet")
        assert run(tmp_path / f"{name}.parquet", out, append=True).warnings == ()
    assert _names(out) == {"label": ["x", "y"], "kind": ["z"]}


def test_names_survive_a_merge(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(_table({"label": [0]}, {"label": _label("x")}), tmp_path / f"{name}.parquet")
        run(tmp_path / f"{name}.parquet", tmp_path / "all" / name)
    merge_index(str(tmp_path / "all"))
    assert _names(tmp_path / "all") == {"label": ["x"]}
