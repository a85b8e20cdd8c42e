"""Splits: every record belongs to exactly one of several datasets, by a random draw of exact size.

The inputs are staged and scanned once, in a work directory of the whole; each split is then planned and written as a
dataset of its own, ``OUT/NAME``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.random_order import ranked
from streamshard.convert.rows import open_rows, sync_file

# So that a split is no part of the shuffle of the same seed.
_SEED_OFFSET = 0x53504C4954


class Part(NamedTuple):
    """The share ``[begin, end)`` of all records, in a random order that depends on the seed alone."""

    begin: float
    end: float
    seed: int

    def rows(self, num_records: int) -> Iterator[NDArray[np.int64]]:
        """The numbers of the records of this part, ascending: int64 arrays. Parts that tile [0, 1) tile the records."""
        first, last = round(self.begin * num_records), round(self.end * num_records)
        return ranked(num_records, (self.seed + _SEED_OFFSET) % (1 << 64), first, last)


def parse_splits(text: str) -> tuple[tuple[str, float], ...]:
    """``"train=0.98,val=0.02"`` → ``(("train", 0.98), ("val", 0.02))``.

    Raises:
        ValueError: names that cannot be folders, or shares that do not add up to 1.
    """
    pairs: list[tuple[str, float]] = []
    for item in text.split(","):
        name, equals, share = item.strip().partition("=")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not equals or not 0 < value <= 1:
            raise ValueError(
                f"--split {text}: expected NAME=SHARE,… such as train=0.98,val=0.02, found {item!r}"
            )
        if name in ("", ".", "..") or name[0] in "._" or "/" in name or name in [known for known, _ in pairs]:
            raise ValueError(f"--split {text}: {name!r} cannot be the name of one more folder")
        pairs.append((name, value))
    if abs(sum(share for _, share in pairs) - 1) > 1e-9:
        raise ValueError(
            f"--split {text}: the shares add up to {sum(share for _, share in pairs):g}, expected 1"
        )
    return tuple(pairs)


def parts(splits: Sequence[tuple[str, float]], seed: int) -> list[tuple[str, Part]]:
    """The parts of all splits, which tile the records."""
    found = []
    begin = 0.0
    for place, (name, share) in enumerate(splits):
        end = 1.0 if place == len(splits) - 1 else begin + share
        found.append((name, Part(begin, end, seed)))
        begin = end
    return found


def keep_part(scanned: Path, part: Part) -> int:
    """Keep only the rows of a part in a table of rows; gives the sum of their sizes."""
    rows = open_rows(scanned)
    made = scanned.with_name(f"{scanned.name}.part")
    payload_nbytes = 0
    with made.open("wb") as file:
        for kept in part.rows(len(rows)):
            block = rows[kept]
            payload_nbytes += int(block["sample_nbytes"].sum())
            file.write(block.tobytes())
        sync_file(file)
    made.replace(scanned)
    return payload_nbytes
