"""How many shards are live: of which a reader of some lanes has given samples and is to give others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streamshard.order.lanes import Lanes


def most_pieces(cut: Lanes) -> int:
    """Pieces of the lane that has most of them."""
    if cut.count == 1:  # of a thousand streams
        return len(cut.piece_counts)
    return int(np.diff(cut.lane_pieces).max())


def live_in_lanes(
    cut: Lanes, window: int, lanes: int, num_shards: int, blocks: NDArray[np.int64] | None = None
) -> int:
    """Give the shards that ``lanes`` of a stream's lanes need at once.

    Each has as many as its window. A shard that a border between two lanes cuts is needed from its first part to its
    second; for those that wait a share of them is added, which grows with window · C ÷ shards. A batch in which shards
    end and others begin needs both.

    Args:
        cut: the stream's pieces.
        window: pieces that a lane mixes at once, at most as many as it has.
        lanes: that are read.
        num_shards: of the stream.
        blocks: of ``block``, the pieces that each lane needs in each of its blocks, as ``live_blocks`` gives them.
    """
    cuts = min(int(cut.border_cuts.sum()), lanes - 1)
    waiting = 1 - (-5 * cuts * window * cut.count // (4 * num_shards))
    # In lanes of few pieces there is no place for the parts to meet: they wait for the whole pass.
    at_border = cut.border_cuts.astype(np.int64)
    whole = np.diff(cut.lane_pieces) - at_border[:-1] - at_border[1:]
    waiting = min(cuts, waiting + 2 * int((whole < 2 * window).sum()))
    live = lanes * window
    if blocks is not None:
        sums = np.cumsum(np.pad(blocks, ((0, 0), (1, 0))), axis=1)
        live = int((sums[:, lanes:] - sums[:, :-lanes]).max())
    return min(num_shards, live + waiting)
