"""What is freed stays with the process; what a worker begins with is no garbage."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset

NBYTES = 6 << 20  # more than Python's modules have made the heap keep by themselves
# Page faults of five such blocks, each freed before the next, once a dataset was read by a copy of this process.
SCRIPT = f"""
import os, resource, sys
from streamshard import StreamingDataLoader, StreamingDataset

def faults():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        bytes(bytearray({NBYTES}))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

for name in ("small", "large", "large by workers"):
    if os.fork() == 0:
        dataset = StreamingDataset(local=os.path.join(sys.argv[1], name.split()[0]), batch_size=4)
        list(StreamingDataLoader(dataset, num_workers=1) if "workers" in name else dataset)
        faults()  # the heap grows to its new size
        print(faults(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="concerns the heap of glibc")
def test_freed_memory_is_kept_where_samples_are_large(tmp_path: Path) -> None:
    for name, nbytes in (("small", 100), ("large", 8000)):
        with MDSWriter(out=tmp_path / name, columns={"blob": "bytes"}) as writer:
            for number in range(8):
                writer.write({"blob": bytes([number]) * nbytes})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True
    )
    small, large, by_workers = map(int, done.stdout.split())
    pages = 5 * NBYTES // 4096
    assert small > pages / 2, "this heap keeps what is freed by itself"
    assert large < pages / 20
    assert by_workers < pages / 20


_KEPT: list[list[int]] = []


def with_frozen(sample: dict[str, Any]) -> dict[str, Any]:
    """Add how many objects this process leaves out of its collections of garbage; make some that stay."""
    _KEPT.extend([0] for _ in range(200))
    return {**sample, "frozen": gc.get_freeze_count()}


def test_a_worker_looks_for_garbage_among_its_own_objects_only(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path / "set", columns={"number": "int"}) as writer:
        for number in range(8):
            writer.write({"number": number})
    dataset = StreamingDataset(local=tmp_path / "set", batch_size=4, transform=with_frozen)
    here = gc.get_freeze_count()
    loader = StreamingDataLoader(dataset, num_workers=1, persistent_workers=True)
    epochs = [[int(count) for batch in loader for count in batch["frozen"]] for _ in range(2)]
    assert min(epochs[0]) > here + 1000
    assert max(epochs[1]) < max(epochs[0]) + 400, "once, not what an epoch leaves"
    list(dataset)
    assert gc.get_freeze_count() == here
