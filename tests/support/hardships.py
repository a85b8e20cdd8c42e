"""What the children of ``tests.support.nursery`` do. Each takes options that JSON can hold."""

from __future__ import annotations

import contextlib
import json
import multiprocessing.connection
import multiprocessing.pool
import multiprocessing.popen_fork
import multiprocessing.queues
import multiprocessing.reduction
import multiprocessing.resource_sharer
import multiprocessing.resource_tracker
import multiprocessing.shared_memory
import multiprocessing.sharedctypes
import multiprocessing.synchronize  # noqa: F401
import os
import pkgutil
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp  # noqa: F401
import fsspec.implementations.http  # noqa: F401
import numpy as np
import torch

import streamshard
from streamshard import StreamingDataset
from tests.support.loading import make_loader, numbers_of
from tests.support.small_datasets import write_dataset

torch.set_num_threads(1)
with contextlib.suppress(ImportError):
    import s3fs  # noqa: F401

# A child that has become another user may read neither this tree nor the modules of the interpreter, where those lie in
# a home: all that an epoch imports is there before, be it needed only later.
for _floor in ("format", "storage", "order", "read", "dataset"):
    for _found in pkgutil.walk_packages([f"{streamshard.__path__[0]}/{_floor}"], f"streamshard.{_floor}."):
        import_module(_found.name)


def read_epoch(options: dict[str, Any]) -> dict[str, Any]:
    """Read epochs and return the numbers of their samples, in order.

    Options:
        dataset: arguments of ``StreamingDataset``.
        batch_size, workers: of the loader.
        log: each batch is appended to it, as JSON, when it has come.
        epochs: how many; 1 by default.
        leave_after: batches of the first epoch after which it is left.
        gate: [batches, path]: after so many batches, wait until there is such a file.
    """
    log = os.open(options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT) if options.get("log") else None
    dataset = StreamingDataset(**options["dataset"])
    loader = make_loader(
        "streaming", dataset, options.get("batch_size", 6), num_workers=options.get("workers", 0)
    )
    gate, gate_path = options.get("gate", [-1, ""])
    numbers: list[int] = []
    for epoch in range(options.get("epochs", 1)):
        for step, batch in enumerate(loader, start=1):
            numbers += numbers_of(batch)
            if log is not None:
                os.write(log, json.dumps(numbers_of(batch)).encode() + b"\n")
            if epoch == 0 and step == options.get("leave_after"):
                break
            while step == gate and not Path(gate_path).exists():
                time.sleep(0.005)
    if log is not None:
        os.close(log)
    return {"numbers": numbers}


def batches_in(log: Path) -> list[list[int]]:
    """The batches in a log that may be half-written at its end."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_texts(options: dict[str, Any]) -> list[str]:
    """Read one epoch and return its texts."""
    dataset = StreamingDataset(**options["dataset"])
    loader = make_loader("streaming", dataset, options["batch_size"], num_workers=options["workers"])
    return [text for batch in loader for text in batch["text"]]


def say(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options, or end with the status ``exit``, after ``sleep_s`` seconds."""
    time.sleep(options.get("sleep_s", 0))
    if "exit" in options:
        raise SystemExit(options["exit"])
    return options


def read_arrays(options: dict[str, Any]) -> list[int]:
    """Write ``samples`` of ``rows`` float32, read them with ``workers`` in batches, and return their numbers.

    With ``no_memfd``, as on a system that has no memory without a name.
    """
    if options.get("no_memfd"):
        del os.memfd_create
    with tempfile.TemporaryDirectory() as directory:
        samples = [
            {"number": number, "x": np.full(options["rows"], number, np.float32)}
            for number in range(options["samples"])
        ]
        columns = {"number": "int", "x": f"ndarray:float32:{options['rows']}"}
        write_dataset(Path(directory) / "set", samples, columns, samples_per_shard=8)
        dataset = StreamingDataset(local=Path(directory) / "set")
        loader = make_loader("streaming", dataset, options["batch_size"], num_workers=options["workers"])
        numbers: list[int] = []
        for batch in loader:
            if not (batch["x"] == batch["number"][:, None]).all():
                raise AssertionError("arrays of other samples")
            numbers += batch["number"].tolist()
        return numbers
