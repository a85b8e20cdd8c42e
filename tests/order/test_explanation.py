"""The worked example in docs/explanation/order.md is what the code does."""

import re
from pathlib import Path

import numpy as np
import pytest

from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.mixture import Mixture
from streamshard.order.walk import Walk

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "order.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def order():
    return Order([Walk(np.full(8, 3), seed=1, lanes=2, window=2)])


def numbers(line):
    return [int(number) for number in re.findall(r"\d+", line)]


def test_the_lanes_of_the_page_are_those_of_the_code(page, order):
    for lane in (0, 1):
        line = re.search(rf"^lane {lane} .*samples(.*)$", page, re.MULTILINE)[1]
        assert numbers(line) == [
            x for begin, end in order.walks[0].lane_samples(lane) for x in (begin, end - 1)
        ]


def test_the_blocks_of_the_page_are_those_of_the_code(page, order):
    lane = order.walks[0].lane_of_pass(0, 0)
    shown = numbers(re.search(r"^samples  (.*)$", page, re.MULTILINE)[1])
    assert shown == np.concatenate(lane.rows(0, 12)).tolist()
    pieces = [numbers(piece) for piece in re.findall(r"piece (\d+-\d+)", page)]
    assert pieces == [[begin, begin + count - 1] for begin, count in map(lane.piece_span, range(4))]


def test_the_places_of_the_page_are_those_of_the_code(page, order):
    walk = order.walks[0]
    shown = numbers(re.search(r"^places  (.*)$", page, re.MULTILINE)[1])
    assert shown == walk.samples(walk.spots(0, np.arange(24))).tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_batches_of_the_page_are_those_of_the_code(page, order, ranks):
    block = page[page.index(f"\n{ranks} rank") :].splitlines()[1 : 1 + ranks]
    plan = BatchPlan(24, 6, ranks)
    for rank, line in enumerate(block):
        shown = numbers(line[12:].partition("lane")[0])
        assert shown == order.rank_batches(plan, 0, 0, 4, 1, rank).samples.tolist()


def test_the_labels_of_the_page_are_those_of_the_code(page):
    shown = re.search(r"stratified   ([ABC ]+)$", page, re.MULTILINE)[1].split()
    assert shown == ["ABC"[stream] for stream in Mixture([3, 2, 1]).labels(0, 6)]
