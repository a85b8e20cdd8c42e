"""Weights that change between runs and within one, as a user meets them: loaders, workers, states."""

import logging
from collections import Counter

import pytest
from torch.utils.data import DataLoader

from streamshard import MDSWriter, Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.errors import StateError

SAMPLES = 60


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    places = [tmp_path_factory.mktemp("mixtures") / f"set{number}" for number in range(3)]
    for number, place in enumerate(places):
        with MDSWriter(out=place, columns={"number": "int"}, samples_per_shard=7) as writer:
            for row in range(SAMPLES):
                writer.write({"number": 1000 * number + row})
    return places


def numbers_of(batch):
    return batch["number"].tolist()


def streams_of(places, *weights):
    return [
        Stream(local=place, name=f"s{number}", proportion=weight)
        for number, (place, weight) in enumerate(zip(places, weights, strict=True))
        if weight is not None
    ]


def dataset_of(streams, **arguments):
    return StreamingDataset(streams=streams, **{"shuffle": True, "world": World(), **arguments})


def loader_of(streams, batch_size=6, num_workers=0, persistent_workers=False, **arguments):
    return StreamingDataLoader(
        dataset_of(streams, **arguments),
        batch_size,
        num_workers=num_workers,
        persistent_workers=persistent_workers,
    )


def take(loader, batches):
    iterator = iter(loader)
    taken = [x for _ in range(batches) for x in numbers_of(next(iterator))]
    state = loader.state_dict()
    loader.dataset.stop()
    return taken, state


def counts_of(numbers):
    return Counter(number // 1000 for number in numbers)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_under_other_weights_with_each_streams_own_cursor(places, workers):
    first, state = take(loader_of(streams_of(places, 5, 1, 0), epoch_size=120, num_workers=workers), 10)
    assert counts_of(first) == {0: 50, 1: 10}
    resumed = loader_of(streams_of(places, 1, 1, 1), epoch_size=120, num_workers=workers, batch_size=5)
    resumed.load_state_dict(state)
    assert len(resumed) == 12
    rest = [x for batch in resumed for x in numbers_of(batch)]
    assert counts_of(rest) == {0: 20, 1: 20, 2: 20}
    counts = Counter(first + rest)
    assert not [number for number, count in counts.items() if count > 1 and number >= 1000]
    assert {counts[number] for number in range(60)} == {1, 2}  # 70 of 60: a pass, and 10 of the next
    assert resumed.state_dict()["epoch"] == 1


def test_a_stream_may_be_added_and_taken_away_in_the_middle_of_an_epoch(places):
    def of(*numbers):
        return [Stream(local=places[number], name=f"s{number}") for number in numbers]

    first, state = take(loader_of(of(0)), 4)
    second, state = take_from(loader_of(of(0, 1)), state, 6)
    rest, state = take_from(loader_of(of(2, 1)), state, None)
    assert Counter(first + second + rest).most_common(1)[0][1] == 1
    assert set(range(1000, 1060)) | set(range(2000, 2060)) <= set(first + second + rest)
    assert [row[0] for row in state["gone"]] == ["s0"]
    last, _ = take_from(loader_of(of(0)), state, 2)
    assert not set(last) & set(first + second)


def take_from(loader, state, batches):
    loader.load_state_dict(state)
    return take(loader, len(loader) if batches is None else batches)


def test_a_stream_keeps_its_lanes_when_its_share_grows(tmp_path):
    for number in range(2):
        with MDSWriter(out=tmp_path / str(number), columns={"number": "int"}, samples_per_shard=2) as writer:
            for row in range(100):
                writer.write({"number": 1000 * number + row})

    def of(weight):
        return loader_of(streams_of([tmp_path / "0", tmp_path / "1"], 1, weight), epoch_size=400)

    first, state = take(of(399), 20)
    lanes = state["columns"].index("lanes")
    assert [row[lanes] for row in of(399).state_dict()["streams"]] == [2, 16]
    assert [row[lanes] for row in of(1).state_dict()["streams"]] == [16, 16]
    rest, later = take_from(of(1), state, None)
    assert [row[lanes] for row in later["streams"]] == [2, 16]
    for number in range(2):
        counts = Counter(x for x in first + rest if x // 1000 == number)
        assert max(counts.values()) - min(counts[1000 * number + row] for row in range(100)) <= 1


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_were_started_before_the_change_do_not_go_on_with_the_old_order(places, persistent):
    _, state = take(loader_of(streams_of(places, 5, 1, 1), epoch_size=60), 3)
    wanted = loader_of(streams_of(places, 1, 1, 1), epoch_size=60)
    wanted.load_state_dict(state)
    loader = loader_of(
        streams_of(places, 1, 1, 1), epoch_size=60, num_workers=2, persistent_workers=persistent
    )
    list(loader)  # starts the workers
    loader.load_state_dict(state)
    for _ in range(2):
        assert [numbers_of(batch) for batch in loader] == [numbers_of(batch) for batch in wanted]


def test_a_plain_loaders_kept_workers_say_that_their_order_is_outdated(places):
    _, state = take(loader_of(streams_of(places, 5, 1, 1), epoch_size=60), 3)
    dataset = dataset_of(streams_of(places, 1, 1, 1), epoch_size=60, batch_size=6)
    plain = DataLoader(dataset, batch_size=6, num_workers=1, persistent_workers=True)
    list(plain)
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="keep the order that they were started with"):
        list(plain)


def test_epochs_after_the_change_are_whole_and_set_epoch_keeps_the_change(places):
    _, state = take(loader_of(streams_of(places, 5, 1, 1), epoch_size=60), 3)
    loaders = [loader_of(streams_of(places, 1, 1, 2), epoch_size=60) for _ in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
        assert len(list(loader)) == 7
    loaders[1].dataset.set_epoch(1)
    epochs = [[x for batch in loader for x in numbers_of(batch)] for loader in loaders]
    assert epochs[0] == epochs[1]
    assert counts_of(epochs[0]) == {0: 15, 1: 15, 2: 30}


def test_an_epoch_before_the_change_is_that_of_the_present_weights_and_that_is_said(places, caplog):
    source = loader_of(streams_of(places, 5, 1, 1), epoch_size=60)
    list(source)
    _, state = take(source, 3)
    present = {"streams": streams_of(places, 1, 1, 2), "epoch_size": 60}
    loader, plain = loader_of(**present), loader_of(**present)
    loader.load_state_dict(state)
    caplog.clear()
    loader.dataset.set_epoch(2)
    assert "set_epoch(2) gives up the loaded position 18 of epoch 1" in caplog.text
    assert "always had" not in caplog.text
    for epoch in (1, 0):
        loader.dataset.set_epoch(epoch)
        assert f"epoch {epoch} begins before position 18 of epoch 1, where" in caplog.text
    assert [numbers_of(batch) for batch in loader] == [numbers_of(batch) for batch in plain]
    # A state that changes nothing has nothing to say, also where it counts batches off anew.
    caplog.clear()
    for method in ("random", "per_stream"):
        source = loader_of(**present, batching_method=method)
        list(source)
        _, state = take(source, 3)
        loader = loader_of(**present, batching_method=method)
        loader.load_state_dict(state)
        loader.dataset.set_epoch(0)
        assert "gives up" in caplog.text
        caplog.clear()
        loader.dataset.set_epoch(1)
        assert caplog.text == ""


def test_a_mixture_changes_within_the_run_and_a_state_goes_on_in_it(places):
    mixture = [(0, {"s0": 1, "s1": 0, "s2": 0}), ("0.09k", {"s0": 0, "s1": 1, "s2": 1})]
    arguments = {"epoch_size": 60, "mixture": mixture, "batching_method": "stratified"}
    streams = [Stream(local=place, name=f"s{number}") for number, place in enumerate(places)]
    whole = loader_of(streams, **arguments)
    epochs = [[x for batch in whole for x in numbers_of(batch)] for _ in range(3)]
    assert [counts_of(epoch) for epoch in epochs] == [{0: 60}, {0: 30, 1: 15, 2: 15}, {1: 30, 2: 30}]
    for batches in (3, 14, 16, 25):
        loader = loader_of(streams, **arguments)
        seen = []
        while batches >= len(loader):
            batches -= len(loader)
            seen += [x for batch in loader for x in numbers_of(batch)]
        part, state = take(loader, batches)
        again = loader_of(streams, num_workers=2, **arguments)
        again.load_state_dict(state)
        while len(seen) + len(part) < 180:
            part += [x for batch in again for x in numbers_of(batch)]
        assert seen + part == [x for epoch in epochs for x in epoch]


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        ([], "at least one"),
        ({"s0": 1}, "list of"),
        ("s0", "list of"),
        ([(0,)], "pairs"),
        ([(0, {"s0": 1})], "no weight for stream 's1', stream 's2'"),
        ([(0, {"s0": 1, "s1": 1, "sX": 1})], r"unknown stream 'sX'; the streams are \['s0', 's1', 's2'\]"),
        ([(0, {"s0": 1, "s1": 1, 7: 1})], "unknown stream 7"),
        ([(0, {"s0": 1, "s1": 1, "s2": 1, 0: 1})], "named twice"),
        ([(0, {"s0": 1, "s1": -1, "s2": 1})], "stream 's1': weight -1"),
        ([(0, {"s0": 1, "s1": float("nan"), "s2": 1})], "weight nan"),
        ([(0, {"s0": 1, "s1": True, "s2": 1})], "weight True"),
        ([(0, {"s0": 0, "s1": 0, "s2": 0})], "all weights are 0"),
        ([(-1, {"s0": 1, "s1": 1, "s2": 1})], "position -1"),
        (
            [((1 << 62) + 1, {"s0": 1, "s1": 1, "s2": 1})],
            r"position 4611686018427387905: .* from 0 to 2\*\*62",
        ),
        ([(5, {"s0": 1, "s1": 1, "s2": 1}), (5, {"s0": 1, "s1": 1, "s2": 1})], "must ascend"),
    ],
)
def test_a_mixture_that_says_nothing_sensible_is_refused(places, mixture, words):
    streams = [Stream(local=place, name=f"s{number}") for number, place in enumerate(places)]
    with pytest.raises(ValueError, match=words):
        dataset_of(streams, mixture=mixture)


def test_weights_of_a_mixture_that_come_to_no_sample_are_reported_once(places, caplog):
    streams = [Stream(local=place, name=f"s{number}") for number, place in enumerate(places)]
    mixture = [
        (0, {"s0": 1, "s1": 1, "s2": 0}),
        (60, {"s0": 1e-9, "s1": 1, "s2": 0}),
        (90, {"s0": 1, "s1": 1e-9, "s2": 1e-9}),
    ]
    with caplog.at_level(logging.WARNING):
        dataset_of(streams, epoch_size=60, mixture=mixture)
    [record] = caplog.records
    idle = (
        "stream 's0' from position 60 on, stream 's1' from position 90 on, stream 's2' from position 90 on;"
    )
    assert idle in record.getMessage()
    caplog.clear()
    dataset_of(streams, epoch_size=60, mixture=mixture[:1])
    assert not caplog.records


def test_a_mixture_beside_repeat_or_fixed_is_refused(places):
    even = [(0, {0: 1})]
    with pytest.raises(ValueError, match="repeat or choose"):
        dataset_of([Stream(local=places[0], repeat=2)], mixture=even)
    with pytest.raises(ValueError, match="sampling_method='fixed'"):
        dataset_of([Stream(local=places[0])], mixture=even, sampling_method="fixed")


def test_fixed_sampling_takes_the_same_samples_in_every_epoch(places):
    streams = [Stream(local=places[0], choose=25), Stream(local=places[1], repeat=1.5)]
    loader = loader_of(streams, sampling_method="fixed")
    epochs = [[x for batch in loader for x in numbers_of(batch)] for _ in range(3)]
    assert Counter(epochs[0]) == Counter(epochs[1]) == Counter(epochs[2])
    assert epochs[0] != epochs[1]
    counts = Counter(epochs[0])
    assert counts_of(counts.elements()) == {0: 25, 1: 90}
    assert sorted(counts[1000 + number] for number in range(60)) == [1] * 30 + [2] * 30
    part, state = take(loader_of(streams, sampling_method="fixed"), 7)
    again = loader_of(streams, sampling_method="fixed", num_workers=2)
    again.load_state_dict(state)
    assert part + [x for batch in again for x in numbers_of(batch)] == epochs[0]


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_one_stream_reach_the_trainer_and_go_on_over_a_resume(places, method, workers):
    streams = [Stream(local=place, name=f"s{number}") for number, place in enumerate(places)]
    ranks, rows = 3, []
    for rank in range(ranks):
        loader = loader_of(streams, 4, workers, batching_method=method, world=World(rank, ranks))
        batches = [numbers_of(batch) for batch in loader]
        assert len(batches) == len(loader)
        assert all(len(counts_of(batch)) == 1 for batch in batches)
        rows.append(batches)
    if method == "per_stream":
        assert all(len(counts_of(x for batch in row for x in batch)) == 1 for row in zip(*rows, strict=True))
    seen = [x for row in rows for batch in row for x in batch]
    assert set(seen) == {1000 * s + n for s in range(3) for n in range(SAMPLES)}
    # Five batches on three ranks, then the rest on two with another batch size: each sample once.
    loaders = [
        loader_of(streams, 4, workers, batching_method=method, world=World(rank, ranks))
        for rank in range(ranks)
    ]
    parts = [take(loader, 5) for loader in loaders]
    before = [x for numbers, _ in parts for x in numbers]
    after = []
    for rank in range(2):
        loader = loader_of(streams, 5, workers, batching_method=method, world=World(rank, 2))
        loader.load_state_dict(parts[0][1])
        for batch in loader:
            numbers = numbers_of(batch)
            after += numbers[: len(numbers) - loader.last_batch_padding]
    assert sorted(before + after) == sorted(set(seen))


def test_b120_what_drop_leaves_out_is_said_once_with_streams_and_numbers(places):
    streams = [
        Stream(local=place, name=f"s{number}", choose=n)
        for number, (place, n) in enumerate(zip(places, (3, 20, 16), strict=True))
    ]
    loader = StreamingDataLoader(
        dataset_of(streams, batching_method="per_stream"), batch_size=8, drop_last=True
    )
    words = "leaves out 3 samples of stream .s0., 4 samples of stream .s1. of each epoch"
    with pytest.warns(UserWarning, match=words):
        assert len(list(loader)) == 4
    assert len(list(loader)) == 4


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batching", ["random", "per_stream"])
def test_a_rest_that_drop_leaves_nothing_of_is_said_before_it_ends_at_once(places, workers, batching, caplog):
    streams = streams_of(places, 1, 1, None)
    taken, state = take(loader_of(streams, 5, batching_method=batching), 21)
    assert len(taken) == 105
    arguments = {"batching_method": batching, "remainder": "drop"}
    loader = loader_of(streams, 20, workers, **arguments)
    loader.load_state_dict(state)
    words = r"nothing of epoch 0: what is left of it after position 105, \d+ samples of stream .*, fills no "
    with pytest.warns(UserWarning, match=words) as said:
        assert list(loader) == []
    assert len([warning for warning in said if warning.category is UserWarning]) == 1  # forks warn, too
    assert len(loader) == 6  # the next epoch is whole, and 20 divides what each stream gives
    assert [len(numbers_of(batch)) for batch in loader] == [20] * 6
    # A rest that is cut short only is told apart from whole epochs, and each is said once.
    loader = loader_of(streams, 50, **{**arguments, "batching_method": "random"})
    _, state = take(loader_of(streams, 10), 1)
    loader.load_state_dict(state)
    with caplog.at_level(logging.INFO):
        assert [len(list(loader)) for _ in range(3)] == [2, 2, 2]
    lines = [record.getMessage() for record in caplog.records if "leaves out" in record.getMessage()]
    assert len(lines) == 2
    assert "of the rest of epoch 0;" in lines[0]
    assert "of each epoch;" in lines[1]


@pytest.mark.parametrize("batching", ["random", "stratified", "per_stream", "device_per_stream"])
def test_a_run_of_fixed_samples_goes_on_anywhere_in_an_epoch_with_other_batches(places, batching):
    streams = [
        Stream(local=places[0], choose=25),
        Stream(local=places[1], repeat=1.5),
        Stream(local=places[2]),
    ]
    arguments = {"sampling_method": "fixed", "batching_method": batching}
    whole = Counter(x for batch in loader_of(streams, **arguments) for x in numbers_of(batch))
    assert counts_of(whole.elements()) == {0: 25, 1: 90, 2: 60}
    seen, state, sizes = [], None, [6, 6, 4, 7, 5, 3, 9]
    for size in sizes:  # 3 batches of each: 120 of an epoch's 175 samples
        loader = loader_of(streams, size, **arguments)
        if state is not None:
            loader.load_state_dict(state)
        taken, state = take(loader, 3)
        seen += taken
        assert (state["epoch"], state["position"]) == (0, len(seen))
    loader = loader_of(streams, 8, **arguments)
    loader.load_state_dict(state)
    rest = [numbers_of(batch) for batch in loader]
    seen += [x for batch in rest for x in batch]
    assert Counter(seen) == whole
    again = loader_of(streams, 8, **arguments)
    again.load_state_dict(loader.state_dict())
    assert Counter(x for batch in again for x in numbers_of(batch)) == whole
    # Cursors that fixed samples cannot have are refused, in whole batches of one stream, too.
    state["streams"][1][state["columns"].index("cursor")] += 90
    with pytest.raises(StateError, match="takes the same samples in every epoch"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("batching", ["random", "per_stream"])
def test_a_run_of_fixed_samples_cannot_go_on_with_whole_passes(places, batching):
    arguments = {"sampling_method": "fixed", "batching_method": batching}
    parts = [Stream(local=places[0], choose=25), Stream(local=places[1])]
    whole = [Stream(local=places[0]), Stream(local=places[1])]
    _, of_parts = take(loader_of(parts, **arguments), 4)
    _, of_whole = take(loader_of(whole, **arguments), 4)
    for state, streams, words in (
        (of_parts, whole, r"\[25, 60\].*\[60, 60\]"),
        (of_whole, parts, r"\[60, 60\].*\[25, 60\]"),
    ):
        with pytest.raises(StateError, match=f"same samples in every epoch.*{words}"):
            loader_of(streams, **arguments).load_state_dict(state)
