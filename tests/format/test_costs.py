"""Costs in an index: what is written reads back, and what contradicts itself is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streamshard.errors import FormatError
from streamshard.format.costs import check_cost_name, costs_entry, parse_costs
from streamshard.format.index import FileInfo, Index, ShardInfo, index_text, parse_index
from streamshard.format.schema import Schema

SHARDS = tuple(
    ShardInfo(Schema.from_columns({"n": "int"}), None, (), FileInfo(f"{i}.mds", 1000, {}), None, 3, None)
    for i in range(2)
)
MOST = (1 << 63) - 1


def test_costs_read_back_as_they_were_written() -> None:
    extra = {"costs": costs_entry({"tokens": [5, 7], "chars": [0, MOST]}), "images": {}}
    assert extra["costs"]["tokens"] == {"shards": [5, 7], "total": 12}
    index = parse_index(index_text(SHARDS, extra), source="x")
    assert {name: sums.tolist() for name, sums in index.costs.items()} == {
        "tokens": [5, 7],
        "chars": [0, MOST],
    }
    assert all(sums.dtype == np.int64 for sums in index.costs.values())
    assert index.extra == extra
    assert parse_index(index_text(SHARDS), source="x").costs == {}
    assert parse_index(index_text((), {"costs": costs_entry({"a": []})}), source="x").costs["a"].shape == (0,)


def cost(shards: Any = (5, 7), total: Any = 12) -> dict[str, Any]:
    return {"tokens": {"shards": list(shards) if isinstance(shards, tuple) else shards, "total": total}}


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ([], "'costs' is a list, expected an object"),
        (None, "'costs' is a NoneType"),
        ({"tokens": 12}, "cost 'tokens' is 12, expected an object with 'shards' and 'total'"),
        ({"tokens": {"total": 0}}, "expected an object with 'shards'"),
        (cost({"0": 5}), "expected an object with 'shards'"),
        (cost((5,), 5), "cost 'tokens' has 1 sums for 2 shards"),
        (cost((5, 7, 0)), "cost 'tokens' has 3 sums for 2 shards"),
        (cost((13, -1)), "cost 'tokens' of shard 1 is -1, expected a whole number"),
        (cost((5, 7.0)), "of shard 1 is 7.0"),
        (cost((11, True)), "of shard 1 is True"),
        (cost((5, "7")), "of shard 1 is '7'"),
        (cost((5, None)), "of shard 1 is None"),
        (cost((MOST + 1, 0), MOST + 1), f"of shard 0 is {MOST + 1}"),
        (cost((MOST, 1), MOST + 1), r"at most 2\*\*63 - 1"),
        (cost((5, 7), 13), "the total 13, but its shards add up to 12"),
        (cost((5, 7), 12.0), "the total 12.0"),
        (cost((1, 0), True), "the total True"),
        (cost((5, 7), None), "the total None"),
        ({"": {"shards": [0, 0], "total": 0}}, "cost name ''"),
        ({"a b": {"shards": [0, 0], "total": 0}}, "cost name 'a b'"),
        ({"x" * 65: {"shards": [0, 0], "total": 0}}, "cost name 'xxx"),
        ({"samples": {"shards": [0, 0], "total": 0}}, "cost name 'samples'"),
        ({"bytes": {"shards": [0, 0], "total": 0}}, "cost name 'bytes'"),
    ],
)
def test_costs_that_contradict_the_index_are_refused_by_name(costs: Any, words: str) -> None:
    with pytest.raises(FormatError, match=rf"^here/index.json: .*{words}"):
        parse_index(index_text(SHARDS, {"costs": costs, "x": 1}), source="here/index.json")
    with pytest.raises(FormatError, match=words):
        Index(SHARDS, {"costs": costs})


def test_a_message_of_hostile_costs_stays_short() -> None:
    text = json.dumps({"shards": [], "version": 2, "streamshard": {"costs": {"y" * 100_000: {}}}})
    with pytest.raises(FormatError) as caught:
        parse_index(text.encode(), source="x")
    assert len(str(caught.value)) < 300
    with pytest.raises(FormatError) as caught:
        parse_costs({"a": list(range(100_000))}, 1)
    assert len(str(caught.value)) < 300
    with pytest.raises(FormatError) as caught:
        parse_costs({"a": {"shards": [10**3000], "total": 1}}, 1)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["tokens", "num_tokens.v2", "a-b", "7", "x" * 64])
def test_names_that_a_cost_may_have(name: str) -> None:
    assert check_cost_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "a=b", "é", "a b", "-a", ".a", "a\n", "bytes", "samples", None, 3]
)
def test_names_that_a_cost_may_not_have(name: object) -> None:
    with pytest.raises(ValueError, match="cost name"):
        check_cost_name(name)


def test_a_total_that_no_reader_takes_is_not_written() -> None:
    with pytest.raises(FormatError, match=f"adds up to {MOST + 1}"):
        costs_entry({"tokens": [MOST, 1]})
