"""Costs that a writer counts, and what a merge keeps of them."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamshard import MDSWriter, merge_index
from streamshard.errors import FormatError, SampleError
from streamshard.format.index import index_text
from streamshard.write.costs import Cost, count_of
from tests.support.stored_datasets import files_of, load_index, load_samples

COLUMNS = {"n": "int", "ids": "ndarray:uint16", "turns": "json", "text": "str"}


def sample(number: int) -> dict[str, Any]:
    ids = np.zeros((number % 4, 2), np.uint16)
    return {"n": number, "ids": ids, "turns": [{}] * (number % 3) or None, "text": "é" * number}


def characters(sample: Mapping[str, Any]) -> int:
    return len(sample["text"])


COSTS: dict[str, Cost] = {"n": "n", "ids": "ids", "turns": "turns", "chars": characters}


def write(
    out: Path, numbers: Any = range(30), costs: Mapping[str, Cost] | None = COSTS, **options: Any
) -> None:
    with MDSWriter(out=out, columns=COLUMNS, costs=costs, **{"samples_per_shard": 7, **options}) as writer:
        for number in numbers:
            writer.write(sample(number))


def sums(directory: Path) -> dict[str, list[int]]:
    return {name: values.tolist() for name, values in load_index(directory).costs.items()}


def test_each_shard_has_the_sum_of_its_samples(tmp_path: Path) -> None:
    write(tmp_path)
    spans = [range(begin, min(begin + 7, 30)) for begin in range(0, 30, 7)]
    assert sums(tmp_path) == {
        "n": [sum(span) for span in spans],
        "ids": [sum(2 * (number % 4) for number in span) for span in spans],
        "turns": [sum(number % 3 for number in span) for span in spans],
        "chars": [sum(span) for span in spans],
    }
    stored = json.loads((tmp_path / "index.json").read_text())["streamshard"]["costs"]["n"]
    assert stored == {"shards": [sum(span) for span in spans], "total": 435}


def test_costs_change_nothing_but_the_index(tmp_path: Path) -> None:
    for name, costs in (("with", COSTS), ("none", None), ("empty", {})):
        write(tmp_path / name, costs=costs, size_limit=400, samples_per_shard=None)
    found = {name: files_of(tmp_path / name) for name in ("with", "none", "empty")}
    assert found["none"] == found["empty"]
    assert b"streamshard" not in found["none"]["index.json"]
    indexes = {name: json.loads(files.pop("index.json")) for name, files in found.items()}
    assert found["with"] == found["none"]
    assert indexes["with"].pop("streamshard")["costs"].keys() == COSTS.keys()
    assert indexes["with"] == indexes["none"]
    assert len(found["with"]) > 5


def test_a_dataset_without_samples_has_costs_of_no_shards(tmp_path: Path) -> None:
    write(tmp_path, numbers=())
    assert sums(tmp_path) == {name: [] for name in COSTS}


def test_a_function_sees_keys_that_are_no_columns(tmp_path: Path) -> None:
    with MDSWriter(
        out=tmp_path, columns={"n": "int"}, costs={"tokens": lambda row: len(row["ids"])}
    ) as writer:
        with pytest.warns(UserWarning, match="no columns"):
            writer.write({"n": 1, "ids": [1, 2, 3]})
        writer.write({"n": 1, "ids": [4]})
    assert sums(tmp_path) == {"tokens": [4]}


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 0), (0, 0), (7, 7), ((1 << 63) - 1, (1 << 63) - 1), (np.uint8(9), 9), (np.array(4), 4),
        ([], 0), ([1, 2], 2), (("a",), 1), ([{}, {}], 2), (np.zeros((2, 3)), 6), (np.zeros(0), 0),
    ],
)  # fmt: skip
def test_what_a_value_counts_for(value: Any, count: int) -> None:
    assert count_of(value) == count


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "found bool True"),
        (2.0, r"found float 2\.0"),
        ("12", "found str '12'"),
        (b"12", "found bytes b'12'"),
        ({}, "found dict"),
        (np.float32(1), "found float32"),
        (np.array(1.5), "found ndarray"),
        ([[1], [2]], "list of lists"),
        (-1, r"found -1; expected 0 to 2\*\*63 - 1"),
        (1 << 63, f"found {1 << 63}"),
        (1 << 2000, "found a number of 2001 bits"),
        ("x" * 10**6, "found str 'xxx"),
    ],
)
def test_what_counts_nothing_is_refused(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        count_of(value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"n": -5}, "sample 1: cost 'n' of column 'n': found -5"),
        ({"turns": "hi"}, "sample 1: cost 'turns' of column 'turns': found str 'hi'"),
        ({"turns": 0.5}, "sample 1: cost 'turns' of column 'turns': found float"),
        ({"text": "bad"}, "sample 1: cost 'chars': the function gave str 'many'; expected a whole number"),
        ({"text": "short"}, r"sample 1: cost 'chars': found -1; expected 0 to"),
    ],
)
def test_a_sample_that_cannot_be_counted_is_refused_and_left_out(
    tmp_path: Path, row: dict[str, Any], words: str
) -> None:
    def odd(row: Mapping[str, Any]) -> Any:
        return {"bad": "many", "short": -1}.get(row["text"], len(row["text"]))

    with MDSWriter(out=tmp_path, columns=COLUMNS, costs={**COSTS, "chars": odd}) as writer:
        writer.write(sample(3))
        with pytest.raises(SampleError, match=words):
            writer.write({**sample(4), **row})
        writer.write(sample(5))
    assert sums(tmp_path) == {"n": [8], "ids": [8], "turns": [2], "chars": [8]}
    assert [row["n"] for row in load_samples(tmp_path)] == [3, 5]


def test_an_error_in_a_function_ends_the_block_as_any_other(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError, match="nope"),
        MDSWriter(out=tmp_path / "d", columns={"n": "int"}, costs={"x": lambda row: row["nope"]}) as writer,
    ):
        writer.write({"n": 1})
    assert not (tmp_path / "d").exists()


def test_a_total_that_would_pass_int64_is_refused(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"n": "int"}, costs={"n": "n"}, samples_per_shard=1) as writer:
        writer.write({"n": (1 << 63) - 2})
        with pytest.raises(
            SampleError, match=r"sample 1: cost 'n': the dataset's total would pass 2\*\*63 - 1"
        ):
            writer.write({"n": 2})
        writer.write({"n": 1})
    assert sums(tmp_path) == {"n": [(1 << 63) - 2, 1]}


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({"bytes": "n"}, "cost name 'bytes'"),
        ({"a b": "n"}, "cost name 'a b'"),
        (
            {"tokens": "nope"},
            "costs: 'tokens': 'nope' is no column; expected one of 'n', 'ids', 'turns', 'text'",
        ),
        ({"tokens": 3}, "costs: 'tokens': 3 is no column"),
        ({"tokens": "text"}, "column 'text' is 'str', which counts nothing by itself"),
    ],
)
def test_costs_that_make_no_sense_are_refused_before_anything_is_made(
    tmp_path: Path, costs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        MDSWriter(out=tmp_path / "d", columns=COLUMNS, costs=costs)
    assert not (tmp_path / "d").exists()


# Merging


@settings(max_examples=25, deadline=None)
@given(
    parts=st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(any),
    per_shard=st.integers(1, 5),
)
@example(parts=[0, 3, 5], per_shard=2)
def test_merged_costs_are_those_of_the_shards_in_their_new_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[int], per_shard: int
) -> None:
    root = tmp_path_factory.mktemp("merged")
    for number, count in enumerate(parts):
        costs = COSTS if count else None  # a part without shards lacks nothing
        numbers = range(100 * number, 100 * number + count)
        write(root / f"{number}", numbers, costs, samples_per_shard=per_shard)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge_index(str(root))
    rows = load_samples(root)
    begins = load_index(root).begins.tolist()
    assert sums(root)["n"] == [
        sum(row["n"] for row in rows[begin:end]) for begin, end in itertools.pairwise(begins)
    ]
    assert set(sums(root)) == set(COSTS)
    # A merged index can be merged again.
    write(root / "more", range(3))
    merge_index([str(root / "more" / "index.json"), str(root / "index.json")], str(root))
    assert sums(root)["n"][0] == 3
    assert len(sums(root)["n"]) == load_index(root).num_shards


def test_a_cost_that_a_part_lacks_is_left_out_with_one_warning(tmp_path: Path) -> None:
    write(tmp_path / "a", range(3), {"n": "n", "chars": characters})
    write(tmp_path / "b", range(4), {"n": "n"})
    write(tmp_path / "c", range(5), {"n": "n"})
    with pytest.warns(
        UserWarning, match="cost 'chars' is left out, since the index in 'b' lacks it, as do 1"
    ) as got:
        merge_index(str(tmp_path))
    assert [Path(warning.filename).name for warning in got] == ["test_costs.py"]
    assert sums(tmp_path) == {"n": [3, 6, 10]}
    assert "parts" not in load_index(tmp_path).extra


def test_costs_that_add_up_to_too_much_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, [1], {"n": "n"})
        index = load_index(tmp_path / name)
        extra = {"costs": {"n": {"shards": [1 << 62], "total": 1 << 62}}}
        (tmp_path / name / "index.json").write_bytes(index_text(index.shards, extra))
    with pytest.raises(FormatError, match="cost 'n' adds up to"):
        merge_index(str(tmp_path))
    assert not (tmp_path / "index.json").exists()
