import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import StateError
from streamshard.order.epoch import Order
from streamshard.order.position import State
from streamshard.order.resume import resume
from streamshard.order.stream_state import shortened
from streamshard.order.walk import Walk


def state_of(
    epoch=2, position=40, *, sizes=(10,) * 12, seed=17, settings=None, name=None, prints=None, **walk
):
    order = Order([Walk(np.array(sizes), seed=seed, **walk)])
    return State.of(
        order,
        order.plan(max(0, epoch), 0, global_batch_size=1),
        epoch,
        position,
        settings={"batching_method": "random"} if settings is None else settings,
        names=[name],
        fingerprints=[{"layout": "abc"} if prints is None else prints],
    )


@pytest.fixture
def document():
    return json.loads(json.dumps(state_of().to_dict()))


def test_a_state_survives_json(document):
    assert State.from_dict(document) == state_of()


def test_a_state_is_small():
    assert len(json.dumps(state_of().to_dict())) < 500


def test_the_cursor_counts_from_the_start_of_the_run(document):
    assert dict(zip(document["columns"], document["streams"][0], strict=True))["cursor"] == 2 * 120 + 40


def test_the_end_of_an_epoch_is_the_start_of_the_next():
    assert (state_of(2, 120).epoch, state_of(2, 120).position) == (3, 0)


def test_b129_saving_what_was_loaded_gives_the_same(document):
    assert State.from_dict(document).to_dict() == document


def go_on(state, *, sizes=(10,) * 12, seed=17, settings=None, name=None, prints=None, **walk):
    order = Order([Walk(np.array(sizes), seed=seed, **walk)])
    return resume(
        order,
        state,
        settings={"batching_method": "random"} if settings is None else settings,
        names=[name],
        fingerprints=[{"layout": "abc"} if prints is None else prints],
    )


def test_the_same_run_goes_on_at_the_same_place(document):
    resumed = go_on(State.from_dict(document))
    assert (resumed.epoch, resumed.position, resumed.order.splice, resumed.notes) == (2, 40, None, ())


def test_a_state_at_the_end_of_an_epoch_goes_on_at_the_start_of_the_next(document):
    document["position"] = 120
    set_field(document, "cursor", 360)
    resumed = go_on(State.from_dict(document))
    assert (resumed.epoch, resumed.position, resumed.order.splice) == (3, 0, None)


@pytest.mark.parametrize(
    ("current", "words"),
    [
        ({"seed": 18}, ["seed was 17 and is 18"]),
        ({"sizes": (10,) * 13}, ["stream 0 num_samples was 120 and is 130"]),
        ({"shuffle": "py1br"}, ["shuffle was 'sliding' and is 'block'"]),
        ({"lanes": 2}, ["lanes was 4 and is 2"]),
        ({"window": 3}, ["window was 32 and is 3"]),
        ({"prints": {"layout": "abd"}}, ["data (layout) was 'abc' and is 'abd'"]),
        ({"prints": {"sha1": "abc"}}, ["fingerprint kinds"]),
        (
            {"settings": {"batching_method": "stratified"}},
            ["batching_method was 'random' and is 'stratified'"],
        ),
        ({"settings": {}}, ["batching_method was 'random' and is 'nothing'"]),
        ({"settings": {"batching_method": "random", "fixed": True}}, ["fixed was 'nothing' and is True"]),
        ({"seed": 18, "lanes": 2}, ["seed was 17 and is 18", "lanes was 4 and is 2"]),
    ],
)
def test_another_run_is_refused_with_every_difference_named(document, current, words):
    with pytest.raises(StateError) as caught:
        go_on(State.from_dict(document), **current)
    assert all(word in str(caught.value) for word in words)


def test_hashes_count_only_where_both_sides_have_them():
    saved = state_of(prints={"layout": "abc", "sha1": "1"})
    go_on(saved, prints={"layout": "abc", "xxh64": "2"})
    with pytest.raises(StateError, match="sha1"):
        go_on(saved, prints={"layout": "abc", "sha1": "2"})


def test_long_fingerprints_are_shortened_the_same_way_on_both_sides():
    prints = [{"layout": "0" * 32}, {"layout": "0" * 31 + "1"}]
    saved = state_of(prints=prints[0])
    assert len(saved.to_dict()["streams"][0][-1]) == len("layout=") + 11
    go_on(saved, prints=prints[0])
    with pytest.raises(StateError, match="layout"):
        go_on(saved, prints=prints[1])


@pytest.mark.parametrize(("kinds", "length"), [(2, 11), (3, 7), (4, 5), (7, 3)])
def test_of_many_fingerprints_a_state_has_the_beginnings_and_each_of_them_counts(kinds, length):
    prints = {f"kind{number}": f"{number:032x}" for number in range(kinds)}
    saved = State.from_dict(json.loads(json.dumps(state_of(prints=prints).to_dict())))
    assert [len(value) for value in saved.streams[0].fingerprints.values()] == [length] * kinds
    go_on(saved, prints=prints)
    go_on(saved, prints={"kind0": prints["kind0"], "other": "1"})
    for kind in prints:
        with pytest.raises(StateError, match=rf"data \({kind}\) was '\S{{{length}}}' and is") as caught:
            go_on(saved, prints={**prints, kind: "f" * 32})
        assert str(caught.value).count("data (") == 1


def test_a_state_with_whole_fingerprints_of_many_kinds_is_still_read():
    prints = {kind: shortened({kind: kind * 9})[kind] for kind in ("layout", "md5", "sha1")}
    document = state_of(prints={"layout": "abc"}).to_dict()
    set_field(document, "data", ",".join(f"{kind}={value}" for kind, value in prints.items()))
    go_on(State.from_dict(document), prints={kind: kind * 9 for kind in prints})


def test_a_state_of_mosaicml_streaming_is_refused_in_a_sentence():
    theirs = {
        "epoch": 1,
        "sample_in_epoch": 512,
        "num_canonical_nodes": 2,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 2,
    }
    with pytest.raises(StateError, match="saved by mosaicml-streaming"):
        State.from_dict(theirs)


@pytest.mark.parametrize(
    "document",
    [None, [], "state", 3, {}, {1: 2}, {"epoch": 0}, {"version": 1}, {"version": 3}, {"version": True}],
)
def test_what_is_no_state_is_refused(document):
    with pytest.raises(StateError, match="state"):
        State.from_dict(document)


HOSTILE = [None, True, -1, 1.0, "1", "x" * 10_000, [], {}, [1], 1 << 70, 10**5000, float("nan")]


def set_field(document, column, value):
    document["streams"][0][document["columns"].index(column)] = value


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize(
    "key",
    [
        "version",
        "epoch",
        "position",
        "seed",
        "mixture",
        "segment",
        "columns",
        "streams",
        "key",
        "samples",
        "lanes",
        "window",
        "cursor",
        "share",
        "data",
    ],
)
def test_a_hostile_value_is_named_in_a_short_message(document, key, value):
    if (key == "mixture" and isinstance(value, str)) or (key == "cursor" and value == 1 << 70):
        return  # another mixture, and far on in a long run
    if key in document:
        document[key] = value
    else:
        set_field(document, key, value)
    with pytest.raises(StateError) as caught:
        State.from_dict(document)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("unit", [0, "1", [1], [4, 0], [4, 3], [4, 8], [1 << 40, 1], [4, 2, 1], {"a": 1}])
def test_a_hostile_unit_is_refused(document, unit):
    document["segment"]["unit"] = unit
    with pytest.raises(StateError, match=r"unit|batch"):
        State.from_dict(document)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", 3),
        ("data", {"layout": "abc"}),
        ("data", "layout"),
        ("data", "layout=" + "a" * 50),
        ("data", ",".join(["layout=abc"] * 100)),
        ("window", 0),
    ],
)
def test_a_hostile_stream_is_refused(document, column, value):
    set_field(document, column, value)
    with pytest.raises(StateError, match=column):
        State.from_dict(document)


def test_a_row_of_another_length_is_refused(document):
    document["streams"][0].append(1)
    with pytest.raises(StateError, match="expected a list of name, key"):
        State.from_dict(document)


def test_two_streams_of_one_key_are_refused(document):
    document["gone"] = document["streams"]
    with pytest.raises(StateError, match=r"keys \[0, 0\]"):
        State.from_dict(document)


@pytest.mark.parametrize(
    "key", ["version", "epoch", "position", "seed", "settings", "mixture", "segment", "columns", "streams"]
)
def test_a_missing_key_is_named(document, key):
    del document[key]
    with pytest.raises(StateError, match=key):
        State.from_dict(document)


def test_a_setting_that_is_no_plain_value_is_refused(document):
    document["settings"]["batching_method"] = [1]
    with pytest.raises(StateError, match="batching_method"):
        State.from_dict(document)


@pytest.mark.parametrize(
    ("position", "begin", "words"),
    [(121, 0, "not in its segment, which has 120"), (40, 41, "not in its segment"), (40, 10, "columns")],
)
def test_numbers_that_contradict_each_other_are_refused(document, position, begin, words):
    document["position"] = position
    document["segment"]["begin"] = begin
    if begin == 41:
        document["columns"].append("taken")
        document["streams"][0].append(0)
    with pytest.raises(StateError, match=words):
        State.from_dict(document)


def test_a_cursor_that_its_position_rules_out_is_refused(document):
    set_field(document, "cursor", 39)
    with pytest.raises(StateError, match="cannot stand at"):
        go_on(State.from_dict(document))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from([*state_of().to_dict(), None]))
def test_no_json_value_breaks_the_reader(value, key):
    document = state_of().to_dict()
    if key is None:
        document = value
    else:
        document[key] = value
    with contextlib.suppress(StateError):
        State.from_dict(document)


@pytest.mark.parametrize(("epoch", "position"), [(-1, 0), (0, -1), (0, 121)])
def test_no_state_is_made_of_a_position_outside_the_epoch(epoch, position):
    with pytest.raises(ValueError, match="position"):
        state_of(epoch, position)


# Of many streams, what all have in common stands once.


def state_of_many(count=40, lanes=(2,), kinds=("layout",), scattered=(True,)):
    walks = [
        Walk(
            np.full(6, 5),
            seed=1,
            stream=number,
            lanes=lanes[number % len(lanes)],
            window=2,
            scattered=scattered[number % len(scattered)],
        )
        for number in range(count)
    ]
    order = Order(walks)
    prints = [dict.fromkeys(kinds[: 1 + number % len(kinds)], f"{number}") for number in range(count)]
    plan = order.plan(0, 0, global_batch_size=8)
    return State.of(order, plan, 0, 80, settings={}, names=[None] * count, fingerprints=prints)


@pytest.mark.parametrize(
    ("given", "common"),
    [
        ({}, {"lanes": 2, "window": 2, "scattered": 1, "kinds": ["layout"]}),
        ({"lanes": (2, 3)}, {"window": 2, "scattered": 1, "kinds": ["layout"]}),
        ({"kinds": ("layout", "sha1")}, {"lanes": 2, "window": 2, "scattered": 1}),
        ({"scattered": (True, False)}, {"lanes": 2, "window": 2, "kinds": ["layout"]}),
        ({"scattered": (False,)}, {"lanes": 2, "window": 2, "kinds": ["layout"]}),
        ({"count": 31}, None),
    ],
)
def test_what_many_streams_have_in_common_stands_once_and_is_read_back(given, common):
    saved = state_of_many(**given)
    document = json.loads(json.dumps(saved.to_dict()))
    assert document.get("common") == common
    assert not set(document["columns"]) & set(common or ())
    assert State.from_dict(document) == saved


@pytest.mark.parametrize(
    ("common", "words"),
    [
        ([], "'common' is .* expected a JSON object"),
        ({"cursor": 5}, "unknown keys .*cursor"),
        ({"lanes": "2"}, "'columns' is"),  # and not the others
        ({"lanes": 0, "window": 2, "scattered": 1, "kinds": ["layout"]}, "stream 0: 'lanes' is 0, expected"),
        ({"lanes": 2, "window": 9, "scattered": 1, "kinds": ["layout"]}, "stream 0: 'window' is 9, expected"),
        ({"lanes": 2, "window": 2, "scattered": True, "kinds": ["layout"]}, "'scattered' is True"),
        ({"lanes": 2, "window": 2, "scattered": 1, "kinds": "layout"}, "'kinds' is 'layout', expected names"),
        ({"lanes": 2, "window": 2, "scattered": 1, "kinds": []}, "'kinds' is"),
        ({"lanes": 2, "window": 2, "scattered": 1, "kinds": ["a"] * 33}, "'kinds' is"),
        ({"lanes": 2, "window": 2, "scattered": 1, "kinds": ["a", "b"]}, "stream 0: 'data' is '0', expected"),
        ({"lanes": 2, "window": 2, "scattered": 1, "kinds": ["a=b"]}, "stream 0: 'data' is '0', expected"),
        ({"lanes": 2, "window": 2, "scattered": 1}, "stream 0: 'data' is '0', expected"),
    ],
)
def test_what_cannot_be_in_common_is_refused(common, words):
    document = state_of_many().to_dict()
    document["common"] = common
    with pytest.raises(StateError, match=words):
        State.from_dict(document)
