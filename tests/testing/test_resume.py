"""``assert_resumes_exactly``: sound loaders pass, and each kind of broken one is caught and told apart."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from streamshard.testing import assert_resumes_exactly
from streamshard.testing.worlds import Ranks
from tests.support.pretended_ranks import write_numbers

SIZES = [7, 5, 9, 4]
SAMPLES = sum(SIZES)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbers(tmp_path_factory.mktemp("numbers"), SIZES)


@pytest.fixture(scope="module")
def make(directory: Path) -> Callable[..., StreamingDataLoader]:
    def make_loader(
        world: World | None = None, workers: int = 0, drop_last: bool = False, **arguments: Any
    ) -> StreamingDataLoader:
        arguments = {"batch_size": 4, "shuffle": True, **arguments}
        dataset = StreamingDataset(local=directory, world=world, **arguments)
        return StreamingDataLoader(dataset, num_workers=workers, drop_last=drop_last)

    return make_loader


class Wrapper:
    """What every wrapper needs; the tests break one method of it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


class Listed:
    """A loader that shares nothing with ours: two samples a rank and step, and a state that counts steps."""

    def __init__(self, world: World = World()) -> None:  # noqa: B008 - a frozen value
        self.world = world
        self.epoch = self.steps = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        samples = [(number * 7 + self.epoch) % 16 for number in range(16)]
        ranks = self.world.world_size
        for step in range(self.steps, 8 // ranks):
            begin = 2 * (step * ranks + self.world.rank)
            self.steps = step + 1
            yield torch.tensor(samples[begin : begin + 2])
        self.epoch, self.steps = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.steps = state["epoch"], state["steps"]


def caught(make_loader: Callable[..., Any], *words: str, **arguments: Any) -> str:
    """The message with which a loader is refused, which must have these words."""
    with pytest.raises(AssertionError) as raised:
        assert_resumes_exactly(make_loader, **arguments)
    message = str(raised.value)
    for word in words:
        assert word in message
    return message


# Sound ones


@pytest.mark.parametrize("remainder", ["pad", "drop", "exact"])
def test_our_loader_resumes_exactly_whatever_becomes_of_the_last_batch(make, remainder):
    assert_resumes_exactly(lambda: make(remainder=remainder), epochs=3)
    assert_resumes_exactly(lambda: make(batch_size=SAMPLES, remainder=remainder))


def test_our_loader_resumes_exactly_with_workers(make):
    assert_resumes_exactly(lambda: make(workers=2), epochs=1, random_cuts=1)


def test_our_loader_resumes_exactly_in_every_world(make):
    assert_resumes_exactly(
        lambda world: make(world, batch_size=None, global_batch_size=6), worlds=(1, 2, 3, 4), random_cuts=6
    )


def test_ranks_that_differ_by_one_batch_are_accepted_if_told(make):
    def make_loader(world):
        return make(world, batch_size=None, global_batch_size=6, remainder="exact")

    assert_resumes_exactly(make_loader, worlds=(1, 3), equal_steps=False)
    caught(make_loader, "got [5, 4, 4] batches", "would hang", worlds=(1, 3))


def test_one_batch_size_for_all_worlds_gives_each_sample_once_in_another_order(make):
    def make_loader(world):
        return make(world, batch_size=3)

    assert_resumes_exactly(make_loader, same_order=False, random_cuts=6)
    caught(
        make_loader,
        "a world of 2 in epoch 0",
        "another global order",
        "global_batch_size=",
        "same_order=False",
    )


def test_streams_with_weights_resume_exactly_in_every_world(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, other = write_numbers(tmp_path / "a", [5, 6]), write_numbers(tmp_path / "b", [3], first=100)

    def make_loader(world):
        streams = [Stream(local=one, proportion=1), Stream(local=other, proportion=2)]
        dataset = StreamingDataset(
            streams=streams, epoch_size=17, shuffle=True, world=world, global_batch_size=5
        )
        return StreamingDataLoader(dataset)

    assert_resumes_exactly(make_loader, epochs=3)


@pytest.mark.parametrize(
    ("order", "worlds"),
    [
        ({"batching_method": "per_stream"}, (1, 2, 3)),
        ({"batching_method": "device_per_stream"}, (2,)),
        ({"batching_method": "stratified", "sampling_method": "fixed", "epoch_size": 8}, (1, 3)),
        ({"mixture": [(0, {0: 1, 1: 1}), (9, {0: 5, 1: 1})]}, (1, 3)),
    ],
    ids=["per_stream", "device_per_stream", "fixed", "mixture"],
)
def test_every_way_to_mix_streams_resumes_exactly(tmp_path, order, worlds):
    streams = []
    for number, sizes in enumerate([[5, 6, 2], [3, 4]]):
        (tmp_path / str(number)).mkdir()
        streams.append(Stream(local=write_numbers(tmp_path / str(number), sizes, first=100 * number)))

    def make_loader(world):
        dataset = StreamingDataset(streams=streams, shuffle=True, world=world, global_batch_size=6, **order)
        return StreamingDataLoader(dataset)

    assert_resumes_exactly(make_loader, worlds=worlds)


@pytest.mark.parametrize("method", ["per_stream", "device_per_stream"])
def test_batches_of_one_stream_whose_size_changes_resume_exactly(tmp_path, method):
    """The rest of an epoch is counted off anew, and the state says so."""
    streams = []
    for number, sizes in enumerate([[9, 6, 8], [7, 4]]):
        (tmp_path / str(number)).mkdir()
        streams.append(Stream(local=write_numbers(tmp_path / str(number), sizes, first=100 * number)))

    def make_loader(world):
        dataset = StreamingDataset(
            streams=streams, shuffle=True, world=world, batch_size=3, batching_method=method
        )
        return StreamingDataLoader(dataset)

    assert_resumes_exactly(make_loader, worlds=(1, 2, 3), same_order=False, random_cuts=8)


class Wandering(Wrapper):
    """Gives another state each time that one is loaded."""

    loads = 0

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "loads": self.loads}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loads += 1
        super().load_state_dict({key: value for key, value in state.items() if key != "loads"})


def test_a_state_that_does_not_last_is_found_in_other_worlds_too(make):
    loader = Wandering(make())
    ranks = Ranks([loader], equal_steps=True, samples_of=None)
    with pytest.raises(AssertionError, match=r"right after load_state_dict\(\).*loads"):
        ranks.load(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_a_loader_that_leaves_samples_out_resumes_exactly(make, on_error):
    def refuse(sample):
        if sample["number"] % 7 == 3:
            raise ValueError("a bad sample")
        return sample

    def make_loader(world=None):
        how = {"transform": refuse, "on_error": on_error, "error_limit": SAMPLES}
        return make(world, batch_size=None, global_batch_size=12, **how)

    assert_resumes_exactly(lambda: make_loader())
    assert_resumes_exactly(make_loader, worlds=(2, 1), random_cuts=8)


def test_batches_of_everything_are_compared(make):
    class Rich(Wrapper):
        def __iter__(self):
            for batch in self.loader:
                numbers = batch["number"]
                yield {
                    "pictures": [Image.new("RGB", (3, 2), (int(n), 0, 0)) for n in numbers],
                    "halves": numbers.to(torch.bfloat16),
                    "arrays": [np.arange(int(n)) * np.nan for n in numbers],
                    "lists": [[{"turn": str(int(n)), "none": None}] * 2 for n in numbers],
                    "pair": (numbers.numpy() > 3, b"bytes"),
                    "flags": {1, "x"},
                }

    assert_resumes_exactly(lambda: Rich(make()))


# Broken ones


def test_hidden_randomness_is_caught(make):
    chance = random.Random(1)
    message = caught(
        lambda: make(transform=lambda sample: {**sample, "noise": chance.random()}),
        "two fresh loaders, never interrupted, do not give the same",
        "random numbers",
        "Epoch 0, batch 0, at ['noise']",
    )
    assert "once tensor float64 (4,)" in message


def test_randomness_seeded_for_each_loader_is_caught(make):
    def make_loader():
        chance = random.Random(1)
        return make(transform=lambda sample: {**sample, "noise": chance.random()})

    caught(
        make_loader,
        "resumed from the state taken",
        "at ['noise']: expected tensor float64",
        "1 of its 2 values are right (['number'])",
        "a random generator",
    )


def test_another_seed_each_time_is_caught(make):
    seeds = itertools.count()
    caught(lambda: make(shuffle_seed=next(seeds)), "two fresh loaders, never interrupted", "same data, seed")


def test_another_seed_when_loading_is_caught(make):
    seeds = itertools.chain([1, 1], itertools.repeat(2))
    caught(
        lambda: make(shuffle_seed=next(seeds)),
        "load_state_dict() of a fresh loader refused",
        "StateError",
        "seed",
    )


def test_a_state_one_batch_behind_is_caught(make):
    class Behind(Wrapper):
        def __iter__(self):
            self.last = self.loader.state_dict()
            for batch in self.loader:
                yield batch
                self.last = self.loader.state_dict()

        def state_dict(self):
            return getattr(self, "last", None) or super().state_dict()

    caught(
        lambda: Behind(make()),
        "resumed from the state taken after batch 0 of epoch 0, batch 1 of epoch 0",
        "what the uninterrupted run gives as batch 0 of epoch 0",
    )


def test_a_state_one_batch_behind_in_the_middle_is_told(make):
    class Behind(Wrapper):
        def __init__(self, loader):
            super().__init__(loader)
            self.states = [loader.state_dict()] * 2

        def __iter__(self):
            for batch in self.loader:
                self.states = [self.states[1], self.loader.state_dict()]
                yield batch

        def state_dict(self):
            return self.states[0]

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.states = [state] * 2

    message = caught(lambda: Behind(make()), "resumed from the state taken after batch 0 of epoch 0")
    assert "anew" in message or "behind" in message


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_state_that_counts_what_was_read_ahead_is_caught(make, ahead):
    class Ahead(Wrapper):
        def __iter__(self):
            batches = iter(self.loader)
            waiting = list(itertools.islice(batches, ahead))
            while waiting:
                waiting += itertools.islice(batches, 1)
                yield waiting.pop(0)

    caught(
        lambda: Ahead(make()),
        "resumed from the state taken after batch 0 of epoch 0, batch 1 of epoch 0",
        f"as batch {1 + ahead} of epoch 0",
        f"the state is {ahead} ahead",
        "read ahead or prefetched",
    )


def test_a_loader_that_ignores_load_state_dict_is_caught(make):
    class Ignores(Wrapper):
        def load_state_dict(self, state):
            pass

    caught(
        lambda: Ignores(make()),
        "right after load_state_dict(), state_dict() does not return what was loaded",
        "at ['position']: expected 4, found 0",
    )


def test_a_loader_that_keeps_the_state_but_ignores_it_is_caught(make):
    class Pretends(Wrapper):
        loaded = None

        def __iter__(self):
            for batch in self.loader:
                self.loaded = None
                yield batch

        def load_state_dict(self, state):
            self.loaded = state

        def state_dict(self):
            return self.loaded or super().state_dict()

    caught(lambda: Pretends(make()), "after batch 0 of epoch 0", "the loader began anew")


def test_a_state_that_does_not_count_on_after_a_resume_is_caught(make):
    class CountsThisRun(Wrapper):
        steps = 0
        loaded: dict[str, Any] | None = None

        def __iter__(self):
            for batch in self.loader:
                self.steps += 1
                self.loaded = None
                yield batch

        def state_dict(self):
            return self.loaded or {"steps": self.steps, "loader": self.loader.state_dict()}

        def load_state_dict(self, state):
            self.loaded = state
            self.loader.load_state_dict(state["loader"])

    caught(
        lambda: CountsThisRun(make()),
        "is right, but the state after it is not that of the uninterrupted run",
        "at ['steps']: expected 2, found 1",
    )


def test_a_state_that_changes_by_being_taken_is_caught(make):
    class Counts(Wrapper):
        taken = 0

        def state_dict(self):
            self.taken += 1
            return {**super().state_dict(), "taken": self.taken}

    caught(
        lambda: Counts(make()),
        "before iter() of epoch 0",
        "twice in a row",
        "at ['taken']: expected 1, found 2",
    )


def test_taking_a_state_that_disturbs_the_run_is_caught(make):
    class Disturbs(Wrapper):
        skip = False

        def __iter__(self):
            for batch in self.loader:
                if not self.skip:
                    yield batch
                self.skip = False

        def state_dict(self):
            self.skip = True
            return super().state_dict()

    caught(lambda: Disturbs(make()), "state_dict() changes what comes after it")


def test_a_state_that_json_cannot_hold_is_caught(make):
    class Tensors(Wrapper):
        def state_dict(self):
            return {"position": torch.tensor(3)}

    caught(lambda: Tensors(make()), "something that JSON cannot hold", "tensor(3)")


def test_an_epoch_too_short_after_a_resume_is_caught(make):
    class Short(Wrapper):
        resumed = False

        def __iter__(self):
            batches = list(self.loader)
            yield from batches[:-1] if self.resumed else batches
            self.resumed = False

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.resumed = True

    caught(lambda: Short(make()), "epoch 0 ended after batch 5", "has 7 batches")


def test_an_epoch_too_long_after_a_resume_is_caught(make):
    class Long(Short := Wrapper):  # type: ignore[misc,valid-type]
        resumed = False

        def __iter__(self):
            batches = list(self.loader)
            yield from [*batches, batches[2]] if self.resumed else batches
            self.resumed = False

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.resumed = True

    caught(
        lambda: Long(make()), "has 7 batches in this epoch, the resumed one has more", "as batch 2 of epoch 0"
    )


def test_the_wrong_epoch_after_the_last_batch_is_caught():
    class Stays(Listed):
        def state_dict(self):
            return {**super().state_dict(), "epoch": min(1, self.epoch)}

    caught(
        Stays,
        "from the state taken after the end of epoch 1, batch 0 of epoch 2",
        "as batch 0 of epoch 1: the",
    )


def test_only_one_world_losing_samples_is_caught(make):
    class Loses(Wrapper):
        def __iter__(self):
            for batch in self.loader:
                yield {"number": batch["number"][:-1]} if self.loader.dataset.world.world_size == 3 else batch

        @property
        def last_batch_padding(self):
            return self.loader.last_batch_padding

    caught(
        lambda world: Loses(make(world, batch_size=None, global_batch_size=6)),
        "a world of 3 in epoch 0 gave 12 samples where the first world gives 25",
        "13 lost (such as ['number'] = tensor int64 () [",
    )


def test_padding_that_is_not_counted_is_caught(make):
    caught(
        lambda world: Wrapper(make(world, batch_size=None, global_batch_size=6)),
        "a world of 2 in epoch 0 gave 26 samples where the first world gives 25",
        "1 repeated",
        "last_batch_padding",
    )


def test_the_wrong_epoch_after_a_resumed_one_is_caught():
    class Forgets(Listed):
        first = None

        def __iter__(self):
            yield from super().__iter__()
            if self.first is not None:
                self.epoch = self.first
            self.first = None

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.first = state["epoch"] if state["steps"] else None

    caught(Forgets, "after batch 0 of epoch 0, batch 0 of epoch 1", "began anew")


def test_a_state_that_only_its_own_world_understands_is_caught():
    assert_resumes_exactly(lambda world: Listed(world), worlds=(2,))
    caught(
        lambda world: Listed(world),
        "a chain of worlds (2 for ",
        "lost (such as tensor int64 () [",
        same_order=False,
        worlds=(1, 2, 4),
    )


def test_ranks_with_states_of_their_own_are_caught(make):
    class OwnStates(Wrapper):
        def state_dict(self):
            return {**super().state_dict(), "rank": self.loader.dataset.world.rank}

        def load_state_dict(self, state):
            super().load_state_dict({key: value for key, value in state.items() if key != "rank"})

    caught(
        lambda world: OwnStates(make(world, batch_size=None, global_batch_size=6)),
        "rank 1 of 2 has the state",
        "could not serve another number of ranks",
    )


# Arguments


def test_arguments_that_make_no_sense_are_refused(make):
    with pytest.raises(TypeError, match="make_loader has no parameter named world"):
        assert_resumes_exactly(lambda: make(), worlds=(1, 2))
    with pytest.raises(ValueError, match="each at least 1"):
        assert_resumes_exactly(lambda world: make(world), worlds=())
    with pytest.raises(ValueError, match="epochs=0"):
        assert_resumes_exactly(lambda: make(), epochs=0)


def test_batches_of_a_shape_of_their_own_need_samples_of(make):
    class Joined(Wrapper):
        def __iter__(self):
            for batch in self.loader:
                yield " ".join(map(str, batch["number"].tolist()))

    def make_loader(world):
        return Joined(make(world, batch_size=None, global_batch_size=5, remainder="drop"))

    with pytest.raises(TypeError, match=r"found a str, expected a list of samples.*pass samples_of="):
        assert_resumes_exactly(make_loader)
    assert_resumes_exactly(make_loader, samples_of=str.split)
