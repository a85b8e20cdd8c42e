"""Chains of real jobs, each killed at any moment and followed by one with other ranks, workers and batches."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from tests.support.loading import numbers_of
from tests.support.ranks import Job, lines_of
from tests.support.small_datasets import text_samples, write_dataset

EPOCHS = 2
SIZES = [90, 41, 160]
ORDER: dict[str, Any] = {"shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 30}
EPOCH_SIZE = (
    240  # in the proportions 2, 3, 1: 80, 120 and 40, so the second stream begins a third pass each time
)


class Links(NamedTuple):
    """One job of the chain: ranks, workers of each, arguments that make its batches, weights of the streams."""

    ranks: int
    workers: int
    batch: dict[str, Any]
    proportions: tuple[int, int, int] = (2, 3, 1)


LINKS = [
    Links(2, 2, {"batch_size": 5}),
    Links(3, 0, {"global_batch_size": 8}),
    Links(1, 1, {"batch_size": 4}),
    Links(4, 1, {"batch_size": 2}),
    Links(2, 0, {"global_batch_size": 13}),
]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Streams of text samples, numbered through."""
    root = tmp_path_factory.mktemp("streams")
    samples = text_samples(sum(SIZES))
    begin = 0
    for number, size in enumerate(SIZES):
        write_dataset(root / str(number), samples[begin : begin + size], samples_per_shard=7)
        begin += size
    return [{"remote": (root / str(number)).as_uri(), "name": str(number)} for number in range(len(SIZES))]


def weighted(streams: list[dict[str, Any]], link: Links, cache: Path) -> list[dict[str, Any]]:
    return [
        {**stream, "local": str(cache / stream["name"]), "proportion": proportion}
        for stream, proportion in zip(streams, link.proportions, strict=True)
    ]


def plain_list(streams: list[dict[str, Any]], cache: Path) -> list[list[int]]:
    dataset = StreamingDataset(
        streams=[Stream(**stream) for stream in weighted(streams, LINKS[0], cache)],
        epoch_size=EPOCH_SIZE,
        world=World(0, 1),
        **ORDER,
    )
    loader = StreamingDataLoader(dataset, batch_size=1)
    return [[number for batch in loader for number in numbers_of(batch)] for _ in range(EPOCHS)]


def learned_by(
    streams: list[dict[str, Any]], tmp_path: Path, links: list[Links], seed: int
) -> Iterator[list[list[int]]]:
    """Run the jobs in turn, killing each but the last; yield after each what the model has learned in each epoch."""
    rng = random.Random(seed)
    state = tmp_path / "state.json"
    learned: list[list[int]] = [[] for _ in range(EPOCHS)]
    reached = (0, 0)
    for number, link in enumerate(links):
        log = tmp_path / f"log-{number}"
        options = {
            "dataset": {
                "streams": weighted(streams, link, tmp_path / "cache"),
                "epoch_size": EPOCH_SIZE,
                **ORDER,
                **link.batch,
            },
            "loader": {"kind": "streaming", "batch_size": None, "num_workers": link.workers},
            "log": str(log),
            "state": str(state),
            "epochs": EPOCHS,
            "collective": True,
        }
        with Job("train", link.ranks, options) as job:
            if number == len(links) - 1:
                job.wait()
            else:
                more = rng.randint(1, 2 * EPOCHS * EPOCH_SIZE // (9 * len(links)))
                with suppress(AssertionError):  # it may end before
                    job.until(
                        lambda log=log, more=more: len(lines_of(Path(f"{log}.0"))) >= more, "its batches"
                    )
                job.kill()
        before, reached = reached, place_in(state)
        for rank in range(link.ranks):
            for line in lines_of(Path(f"{log}.{rank}")):
                place = (line["epoch"], line["position"] or EPOCH_SIZE)
                assert place > before
                # What was under way when the job was killed is read again by the next one: it was never learned.
                if place <= reached:
                    numbers = line["numbers"]
                    learned[line["epoch"]] += numbers[: len(numbers) - line["padding"]]
        assert sum(map(len, learned)) == reached[0] * EPOCH_SIZE + reached[1]
        yield learned
    assert reached == (EPOCHS, 0)


def kill_chain(streams: list[dict[str, Any]], tmp_path: Path, links: list[Links], seed: int) -> None:
    """After each job, what was learned is the beginning of the plain list."""
    expected = plain_list(streams, tmp_path / "plain")
    for learned in learned_by(streams, tmp_path, links, seed):
        for epoch, numbers in zip(expected, learned, strict=True):
            assert Counter(numbers) == Counter(epoch[: len(numbers)])


def place_in(state: Path) -> tuple[int, int]:
    """Epoch and position of a state that may not have been saved yet."""
    if not state.exists():
        return 0, 0
    saved = json.loads(state.read_text())
    return saved["epoch"], saved["position"]


def test_a_chain_of_killed_jobs_on_changing_ranks_learns_each_sample_once(
    streams: list[dict[str, Any]], tmp_path: Path
) -> None:
    kill_chain(streams, tmp_path, LINKS[:3], 1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_longer_chain_of_killed_jobs_learns_each_sample_once(
    streams: list[dict[str, Any]], tmp_path: Path
) -> None:
    links = random.Random(2).sample(LINKS, len(LINKS))
    kill_chain(streams, tmp_path, links, 2)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_chain_of_killed_jobs_with_other_weights_each_goes_on_in_every_stream(
    streams: list[dict[str, Any]], tmp_path: Path
) -> None:
    proportions = [(2, 3, 1), (1, 1, 1), (0, 1, 5), (7, 2, 1)]
    links = [link._replace(proportions=each) for link, each in zip(LINKS, proportions, strict=False)]
    ends = list(itertools.accumulate(SIZES, initial=0))
    for learned in learned_by(streams, tmp_path, links, 4):
        counts = Counter(itertools.chain.from_iterable(learned))
        for begin, end in itertools.pairwise(ends):
            times = [counts[number] for number in range(begin, end)]
            assert max(times) - min(times) <= 1  # each pass is over before the next one begins
