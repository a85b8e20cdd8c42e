"""A dataset with bad samples of every kind, its sound twin, and what a loader must make of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard import StreamingDataLoader, StreamingDataset, World
from tests.support import damage
from tests.support.loading import text_dataset

SAMPLES, PER_SHARD = 240, 10
MISSING, CUT = 4, 13
ROWS = [3, 7, 58, 100, 101, 102, 239]
BAD = frozenset([*ROWS, *(shard * PER_SHARD + row for shard in (MISSING, CUT) for row in range(PER_SHARD))])
GOOD = frozenset(range(SAMPLES)) - BAD


class Twins(NamedTuple):
    """Two directories with one index."""

    sound: Path
    spoiled: Path


def write_twins(directory: Path) -> Twins:
    """Write both: the spoiled one has one shard missing, one cut, and seven rows that do not decode."""
    sound = text_dataset(directory / "sound", SAMPLES, samples_per_shard=PER_SHARD)
    spoiled = Path(shutil.copytree(sound, directory / "spoiled"))
    damage.remove(spoiled, MISSING)
    damage.truncate(spoiled, CUT)
    for number in ROWS:
        damage.spoil_row(spoiled, *divmod(number, PER_SHARD))
    return Twins(sound, spoiled)


def numbers(samples: Sequence[dict[str, Any]]) -> list[int]:
    """A collate function that keeps nothing but the numbers."""
    return [sample["number"] for sample in samples]


def is_wanted(sample: dict[str, Any]) -> bool:
    """A filter that leaves out 30 %."""
    return sample["number"] * 7 % 10 >= 3


def loader_of(
    directory: Path, rank: int = 0, ranks: int = 1, *, workers: int = 0, **arguments: Any
) -> StreamingDataLoader:
    """One rank's loader of number lists."""
    of_loader = {
        name: arguments.pop(name)
        for name in ("multiprocessing_context", "persistent_workers", "pin_memory", "prefetch_factor")
        if name in arguments
    }
    arguments = {"shuffle": True, "global_batch_size": 24, **arguments}
    if arguments.get("on_error", "raise") != "raise":
        arguments.setdefault("error_limit", 0.5)
    place = {} if "streams" in arguments or "remote" in arguments else {"local": directory}
    dataset = StreamingDataset(**place, world=World(rank, ranks), **arguments)
    return StreamingDataLoader(dataset, num_workers=workers, collate_fn=numbers, **of_loader)


class Read(NamedTuple):
    """What one rank received: its batches, the padding of each, and what was left out in the end."""

    batches: list[list[int]]
    padding: list[int]
    left_out: tuple[int, int]


def read(loader: StreamingDataLoader, steps: int | None = None) -> Read:
    """Read some or all batches of an iteration."""
    batches, padding = [], []
    iterator = iter(loader)
    for batch in iterator:
        batches.append(batch)
        padding.append(loader.last_batch_padding)
        if len(batches) == steps:
            break
    left_out = tuple(loader.left_out)
    del iterator
    return Read(batches, padding, left_out)


def real(reads: Sequence[Read]) -> list[list[int]]:
    """The global batches of all ranks without padding, each sorted."""
    return [
        sorted(
            number
            for each in reads
            for number in each.batches[step][: len(each.batches[step]) - each.padding[step]]
        )
        for step in range(len(reads[0].batches))
    ]
