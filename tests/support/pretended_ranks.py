"""Datasets of numbers, and all ranks of a pretended world reading them one after another in this process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard import StreamingDataLoader, StreamingDataset, World
from streamshard.format.index import index_text
from streamshard.format.schema import Schema
from tests.support.small_datasets import write_shard

SEED = 17


def write_numbers(directory: Path, sizes: Sequence[int], *, first: int = 0, **how: Any) -> Path:
    """Write shards of these sizes whose samples are {"number": 0}, {"number": 1}, …; return the directory."""
    schema = Schema.from_columns({"number": "int"})
    shards = []
    for shard, size in enumerate(sizes):
        encoded = [schema.encode_sample({"number": number}) for number in range(first, first + size)]
        shards.append(write_shard(directory, shard, schema, encoded, **how))
        first += size
    (directory / "index.json").write_bytes(index_text(shards))
    return directory


def numbers(samples: list[dict[str, Any]]) -> list[int]:
    """A collate function that keeps nothing but the numbers."""
    return [sample["number"] for sample in samples]


def loader_of(
    directory: Path,
    rank: int = 0,
    ranks: int = 1,
    *,
    workers: int = 0,
    drop_last: bool = False,
    prefetch_factor: int | None = None,
    **arguments: Any,
) -> StreamingDataLoader:
    """Make one rank's loader of number lists; shuffled unless told otherwise."""
    arguments = {"shuffle": True, "shuffle_seed": SEED, **arguments}
    dataset = StreamingDataset(local=directory, world=World(rank, ranks), **arguments)
    return StreamingDataLoader(
        dataset,
        num_workers=workers,
        drop_last=drop_last,
        prefetch_factor=prefetch_factor,
        collate_fn=numbers,
    )


class Part(NamedTuple):
    """What all ranks received of one iteration.

    Attributes:
        batches: for each rank, its batches without their padding.
        padding: for each rank, the padding cut off the end of each batch.
        state: JSON text of the state after the last of these batches, equal on all ranks.
    """

    batches: list[list[list[int]]]
    padding: list[list[list[int]]]
    state: str

    @property
    def steps(self) -> list[list[int]]:
        """Global batches: the ranks' parts joined."""
        most = max(len(batches) for batches in self.batches)
        return [
            [number for batches in self.batches if step < len(batches) for number in batches[step]]
            for step in range(most)
        ]

    @property
    def sequence(self) -> list[int]:
        """All samples in global order."""
        return [number for step in self.steps for number in step]


def read_part(
    loaders: Sequence[StreamingDataLoader], *, state: str | None = None, steps: int | None = None
) -> Part:
    """Let each rank load a state, if given, and read its next batches: all, or some steps."""
    batches: list[list[list[int]]] = []
    padding: list[list[list[int]]] = []
    states = set()
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(state))
        batches.append([])
        padding.append([])
        announced = len(loader)
        iterator = iter(loader)
        if len(loader) != announced:
            raise AssertionError(f"length {announced} before iter(), {len(loader)} after")
        for batch in iterator:
            real = len(batch) - loader.last_batch_padding
            batches[-1].append(batch[:real])
            padding[-1].append(batch[real:])
            if len(batches[-1]) == steps:
                break
        else:
            if len(batches[-1]) != announced:
                raise AssertionError(f"length {announced}, but {len(batches[-1])} batches")
        states.add(json.dumps(loader.state_dict(), sort_keys=True))
        del iterator
    if len(states) != 1:
        raise AssertionError(f"ranks disagree about the state: {states}")
    return Part(batches, padding, states.pop())


def world_of(directory: Path, ranks: int, **arguments: Any) -> list[StreamingDataLoader]:
    """Make the loaders of all ranks."""
    return [loader_of(directory, rank, ranks, **arguments) for rank in range(ranks)]
