"""Portraits of values: equal for equal values, different for any change, with the place of the change."""

from __future__ import annotations

import collections
import dataclasses
import datetime
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamshard.testing.portrait import first_difference, portrait_of, show
from streamshard.testing.rows import rows_of


@dataclasses.dataclass
class Record:
    name: str
    weights: list[float]


class Plain:
    def __init__(self, size: int) -> None:
        self.size = size


Point = collections.namedtuple("Point", "x y")


def picture(red: int, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (2, 2), (red, 0, 0)).convert(mode)


def palette(red: int) -> Image.Image:
    image = Image.new("P", (1, 1))
    image.putpalette([red, 0, 0])
    return image


PAIRS: list[tuple[Any, Any, Any, str]] = [
    (1, 1, 2, ""),
    (1, 1, True, ""),
    (1, 1, 1.0, ""),
    (0.5, 0.5, 0.25, ""),
    (float("nan"), float("nan"), 0.0, ""),
    (0.0, 0.0, -0.0, ""),
    ("a", "a", "b", ""),
    ("1", "1", 1, ""),
    (b"a", b"a", bytearray(b"a"), ""),
    (None, None, 0, ""),
    ([1, 2], [1, 2], [1, 3], "[1]"),
    ([1, 2], [1, 2], (1, 2), ""),
    ([], [], {}, ""),
    ([[]], [[]], [[], []], ""),
    ([[1], []], [[1], []], [[], [1]], "[0]"),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3}, "['b']"),
    ({"a": 1}, {"a": 1}, {"b": 1}, ""),
    ({1, "x"}, {"x", 1}, {1, "y"}, ""),
    (range(3), range(3), range(4), ""),
    (Point(1, 2), Point(1, 2), Point(1, 3), "[1]"),
    (torch.arange(3), torch.arange(3), torch.tensor([0, 1, 3]), ""),
    (torch.arange(3), torch.arange(3), torch.arange(3).int(), ""),
    (torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3, 2), ""),
    (torch.zeros(6)[::2], torch.zeros(3), torch.zeros(4), ""),
    (torch.ones(2).bfloat16(), torch.ones(2).bfloat16(), torch.tensor([1, 1.5]).bfloat16(), ""),
    (torch.tensor(True), torch.tensor(True), torch.tensor(False), ""),
    (torch.zeros(0), torch.zeros(0), torch.zeros(0, 2), ""),
    (torch.ones(1, dtype=torch.complex64), torch.ones(1, dtype=torch.complex64), torch.ones(1) * 1j, ""),
    (np.arange(3), np.arange(3), np.arange(3.0), ""),
    (np.arange(6).reshape(2, 3)[:, ::2], np.array([[0, 2], [3, 5]]), np.array([[0, 2], [3, 4]]), ""),
    (np.int64(1), np.int64(1), np.int32(1), ""),
    (np.array(["a", None]), np.array(["a", None]), np.array(["a", 1], dtype=object), ".items[1]"),
    (picture(1), picture(1), picture(2), ""),
    (picture(1), picture(1), picture(1, "L"), ""),
    (palette(1), palette(1), palette(2), ""),
    (Record("a", [1.0]), Record("a", [1.0]), Record("a", [2.0]), ".weights[0]"),
    (Plain(1), Plain(1), Plain(2), ".size"),
    (datetime.date(2020, 1, 2), datetime.date(2020, 1, 2), datetime.date(2020, 1, 3), ""),
    ({"a": [{"b": (torch.zeros(1),)}]}, {"a": [{"b": (torch.zeros(1),)}]}, {"a": [{"b": (torch.ones(1),)}]},
     "['a'][0]['b'][0]"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "equal", "other", "path"), PAIRS, ids=lambda value: None)
def test_equal_values_have_equal_portraits_and_others_differ_at_their_place(value, equal, other, path):
    assert first_difference(portrait_of(value), portrait_of(equal)) is None
    difference = first_difference(portrait_of(value), portrait_of(other))
    assert difference is not None
    assert [leaf.path for leaf in difference] == [path, path]


def test_a_portrait_does_not_follow_its_batch():
    batch = {"x": torch.zeros(2)}
    before = portrait_of(batch)
    batch["x"] += 1
    difference = first_difference(before, portrait_of(batch))
    assert difference is not None
    assert "tensor float32 (2,) [0.0, 0.0]" in difference[0].shown
    assert "[1.0, 1.0]" in difference[1].shown


def test_what_is_shown_is_short():
    assert len(show(portrait_of({str(key): "x" * 1000 for key in range(1000)}))) < 400
    assert show(portrait_of({"id": "a", "size": 3})) == "['id'] = 'a', ['size'] = 3"
    assert show(portrait_of(list(range(9)))).endswith("[3] = 3, …")
    assert "2, 3, 4, 5, 6, 7, …" in portrait_of(torch.arange(100))[0].shown


def test_what_cannot_be_described_is_refused_by_name():
    with pytest.raises(TypeError, match=r"\['f'\] is a function, which can be neither described nor pickled"):
        portrait_of({"f": lambda: None})
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="more than 100 deep"):
        portrait_of(endless)


def test_rows_are_the_samples_of_a_batch():
    assert rows_of(["a", "b"]) == ["a", "b"]
    assert [row.tolist() for row in rows_of(torch.tensor([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]
    assert rows_of({"x": np.array([1, 2]), "y": [{"z": 1}, "b"]}) == [
        {"x": 1, "y": {"z": 1}},
        {"x": 2, "y": "b"},
    ]
    assert rows_of(([1, 2], {"a": [3, 4]})) == [(1, {"a": 3}), (2, {"a": 4})]
    assert rows_of([]) == rows_of({"x": []}) == []


@pytest.mark.parametrize("batch", [3, "ab", {}, (), {"x": "ab"}, torch.tensor(1), [1].__iter__()])
def test_what_has_no_rows_is_refused(batch):
    with pytest.raises(TypeError, match="pass samples_of="):
        rows_of(batch)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(TypeError, match=r"different lengths \(x: 2, y: 1\)"):
        rows_of({"x": [1, 2], "y": [1]})
