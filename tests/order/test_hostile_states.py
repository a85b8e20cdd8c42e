"""States that somebody edited: refused with StateError, soon and in few words, or a place that can be read."""

import copy
import json

import numpy as np
import pytest

from streamshard.errors import StateError
from streamshard.order.epoch import Order
from streamshard.order.position import State
from streamshard.order.resume import resume
from streamshard.order.timeline import Quotas
from streamshard.order.walk import Walk

SETTINGS = {"shuffle_block_size": None}
SIZES = ((4, 3), (9, 9, 9), (1,))


def load(document, *, batching="random", names=("a", "b", "c"), sizes=SIZES, kept=None):
    walks = [Walk(np.array(each), seed=5, stream=number) for number, each in enumerate(sizes)]
    order = Order(walks, Quotas(tuple(walk.num_samples for walk in walks)), batching=batching)
    prints = [{"layout": f"samples of shards {each}"} for each in sizes]
    place = {"settings": SETTINGS, "names": list(names), "fingerprints": prints}
    if document is None:
        plan = order.plan(0, 0, global_batch_size=4)
        return State.of(order, plan, 0, 8, **place).to_dict()
    return resume(order, State.from_dict(json.loads(json.dumps(document))), **place)


def with_rows(document, count, where, *, name):
    """Give a copy with ``count`` more streams of the last one's data."""
    document = copy.deepcopy(document)
    row = dict(zip(document["columns"], document["streams"][-1], strict=True))
    rows = [{**row, "name": name and f"{name}{n}", "key": 100 + n, "share": 0} for n in range(count)]
    document.setdefault(where, []).extend(list(each.values()) for each in rows)
    return document


def test_thousands_of_streams_that_are_gone_are_noted_in_a_few_sentences():
    saved = load(None)
    for count in (2_000, 16_000):
        resumed = load(with_rows(saved, count, "streams", name="x"))
        assert len(resumed.gone) == count
        assert len(resumed.notes) <= 22
        assert f"{count - 20} more streams" in "; ".join(resumed.notes)


@pytest.mark.parametrize("where", ["streams", "gone"])
def test_of_many_streams_with_the_same_data_the_first_comes_back_first(where):
    document = with_rows(load(None), 300, where, name=None)
    names = ("a", "b", *[None] * 20)
    resumed = load(document, names=names, sizes=(*SIZES[:2], *[SIZES[2]] * 20))
    # "c" has the key 2 and the data of them all; it may have lost its name.
    assert [walk.stream for walk in resumed.order.walks] == [0, 1, 2, *range(100, 119)]


def test_a_new_stream_gets_a_key_that_its_own_state_may_hold():
    document = load(None)
    document["streams"][1][1] = (1 << 31) - 1
    resumed = load(document, names=("a", "b", "c", "d"), sizes=(*SIZES, (2, 2)))
    assert [walk.stream for walk in resumed.order.walks] == [0, (1 << 31) - 1, 2, 1]


def test_a_position_is_a_64_bit_integer_with_room_for_an_epoch_after_it():
    document = with_rows(load(None), 2_000, "streams", name="x")
    document["columns"].append("taken")
    for row in document["streams"]:
        row.append(0)
    for position in (1 << 62) + 1, (1 << 63) - 10, 1 << 63, 2000 << 53:
        document["position"] = document["segment"]["begin"] = position
        with pytest.raises(
            StateError, match=f"'begin' is {position}, expected an integer from 0 to {1 << 62}$"
        ):
            load(document)
    document["position"] = document["segment"]["begin"] = 1 << 62
    resumed = load(document)
    plan = resumed.order.plan(resumed.epoch, resumed.position, global_batch_size=4)
    assert resumed.position == 1 << 62
    assert plan.num_batches == 9  # of 7 + 27 + 1 samples
    assert resumed.order.positions(plan, 0, 8).max() == (1 << 62) + 34


@pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), 1 << 64, [1], 1.5],
    ids=["huge", "hugely negative", "65 bits", "list", "float"],
)
def test_a_setting_that_no_state_holds_is_refused_in_few_words(value):
    for name in ("shuffle_block_size", "another"):
        document = load(None)
        document["settings"][name] = value
        with pytest.raises(StateError, match=f"setting '{name}' is .*at most 64 bits") as caught:
            State.from_dict(document)  # json.dumps would refuse an integer of 5,000 digits
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("batching", ["per_stream", "device_per_stream"])
def test_batches_of_one_stream_need_a_segment_that_ends_with_the_epoch(batching):
    document = load(None, batching=batching)
    assert load(document, batching=batching).position == 8
    share = document["columns"].index("share")
    for row in document["streams"]:
        row[share] = max(1, row[share] // 2)
    with pytest.raises(
        StateError, match=r"its segment ends at position 17 of epoch 0, but batches of one stream"
    ):
        load(document, batching=batching)
