"""The states of one dataset: made for a position, and read back with suspicion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamshard.dataset.iteration import PROGRESS, parse_progress
from streamshard.errors import StateError
from streamshard.order.epoch import Order
from streamshard.order.position import State

MAX_EPOCH = (1 << 53) - 2
"""Last epoch that a state can name together with the one after it."""


class States:
    """Makes and reads the states of one dataset.

    Args:
        order: its order.
        names: of its streams, None for those without one.
        fingerprints: of its streams.
    """

    def __init__(
        self, order: Order, names: Sequence[str | None], fingerprints: Sequence[Mapping[str, str]]
    ) -> None:
        self._order = order
        self._names = list(names)
        self._fingerprints = list(fingerprints)

    def at(self, epoch: int, position: int) -> dict[str, Any]:
        """Return the state at a position of an epoch; the end of an epoch is the start of the next."""
        return self._state(epoch, position).to_dict()

    def read(self, state: object) -> tuple[int, int, dict[str, int] | None]:
        """Return epoch, position, and what one worker had taken from there, of a saved state.

        Raises:
            StateError: it is malformed, or was made with other data, another seed or another order.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"state is a {type(state).__name__}, expected a dict that state_dict() gave")
        document = dict(state)
        progress = parse_progress(document.pop(PROGRESS)) if PROGRESS in document else None
        saved = State.from_dict(document)
        saved.check_fits(self._state(0, 0))
        return saved.epoch, saved.position, progress

    def _state(self, epoch: int, position: int) -> State:
        return State.of(
            self._order,
            epoch,
            position,
            settings={"batching_method": self._order.batching},
            names=self._names,
            fingerprints=self._fingerprints,
        )
