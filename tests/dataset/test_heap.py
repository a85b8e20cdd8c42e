"""Large samples: what is freed stays with the process, so that the system need not clear the same pages again."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from streamshard import MDSWriter

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="concerns the heap of glibc")
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
