"""What ``remainder="drop"`` leaves out, in words: each thing once for each dataset."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamshard.dataset.source import OpenStream
    from streamshard.order.batches import BatchPlan

logger = logging.getLogger(__name__)

_LISTED = 20


class DropReport:
    """Says what whole epochs leave out, and what the rest of an epoch does that a state goes on in.

    It is a warning where that may be all of a small stream, or all that is left; else a line of the log.
    """

    def __init__(self, streams: Sequence[OpenStream]) -> None:
        self._streams = streams
        self._said: set[bool] = set()

    def say(self, plan: BatchPlan, epoch: int, left_out: Mapping[int, int], *, by_stream: bool) -> None:
        """Report what a plan that is about to be read leaves out.

        Args:
            plan: the batches.
            epoch: theirs.
            left_out: samples that it leaves out, by number of stream.
            by_stream: whether batches are of one stream each.
        """
        is_rest = plan.start > 0
        is_all = is_rest and not plan.num_batches
        if not plan.left_out or (is_rest in self._said and not is_all):
            return
        self._said.add(is_rest)
        texts = [f"{count} samples of {self._streams[stream].stream}" for stream, count in left_out.items()]
        more = f" and some of {len(texts) - _LISTED} more streams" if len(texts) > _LISTED else ""
        what = ", ".join(texts[:_LISTED]) + more
        if is_all:
            text = (
                f"remainder='drop' leaves nothing of epoch {epoch}: what is left of it after position {plan.start}, "
                f"{what}, fills no global batch of {plan.global_batch_size}. So this iteration gives no batch, and the "
                "next one begins the next epoch; remainder='pad' gives these samples"
            )
        else:
            where = f"the rest of epoch {epoch}" if is_rest else "each epoch"
            text = f"remainder='drop' leaves out {what} of {where}; remainder='pad' leaves out nothing"
        if by_stream or is_all:
            warnings.warn(text, UserWarning, stacklevel=5)
        else:
            logger.info("%s", text)
