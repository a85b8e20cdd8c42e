"""Loaders of every kind over one small dataset, and what came out of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from streamshard import StreamingDataLoader, StreamingDataset
from tests.support.small_datasets import text_samples, write_dataset


def text_dataset(directory: Path, num_samples: int, *, samples_per_shard: int = 10, **options: Any) -> Path:
    """Write a dataset of text samples whose ``number`` is their place, and return its directory."""
    write_dataset(directory, text_samples(num_samples), samples_per_shard=samples_per_shard, **options)
    return directory


def numbers_of(batch: Any) -> list[int]:
    """The numbers of a batch's samples, after checking that all columns belong together."""
    numbers = [int(number) for number in batch["number"]]
    if list(batch["id"]) != [f"a{number}" for number in numbers]:
        raise AssertionError(f"columns of different samples in one batch: {batch}")
    texts = [f"text of {number} " * (1 + number % 3) for number in numbers]
    if list(batch["text"]) != texts:
        raise AssertionError(f"wrong text in batch: {batch}")
    return numbers


def epoch_of(loader: Iterable[Any]) -> list[list[int]]:
    """One whole iteration as lists of sample numbers."""
    return [numbers_of(batch) for batch in loader]


def make_loader(
    kind: str, dataset: StreamingDataset, batch_size: int, *, method: str | None = None, **arguments: Any
) -> Any:
    """Make a loader: ``plain`` (torch), ``streaming`` (ours) or ``stateful`` (torchdata).

    Args:
        method: how workers are started; needs ``num_workers``.
    """
    if method is not None:
        arguments["multiprocessing_context"] = method
    if kind == "streaming":
        return StreamingDataLoader(dataset, batch_size, **arguments)
    if kind == "plain":
        return DataLoader(dataset, batch_size, **arguments)
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size, **arguments)


def joined(parts: Iterable[list[Any]]) -> list[Any]:
    """All parts one after another."""
    return list(itertools.chain.from_iterable(parts))
