"""Times in nanoseconds inside nested values: text, whatever else is installed."""

from __future__ import annotations

from typing import Any

import pytest

from streamshard.write.arrow_values import plain_json, python_values

pa = pytest.importorskip("pyarrow")

_COUNT = 1_700_000_000_123_456_789
_TIMES = [
    (pa.timestamp("ns"), _COUNT, "2023-11-14T22:13:20.123456789"),
    (pa.timestamp("ns"), -1, "1969-12-31T23:59:59.999999999"),
    (pa.timestamp("ns", "UTC"), _COUNT, "2023-11-14T22:13:20.123456789+00:00"),
    (pa.timestamp("ns", "+05:30"), 1, "1970-01-01T05:30:00.000000001+05:30"),
    (pa.timestamp("ns", "Europe/Berlin"), _COUNT, "2023-11-14T23:13:20.123456789+01:00"),
    (pa.time64("ns"), 5, "00:00:00.000000005"),
    (pa.duration("ns"), _COUNT, "19675 days, 22:13:20.123456789"),
    (pa.duration("ns"), 5, "0:00:00.000000005"),
    (pa.duration("ns"), -1, "-1 day, 23:59:59.999999999"),
]


@pytest.mark.parametrize(("kind", "count", "text"), _TIMES)
def test_nested_times_are_text_of_all_their_digits(kind: Any, count: int, text: str) -> None:
    values = pa.array([[count, None], None, []], pa.list_(pa.int64())).cast(pa.list_(kind))
    assert plain_json(python_values(values)) == [[text, None], None, []]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.duration("ns")]
)
def test_whole_microseconds_are_the_text_of_coarser_times(kind: Any) -> None:
    counts = [0, 1, 86_399_999_999, 1_000_000]
    fine = pa.array([[1000 * count for count in counts]], pa.list_(pa.int64())).cast(pa.list_(kind))
    coarse = pa.array([counts], pa.list_(pa.int64())).cast(pa.list_(_in_microseconds(kind)))
    assert plain_json(python_values(fine)) == plain_json(python_values(coarse))


def _in_microseconds(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def test_nested_times_at_any_depth_and_names_like_types() -> None:
    time = pa.timestamp("ns")
    kind = pa.struct(
        [
            pa.field("large", pa.large_list(time)),
            pa.field("fixed", pa.list_(time, 2)),
            pa.field("map", pa.map_(pa.string(), pa.struct([pa.field("at", time)]))),
            pa.field("timestamp[ns] map<", pa.list_(pa.string())),
            pa.field("none", time),
        ]
    )
    row = {
        "large": [1],
        "fixed": [2, 3],
        "map": [("k", {"at": 4})],
        "timestamp[ns] map<": ["x"],
        "none": None,
    }
    assert plain_json(python_values(pa.array([row, None], kind))) == [
        {
            "large": ["1970-01-01T00:00:00.000000001"],
            "fixed": ["1970-01-01T00:00:00.000000002", "1970-01-01T00:00:00.000000003"],
            "map": {"k": {"at": "1970-01-01T00:00:00.000000004"}},
            "timestamp[ns] map<": ["x"],
            "none": None,
        },
        None,
    ]


def test_times_beside_and_in_a_column_of_categories() -> None:
    times = pa.array([1, None], pa.timestamp("ns"))
    words = pa.array(["a", "b"]).dictionary_encode()
    values = pa.StructArray.from_arrays([words, times, times.dictionary_encode()], ["word", "at", "kind"])
    text = "1970-01-01T00:00:00.000000001"
    assert python_values(values) == [
        {"word": "a", "at": text, "kind": text},
        {"word": "b", "at": None, "kind": None},
    ]
