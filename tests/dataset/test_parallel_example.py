"""docs/how-to/parallel_groups.py does what the page says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.loading import text_dataset
from tests.support.ranks import PATIENCE_S

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "parallel_groups.py"
SAMPLES = 64


def printed_by_ranks(directory: Path, tmp_path: Path, *options: str) -> list[str]:
    """What four processes print that are started as torchrun would, but meet in a file."""
    environment = {
        **os.environ,
        "WORLD_SIZE": "4",
        "MEETING": f"file://{tmp_path}/meeting",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(SCRIPT), str(directory), *options]
    processes = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        printed = [process.communicate(timeout=PATIENCE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 4, printed
    return "".join(printed).splitlines()


@pytest.mark.slow
def test_b117_the_example_gives_each_group_the_same_and_together_everything(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", SAMPLES)
    lines = printed_by_ranks(directory, tmp_path, "--by", "mesh", "hand", "replication", "--read-once")
    for way in ("mesh", "hand", "replication"):
        said = [line.partition(": ")[2] for line in lines if line.startswith(f"by {way}, ")]
        assert said[0] == said[1] != said[2] == said[3]
        assert all(each.startswith("32 samples, first a") for each in said[:4])
        assert said[4:] == ["64 of 64 samples"]
