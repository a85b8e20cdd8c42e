"""The states of one dataset: made for a position, and read back with suspicion."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamshard.dataset.iteration import PROGRESS, parse_progress
from streamshard.errors import StateError
from streamshard.order.batches import BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.position import Setting, State
from streamshard.order.resume import differences, resume
from streamshard.order.stream_state import StreamState

logger = logging.getLogger(__name__)

MAX_EPOCH = (1 << 53) - 2
"""Last epoch that a state can name together with the one after it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state that was read.

    Attributes:
        epoch, position: where it goes on.
        progress: what one worker had taken from there, where one had saved it.
        is_other_order: whether the order differs from the one before, so that copies of it are outdated.
        notes: what is other than where the state was saved, and was allowed for; a sentence each.
    """

    epoch: int
    position: int
    progress: dict[str, int] | None
    is_other_order: bool
    notes: tuple[str, ...] = ()


class States:
    """Makes and reads the states of one dataset, and holds its order, which a state may change.

    Args:
        order: its order as constructed.
        settings: the order's settings that belong to no single stream, by name.
        names: of its streams, None for those without one.
        fingerprints: of its streams.

    Attributes:
        order: the order now.
    """

    def __init__(
        self,
        order: Order,
        settings: Mapping[str, Setting],
        names: Sequence[str | None],
        fingerprints: Sequence[Mapping[str, str]],
    ) -> None:
        self.order = order
        self._constructed = order
        self._settings = dict(settings)
        self._names = list(names)
        self._fingerprints = fingerprints  # perhaps made when they are asked for
        self._gone: tuple[StreamState, ...] = ()

    def at(self, plan: BatchPlan, epoch: int, position: int) -> dict[str, Any]:
        """Return the state at a position of an epoch that a plan reads; the end of one is the start of the next."""
        return State.of(
            self.order,
            plan,
            epoch,
            position,
            settings=self._settings,
            names=self._names,
            fingerprints=self._fingerprints,
            gone=self._gone,
        ).to_dict()

    def load(self, state: object) -> Loaded:
        """Go on from a saved state; the order becomes the one that goes on there.

        Raises:
            StateError: it is malformed, or was made with other data, another seed or another order.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state is a {type(state).__name__}, expected a dict that state_dict() gave")
        document = dict(state)
        progress = parse_progress(document.pop(PROGRESS)) if PROGRESS in document else None
        resumed = resume(
            self._constructed,
            State.from_dict(document),
            settings=self._settings,
            names=self._names,
            fingerprints=self._fingerprints,
        )
        if resumed.notes and progress is not None:
            raise StateError(
                "this state counts what one worker of one rank has read, so nothing may have changed since: "
                + "; ".join(resumed.notes)
            )
        before = self.order
        self.order, self._gone = resumed.order, resumed.gone
        is_other = not self.order.is_same(before)
        return Loaded(resumed.epoch, resumed.position, progress, is_other, resumed.notes)

    def say_what_set_epoch_gives_up(self, epoch: int, loaded_epoch: int, loaded_position: int) -> None:
        """Log what beginning ``epoch`` at its start means, where something else than that was to come next."""
        if loaded_position:
            logger.warning(
                "set_epoch(%d) gives up the loaded position %d of epoch %d; to go on there, load the state after it",
                epoch,
                loaded_position,
                loaded_epoch,
            )
        splice = self.order.splice
        if splice is None or (splice.epoch, splice.begin) <= (epoch, 0):
            return
        # Where only batches are counted off anew, what comes before is what the run has given.
        before = self.order.spliced(None).segments(splice.epoch)
        if any((each.begin, each.cursors) == (splice.begin, splice.cursors) for each in before):
            return
        logger.warning(
            "epoch %d begins before position %d of epoch %d, where this run went on with other weights or streams: up "
            "to there it has the samples of a run that always had the present ones, not those that were given",
            epoch,
            splice.begin,
            splice.epoch,
        )

    def differences(self, state: State) -> list[str]:
        """List what ``load`` would refuse a state for, each as "seed was 1 and is 2"; empty where it fits."""
        return differences(
            self._constructed,
            state,
            settings=self._settings,
            names=self._names,
            fingerprints=self._fingerprints,
        )
