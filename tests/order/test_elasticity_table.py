"""The table in docs/explanation/order.md of how elastic each batching method is: every cell, as it is written."""

import itertools
import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from streamshard.errors import TopologyError
from streamshard.order.epoch import Order
from streamshard.order.position import State
from streamshard.order.resume import resume
from streamshard.order.timeline import Quotas
from streamshard.order.walk import Walk

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "order.md"
SIZES = ((7, 3, 9, 9, 2), (5,) * 5, (4, 1, 6))
PER_EPOCH = (41, 19, 11)  # more than a pass, less than one, and one
PRINTS = [{"layout": f"data{number}"} for number in range(len(SIZES))]
METHODS = ("random", "stratified", "per_stream", "device_per_stream")
G = 12


def walks_of():
    return [Walk(np.array(sizes), seed=3, stream=number) for number, sizes in enumerate(SIZES)]


def order_of(method):
    return Order(walks_of(), PER_EPOCH, batching=method)


def read(order, plan, epoch, first=0, last=None, step=1):
    """Give the batches of all ranks, padding left out: [rank][batch] -> samples."""
    found = []
    for rank in range(plan.ranks):
        got = order.rank_batches(plan, epoch, first, plan.num_batches if last is None else last, step, rank)
        spans = zip(got.bounds[:-1].tolist(), got.bounds[1:].tolist(), got.padding.tolist(), strict=True)
        found.append([got.samples[begin : end - pads].tolist() for begin, end, pads in spans])
    return found


def joined(batches):
    return [x for row in itertools.zip_longest(*batches, fillvalue=[]) for part in row for x in part]


def by_stream(order, samples):
    counts = Counter(order.stream_of(sample) for sample in samples)
    return [counts[stream] for stream in range(len(order.walks))]


def saved(order, plan, epoch, position):
    names = [None] * len(SIZES)
    state = State.of(order, plan, epoch, position, settings={}, names=names, fingerprints=PRINTS)
    return State.from_dict(json.loads(json.dumps(state.to_dict())))


def gone_on(method, state):
    return resume(order_of(method), state, settings={}, names=[None] * len(SIZES), fingerprints=PRINTS)


def is_by_stream(method):
    return method in ("per_stream", "device_per_stream")


def other_ranks(method, text):
    order = order_of(method)
    found = [
        joined(read(order, order.plan(1, 0, global_batch_size=G, ranks=ranks), 1)) for ranks in (1, 2, 3, 12)
    ]
    if text == "same sequence":
        assert all(each == found[0] for each in found)
    else:
        assert text == "other batches; each stream gives the same samples to the epoch"
        assert all(Counter(each) == Counter(found[0]) for each in found)
        assert found[1] != found[0]  # the table promises no more than there is


def other_workers(method, text):
    assert text == "same batches"
    order = order_of(method)
    plan = order.plan(1, 0, global_batch_size=G, ranks=3)
    alone = read(order, plan, 1)
    for workers in (2, 3, 5):
        dealt = [read(order, plan, 1, worker, step=workers) for worker in range(workers)]
        for rank in range(plan.ranks):
            turns = itertools.zip_longest(*(worker[rank] for worker in dealt))
            assert [batch for turn in turns for batch in turn if batch is not None] == alone[rank]


def resume_alike(method, text):
    assert text in ("goes on as if it had not stopped", "the same")
    order = order_of(method)
    # With 12 and 6 ranks, short batches of several streams are dealt in one step: a run goes on amid them, too.
    for ranks, remainder in ((2, "pad"), (12, "exact"), (6, "exact")):
        plan = order.plan(1, 0, global_batch_size=G, ranks=ranks, remainder=remainder)
        whole = read(order, plan, 1)
        for batch in range(plan.num_batches):
            state = saved(order, plan, 1, plan.position_after(batch))
            resumed = gone_on(method, state)
            assert resumed.notes == ()
            rest = resumed.order.plan(
                1, resumed.position, global_batch_size=G, ranks=ranks, remainder=remainder
            )
            assert read(resumed.order, rest, 1) == [batches[batch:] for batches in whole]
            assert saved(resumed.order, rest, 1, resumed.position) == state


def resume_otherwise(method, text):
    assert text in ("every sample of each stream's pass once", "the same")
    order = order_of(method)
    plan = order.plan(0, 0, global_batch_size=G, ranks=3)
    before = read(order, plan, 0)
    for batch, (size, ranks) in itertools.product(range(0, plan.num_batches, 2), ((8, 4), (5, 1), (18, 2))):
        seen = joined([batches[:batch] for batches in before])
        resumed = gone_on(method, saved(order, plan, 0, plan.position_after(batch)))
        for epoch, start in ((0, resumed.position), (1, 0)):
            rest = resumed.order.plan(epoch, start, global_batch_size=size, ranks=ranks)
            seen += joined(read(resumed.order, rest, epoch))
        first = 0
        for stream, (walk, taken) in enumerate(zip(order.walks, PER_EPOCH, strict=True)):
            wanted = walk.samples(walk.spots(0, np.arange(2 * taken))) + first
            assert Counter(x for x in seen if order.stream_of(x) == stream) == Counter(wanted.tolist())
            first += walk.num_samples


def left_out_of_none(method, text):
    assert text == "nothing"
    order = order_of(method)
    for remainder, ranks in itertools.product(("pad", "exact"), (1, 2, 3, 12)):
        plan = order.plan(0, 0, global_batch_size=G, ranks=ranks, remainder=remainder)
        assert by_stream(order, joined(read(order, plan, 0))) == list(PER_EPOCH)


def left_out_with_drop(method, text):
    assert text == (
        "fewer than G of each stream" if is_by_stream(method) else "fewer than G samples an epoch"
    )
    order = order_of(method)
    for ranks in (1, 2, 3, 4):
        plan = order.plan(0, 0, global_batch_size=G, ranks=ranks, remainder="drop")
        given = by_stream(order, joined(read(order, plan, 0)))
        left_out = [whole - part for whole, part in zip(PER_EPOCH, given, strict=True)]
        assert order.left_out(plan, 0) == {stream: n for stream, n in enumerate(left_out) if n}
        assert max(left_out) < G
        assert is_by_stream(method) or sum(left_out) < G


def repeated_with_pad(method, text):
    assert text == ("fewer than R of each stream" if is_by_stream(method) else "fewer than R an epoch")
    order = order_of(method)
    for ranks in (1, 2, 3, 4, 6, 12):
        plan = order.plan(0, 0, global_batch_size=G, ranks=ranks)
        pads = []
        for rank in range(ranks):
            got = order.rank_batches(plan, 0, 0, plan.num_batches, 1, rank)
            for end, count in zip(got.bounds[1:].tolist(), got.padding.tolist(), strict=True):
                pads += got.samples[end - count : end].tolist()
        repeats = by_stream(order, pads)
        assert max(repeats) < ranks
        assert is_by_stream(method) or sum(repeats) < ranks


def sizes_that_work(method, text):
    works = {
        "G ≥ R": lambda size, ranks: size >= ranks,
        "R divides G": lambda size, ranks: size % ranks == 0,
    }[text]
    order = order_of(method)
    for size, ranks in itertools.product(range(1, 7), range(1, 7)):
        if works(size, ranks):
            plan = order.plan(0, 0, global_batch_size=size, ranks=ranks)
            assert by_stream(order, joined(read(order, plan, 0))) == list(PER_EPOCH)
        else:
            with pytest.raises(TopologyError):
                order.plan(0, 0, global_batch_size=size, ranks=ranks)


def weights_that_change(method, text):
    size = sum(PER_EPOCH)
    before, after = tuple(map(Fraction, (2, 1, 1))), tuple(map(Fraction, (0, 1, 3)))

    def order_changing_at(position):
        quotas = Quotas((35, 18, 18), before, ((position, after),))
        return Order(walks_of(), quotas, batching=method)

    whole = {"at any sample": (1, 30, size - 1, size, size + 5), "where an epoch begins": (size, 2 * size)}[
        text
    ]
    for position in whole:
        order = order_changing_at(position)
        given = []
        for epoch in range(3):
            plan = order.plan(epoch, 0, global_batch_size=G)
            batches = read(order, plan, epoch)
            # Batches of one stream come one after another, samples of several are given in turn inside a batch.
            given += joined(batches) if is_by_stream(method) else positions_in_turn(order, plan, epoch)
        assert len(given) == 3 * size
        assert by_stream(order, given[position:])[0] == 0
        assert by_stream(order, given[:position])[0] >= position // 2 - 1
    if text == "where an epoch begins":
        with pytest.raises(ValueError, match=r"not at the positions \[30\]"):
            order_changing_at(30)


def positions_in_turn(order, plan, epoch):
    """Give an epoch's samples by position, undoing the sort inside batches."""
    found = {}
    for batch in range(plan.num_batches):
        positions = order.positions(plan, epoch, batch).tolist()
        found.update(zip(positions, read(order, plan, epoch, batch, batch + 1)[0][0], strict=True))
    return [found[position] for position in sorted(found)]


ROWS = {
    "other ranks or nodes, same G": other_ranks,
    "other workers": other_workers,
    "resume, same G (and ranks, for `device_per_stream`)": resume_alike,
    "resume, any other G and ranks": resume_otherwise,
    "left out with `pad` or `exact`": left_out_of_none,
    "left out with `drop`": left_out_with_drop,
    "repeats with `pad`, of R ranks": repeated_with_pad,
    "sizes that work": sizes_that_work,
    "weights that change in `mixture=`": weights_that_change,
}


def table():
    """Give row -> method -> cell, as the page has them."""
    page = PAGE.read_text(encoding="utf-8")
    head, _, *rows = re.search(r"^\| \| `random`.*\n(?:\|.*\n)+", page, re.MULTILINE)[0].splitlines()
    columns = [re.findall(r"`(\w+)`", cell) for cell in head.strip("|").split("|")[1:]]
    found = {}
    for row in rows:
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        found[name] = {
            method: cell for methods, cell in zip(columns, cells, strict=True) for method in methods
        }
    return found


def test_the_table_has_these_rows_and_methods():
    assert list(table()) == list(ROWS)
    assert all(tuple(cells) == METHODS for cells in table().values())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("row", ROWS, ids=[check.__name__ for check in ROWS.values()])
def test_every_cell_is_true(row, method):
    ROWS[row](method, table()[row][method])
