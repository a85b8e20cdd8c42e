"""What an order needs of a walk over one stream, whichever kind of walk it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Spots:
    """Where some ascending indices of a stream lie.

    Attributes:
        lane: lane of each index, shape (n,).
        row: row within the lane, shape (n,).
        turns: (pass, begin, end) for each run of indices that lie in one pass; the runs cover 0 … n.
    """

    lane: NDArray[np.int64]
    row: NDArray[np.int64]
    turns: list[tuple[int, int, int]]


class StreamWalk(Protocol):
    """What an order needs of a walk. Its spots go back to it as they came."""

    stream: int
    seed: int
    num_samples: int
    num_shards: int
    shuffle: str
    lanes: int
    window: int
    scattered: bool

    @property
    def block_rows(self) -> int: ...
    def spots(self, first: int, offsets: NDArray[np.int64]) -> Any: ...
    def sort_keys(self, spots: Any) -> NDArray[np.uint64]: ...
    def samples(self, spots: Any, chosen: NDArray[np.int64] | None = None) -> NDArray[np.int64]: ...
    def pass_of(self, index: int) -> tuple[int, int]: ...
    def pass_number(self, index: int) -> int: ...
    def renewed(self, *, stream: int, lanes: int, window: int, scattered: bool = False) -> StreamWalk: ...
    def live_shards(self, num_nodes: int = 1) -> int: ...
    @property
    def samples_per_shard(self) -> NDArray[np.int64]: ...
