"""What the ranks of ``tests.support.ranks`` do. Each takes its rank and options that JSON can hold."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

from tests.support.loading import make_loader, numbers_of


def train(rank: int, options: dict[str, Any]) -> None:
    """Train: go on from ``state`` if it is there, log each batch, all-reduce, and save the state after each step.

    Options:
        dataset: arguments of ``StreamingDataset``; each of its ``streams``, if any, as arguments of ``Stream``.
        loader: arguments of ``make_loader``.
        log: each rank appends to ``{log}.{rank}``.
        state: file of the state, written by rank 0.
        steps: stop after so many steps of this run; without it, at the end of epoch ``epochs`` - 1.
        collective: all-reduce after each step.
    """
    import torch
    import torch.distributed as dist

    from streamshard import Stream, StreamingDataset

    described = dict(options["dataset"])
    if "streams" in described:
        described["streams"] = [Stream(**stream) for stream in described["streams"]]
    dataset = StreamingDataset(**described)
    loader = make_loader(dataset=dataset, **options["loader"])
    state = Path(options["state"]) if options.get("state") else None
    if state is not None and state.exists():
        loader.load_state_dict(json.loads(state.read_text()))
    log = os.open(f"{options['log']}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    step, most = 0, options.get("steps")
    keeps_state = loader.__class__.__name__ == "StreamingDataLoader"
    while dataset.next_epoch < options.get("epochs", 1 << 30):
        for batch in loader:
            numbers = numbers_of(batch)
            line: dict[str, Any] = {"epoch": dataset.epoch, "step": step, "numbers": numbers}
            if keeps_state:
                line["padding"] = loader.last_batch_padding
                line["position"] = loader.state_dict()["position"]
            os.write(log, json.dumps(line).encode() + b"\n")
            step += 1
            if options.get("collective"):
                total = torch.ones(1)
                dist.all_reduce(total)
            if rank == 0 and state is not None:
                fresh = state.with_name(f"{state.name}.fresh")
                fresh.write_text(json.dumps(loader.state_dict()))
                fresh.replace(state)
            if step == most:
                os.close(log)
                return
    os.close(log)


def read_in_many_ways(rank: int, options: dict[str, Any]) -> None:
    """Read one epoch with each loader of ``ways`` and log the numbers that this rank got."""
    from streamshard import StreamingDataset

    with open(f"{options['log']}.{rank}", "w") as log:
        for way in options["ways"]:
            dataset = StreamingDataset(**options["dataset"])
            loader = make_loader(dataset=dataset, **way)
            numbers = [number for batch in loader for number in numbers_of(batch)]
            log.write(json.dumps({"way": way, "numbers": numbers}) + "\n")


def leave_early(rank: int, options: dict[str, Any]) -> None:
    """Take some batches of each loader of ``ways``, keep their iterators, and let the process end."""
    from streamshard import StreamingDataset

    for way in options["ways"]:
        dataset = StreamingDataset(**options["dataset"])
        loader = make_loader(dataset=dataset, **way)
        iterator = iter(loader)
        for _ in range(options["steps"]):
            numbers_of(next(iterator))
        _kept.append((dataset, loader, iterator))
    iterator = iter(StreamingDataset(**options["dataset"]))
    next(iterator)
    _kept.append((iterator,))
    print("leaving")


def stop_after_first(rank: int, options: dict[str, Any]) -> None:
    """Take the first batch, of bytes as they are, log this process's number, and wait to be killed."""
    from torch.utils.data import DataLoader

    from streamshard import StreamingDataset

    dataset = StreamingDataset(**options["dataset"])
    loader = DataLoader(dataset, batch_size=1, num_workers=1, prefetch_factor=8, collate_fn=list)
    _kept.append((iter(loader),))
    next(_kept[-1][0])
    Path(f"{options['log']}.{rank}").write_text(json.dumps({"pid": os.getpid()}) + "\n")
    signal.pause()


_kept: list[tuple[Any, ...]] = []
