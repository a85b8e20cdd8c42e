"""The rank of a soak that is never killed: it reads epoch after epoch, and measures itself."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from tests.support.loading import make_loader, numbers_of


def steady(rank: int, options: dict[str, Any]) -> None:
    """Read whole epochs until the time is up on rank 0; log for each what came and what this rank's processes hold.

    Options:
        dataset, loader: as ``trainers.train``.
        log: each rank appends to ``{log}.{rank}``.
        until: time of ``time.time()`` at which no further epoch is begun.
    """
    import torch
    import torch.distributed as dist

    from streamshard import Stream, StreamingDataset

    described = dict(options["dataset"])
    described["streams"] = [Stream(**stream) for stream in described["streams"]]
    dataset = StreamingDataset(**described)
    loader = make_loader(dataset=dataset, **options["loader"])
    log = os.open(f"{options['log']}.{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    goes_on = torch.ones(1)
    while goes_on:
        numbers: list[int] = []
        for batch in loader:
            own = numbers_of(batch)
            numbers += own[: len(own) - loader.last_batch_padding]
        line = {"epoch": dataset.epoch, "numbers": numbers, "holds": holdings()}
        os.write(log, json.dumps(line).encode() + b"\n")
        goes_on = torch.tensor([float(time.time() < options["until"])])
        dist.broadcast(goes_on, 0)
    os.close(log)


def holdings() -> list[dict[str, int]]:
    """Bytes of no file, descriptors and threads of this process and then of its children, the eldest first."""
    import psutil

    own = psutil.Process()
    children = sorted(own.children(recursive=True), key=lambda child: (child.create_time(), child.pid))
    return [
        {
            "nbytes": _anonymous_nbytes(process),
            "descriptors": process.num_fds(),
            "threads": process.num_threads(),
        }
        for process in (own, *children)
    ]


def _anonymous_nbytes(process: Any) -> int:
    """Bytes in memory of pages that belong to no file, be they shared with the process that it was copied from or not.

    Not the private ones: whenever one of two processes collects its garbage, or ends, pages that both had become the
    other's own, 60 MB at once, though neither holds more than before.
    """
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return int(process.memory_full_info().uss)
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Anonymous:"))
