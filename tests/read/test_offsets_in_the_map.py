"""Large tables of offsets stay in the file's map, where another program may write while we read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset
from streamshard.errors import FormatError
from streamshard.read.head import MAPPED_FROM_NBYTES
from tests.support.small_datasets import write_dataset

NUM_SAMPLES = MAPPED_FROM_NBYTES // 4 + 100
ROW = 7

READS: dict[str, Callable[[LocalDataset], Any]] = {
    "one": lambda dataset: dataset[ROW],
    "a few": lambda dataset: dataset[[ROW, ROW + 2]],
    "many": lambda dataset: dataset[np.arange(NUM_SAMPLES)],
}


@pytest.mark.parametrize("end", [0, 1 << 31], ids=["before its begin", "behind the file"])
@pytest.mark.parametrize("reads", list(READS))
def test_an_offset_that_changes_under_a_reader_is_told(tmp_path: Path, reads: str, end: int) -> None:
    samples = [{"text": f"sample {number}"} for number in range(NUM_SAMPLES)]
    write_dataset(tmp_path / "set", samples, {"text": "str"}, samples_per_shard=NUM_SAMPLES)
    dataset = LocalDataset(tmp_path / "set")
    assert dataset[ROW] == samples[ROW]
    with (tmp_path / "set" / "shard.00000.mds").open("r+b") as file:
        file.seek(4 + 4 * (ROW + 1))
        file.write(struct.pack("<I", end))
    with pytest.raises(FormatError, match="table of offsets is not any more"):
        READS[reads](dataset)
