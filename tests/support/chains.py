"""Random mixtures of streams and random chains of runs over them, and how the runs are read. No expectations here."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from streamshard import Stream, StreamingDataLoader, StreamingDataset, World
from tests.support.pretended_ranks import numbers, write_numbers

FIRST = 1000
"""Numbers of stream s begin at s * FIRST, so that a number tells its stream."""

SHARDS: list[tuple[int, ...]] = [
    (1,), (3,), (17,), (5, 4), (2, 7, 1), (6, 6, 6), (1, 1, 1, 1, 1), (4, 3, 8, 2, 5), (3, 3, 3, 3, 3, 3, 3),
    (1, 11, 2), (2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2), (9, 1, 1, 9),
]  # fmt: skip


class Source(NamedTuple):
    """One stream: its number, the sizes of its shards, and further arguments of ``Stream``: its weight, its name."""

    number: int
    shards: tuple[int, ...]
    weight: dict[str, Any]

    @property
    def size(self) -> int:
        """Samples that it has."""
        return sum(self.shards)


class Link(NamedTuple):
    """One run of a chain.

    Attributes:
        ranks: of its world.
        batch: ``batch_size`` or ``global_batch_size``, and ``remainder``.
        workers: of each rank.
        steps: global batches after which it is interrupted, over the end of epochs.
    """

    ranks: int
    batch: dict[str, Any]
    workers: int
    steps: int

    @property
    def global_batch(self) -> int:
        """G."""
        size: int = self.batch.get("global_batch_size") or self.batch["batch_size"] * self.ranks
        return size


class Case(NamedTuple):
    """Streams, how an epoch is made of them, and the runs that read it in turn."""

    sources: list[Source]
    order: dict[str, Any]
    links: list[Link]


class Library:
    """Datasets of numbers, each written once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._written: dict[tuple[int, tuple[int, ...]], Path] = {}

    def stream(self, source: Source) -> Stream:
        """The stream, its samples numbered from ``number * FIRST`` on."""
        key = (source.number, source.shards)
        if key not in self._written:
            directory = self._root / f"{source.number}-{'-'.join(map(str, source.shards))}"
            directory.mkdir()
            self._written[key] = write_numbers(directory, source.shards, first=source.number * FIRST)
        return Stream(local=self._written[key], **source.weight)

    def loader(
        self, case: Case, world: World, batch: dict[str, Any], workers: int = 0
    ) -> StreamingDataLoader:
        """One rank's loader."""
        streams = [self.stream(source) for source in case.sources]
        dataset = StreamingDataset(streams=streams, world=world, **case.order, **batch)
        return StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers)

    def ranks(self, case: Case, link: Link) -> list[StreamingDataLoader]:
        """The loaders of all ranks of a run."""
        return [
            self.loader(case, World(rank, link.ranks), link.batch, link.workers) for rank in range(link.ranks)
        ]


@st.composite
def weighted_sources(draw: st.DrawFn) -> tuple[list[Source], int | None]:
    """Streams with weights of one kind or none, and a size of the epoch in which each can have its share."""
    shards = draw(st.lists(st.sampled_from(SHARDS), min_size=1, max_size=4))
    return draw(weighted([Source(number, each, {}) for number, each in enumerate(shards)]))


@st.composite
def weighted(draw: st.DrawFn, sources: Sequence[Source]) -> tuple[list[Source], int | None]:
    """The same streams with weights."""
    available = sum(source.size for source in sources)
    size: int | None = None
    kind = draw(st.sampled_from(["none", "size", "proportion", "own"]))
    weights: list[dict[str, Any]] = [{} for _ in sources]
    if kind == "size":
        size = draw(st.integers(1, 2 * available))
    if kind == "proportion":
        proportions = draw(st.lists(st.integers(0, 9), min_size=len(sources), max_size=len(sources)))
        if not any(proportions):
            proportions[0] = 1
        weights = [{"proportion": each} for each in proportions]
        least = ceil(sum(proportions) / min(each for each in proportions if each))
        if draw(st.booleans()) or available < least:
            size = max(least, draw(st.integers(1, 2 * available)))
    if kind == "own":
        for weight in weights:
            what = draw(st.sampled_from(["repeat", "choose", "none"]))
            if what == "repeat":
                weight["repeat"] = draw(st.sampled_from([1, 1.5, 2, 2.7]))
            if what == "choose":
                weight["choose"] = draw(st.integers(1, 40))
    return [
        source._replace(weight={**source.weight, **weight})
        for source, weight in zip(sources, weights, strict=True)
    ], size


def epoch_samples(sources: Sequence[Source], epoch_size: int | None) -> int:
    """Samples of an epoch, as plainly as it can be said."""
    if epoch_size is not None:
        return epoch_size
    return sum(
        source.weight.get("choose") or int(source.size * source.weight.get("repeat", 1)) for source in sources
    )


@st.composite
def orders(draw: st.DrawFn, methods: Sequence[str] = ("random", "stratified")) -> dict[str, Any]:
    """Arguments of a dataset that make its order."""
    order: dict[str, Any] = {
        "shuffle": draw(st.booleans()),
        "shuffle_seed": draw(st.integers(0, 2**32)),
        "batching_method": draw(st.sampled_from(methods)),
    }
    if order["shuffle"]:
        order["shuffle_algo"] = draw(st.sampled_from(["sliding", "block", "shard", "full"]))
        order["num_canonical_nodes"] = draw(st.none() | st.integers(1, 5))
        order["shuffle_block_size"] = draw(st.none() | st.integers(1, 40))
    return order


@st.composite
def links(draw: st.DrawFn, num_samples: int, workers: Sequence[int], most_ranks: int) -> Link:
    """A run whose global batch an epoch of ``num_samples`` allows."""
    ranks = draw(st.integers(1, most_ranks))
    if draw(st.booleans()):
        batch = {"batch_size": draw(st.integers(1, 6))}
        size = batch["batch_size"] * ranks
    else:
        size = draw(st.integers(ranks, max(ranks, min(25, num_samples + 3))))
        batch = {"global_batch_size": size}
    rules = ["pad", "exact", "drop"] if size <= num_samples else ["pad", "exact"]
    rule = draw(st.sampled_from(rules))
    return Link(ranks, {**batch, "remainder": rule}, draw(st.sampled_from(workers)), draw(st.integers(1, 9)))


@st.composite
def cases(draw: st.DrawFn, workers: Sequence[int] = (0,), most_ranks: int = 5, most_links: int = 6) -> Case:
    """A mixture and a chain of up to ``most_links`` runs, each going on where the one before was interrupted."""
    sources, size = draw(weighted_sources())
    order = draw(orders())
    if size is not None:
        order["epoch_size"] = size
    num_samples = epoch_samples(sources, size)
    chain = draw(st.lists(links(num_samples, workers, most_ranks), min_size=1, max_size=most_links))
    return Case(sources, order, chain)


class ChangingLink(NamedTuple):
    """One run of a chain in which the streams and what an epoch takes of them change too."""

    case: Case
    link: Link


@st.composite
def changing_chains(draw: st.DrawFn, methods: Sequence[str], most_links: int = 6) -> list[ChangingLink]:
    """Runs over some of four named streams in any order, the first of them always there, newly weighted each time.

    Whatever is read is given, so that it can be counted: no batch is dropped.
    """
    shards = draw(st.lists(st.sampled_from(SHARDS), min_size=4, max_size=4))
    pool = [Source(number, each, {"name": f"stream {number}"}) for number, each in enumerate(shards)]
    order = draw(orders(methods))
    chain = []
    for _ in range(draw(st.integers(1, most_links))):
        others = draw(st.lists(st.sampled_from(pool[1:]), max_size=3, unique_by=lambda source: source.number))
        sources, size = draw(weighted(draw(st.permutations([pool[0], *others]))))
        link = draw(links(25, (0,), 4))
        batch = dict(link.batch)
        if batch["remainder"] == "drop":
            batch["remainder"] = "pad"
        if order["batching_method"] == "device_per_stream" and "batch_size" not in batch:
            batch = {"batch_size": 3, "remainder": batch["remainder"]}
        link = link._replace(batch=batch)
        here = order if size is None else {**order, "epoch_size": size}
        chain.append(ChangingLink(Case(sources, here, []), link))
    return chain
