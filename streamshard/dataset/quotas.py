"""What an epoch takes of each stream: from what the user said to the numbers that the order works with."""

from __future__ import annotations

import logging
import math
import numbers
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from streamshard._sizes import as_integer, is_huge, parse_count, shown
from streamshard.dataset.weights import sample_weights, samples_per_epoch
from streamshard.order.timeline import Quotas, shared_out

if TYPE_CHECKING:
    from streamshard.dataset.stream import Stream

_MAX_POSITION = 1 << 62
_LISTED = 20
_logger = logging.getLogger(__name__)

Mixture = Sequence[tuple["int | str", Mapping["str | int", float]]]
"""Weights from positions on: [(position, {stream: weight}), …]."""


def quotas_of(
    streams: Sequence[Stream],
    available: Sequence[int],
    epoch_size: int | None = None,
    mean_costs: Sequence[Fraction] | None = None,
    mixture: Mixture | None = None,
) -> Quotas:
    """Return what epochs take of each stream.

    Args:
        streams, available, epoch_size, mean_costs: as for ``samples_per_epoch``.
        mixture: weights that change within the run, see :func:`changes_of`. Before the first position the streams'
            own proportions hold, else their sizes.

    Raises:
        ValueError, TypeError: as those two; or a mixture beside weights that set the epoch's size.
    """
    absolute = [stream for stream in streams if stream.repeat is not None or stream.choose is not None]
    relative = [stream for stream in streams if stream.proportion is not None]
    if mixture is not None and absolute:
        raise ValueError(
            f"{absolute[0]} has repeat or choose, which set the epoch's size; with mixture= only the weights do, so "
            "leave them out or give proportions"
        )
    if mixture is None and mean_costs is None and not relative and epoch_size is None:
        return Quotas(tuple(samples_per_epoch(streams, available)))
    if mixture is None and absolute:
        return Quotas(tuple(samples_per_epoch(streams, available, epoch_size, mean_costs)))
    if relative:
        own_weights = [Fraction(str(stream.proportion or 0)) for stream in streams]
    else:
        own_weights = [Fraction(samples) for samples in available]
    if mixture is None:
        per_epoch = tuple(samples_per_epoch(streams, available, epoch_size, mean_costs))
        return Quotas(
            per_epoch, tuple(sample_weights(streams, own_weights, mean_costs if relative else None))
        )
    changes = changes_of(mixture, streams, mean_costs)
    size = sum(available) if epoch_size is None else epoch_size
    if changes[0][0] == 0:
        first = changes[0][1]
    else:
        first = tuple(sample_weights(streams, own_weights, mean_costs if relative else None))
    _report_idle(streams, size, [(0, first), *changes])
    return Quotas(shared_out(size, first), first, changes)


def changes_of(
    mixture: Mixture, streams: Sequence[Stream], mean_costs: Sequence[Fraction] | None = None
) -> tuple[tuple[int, tuple[Fraction, ...]], ...]:
    """Check a schedule of weights and return it with one weight for each stream, in their order.

    Args:
        mixture: (position, {stream: weight}) pairs. A position counts samples over all ranks since the run's start,
            as a number or ``"1.5M"``; positions ascend. A stream is named by its ``Stream(name=)`` or its number, and
            every stream is named each time; weights are relative to each other, at least 0 and not all 0.

    Raises:
        ValueError, TypeError: anything else; names the position, the streams and the values.
    """
    form = "mixture= is a list of (position, {stream: weight}) pairs"
    if isinstance(mixture, (str, Mapping)) or not isinstance(mixture, Sequence) or not len(mixture):
        raise ValueError(f"mixture={mixture!r:.200}: {form}, at least one")
    numbers_of = {stream.name: number for number, stream in enumerate(streams) if stream.name is not None}
    changes: list[tuple[int, tuple[Fraction, ...]]] = []
    for item in mixture:
        if not isinstance(item, Sequence) or len(item) != 2 or not isinstance(item[1], Mapping):
            raise ValueError(f"mixture: {item!r:.200}: {form}")
        position = _position(item[0])
        if changes and position <= changes[-1][0]:
            raise ValueError(f"mixture: position {position} follows {changes[-1][0]}: positions must ascend")
        weights: dict[int, Fraction] = {}
        for key, value in item[1].items():
            number = numbers_of.get(key) if isinstance(key, str) else as_integer(key)
            if number is None or not 0 <= number < len(streams):
                known = [stream.name or number for number, stream in enumerate(streams)]
                raise ValueError(
                    f"mixture: position {position}: unknown stream {key!r}; the streams are {known!r:.500}, each "
                    "called by its Stream(name=) or its number"
                )
            if number in weights:
                raise ValueError(f"mixture: position {position}: {streams[number]} is named twice")
            weights[number] = _weight(value, f"mixture: position {position}: {streams[number]}")
        missing = [str(stream) for number, stream in enumerate(streams) if number not in weights]
        if missing:
            raise ValueError(
                f"mixture: position {position} has no weight for {', '.join(missing[:20])}; give 0 for a stream that "
                "shall give nothing"
            )
        proportions = [weights[number] for number in range(len(streams))]
        if not any(proportions):
            raise ValueError(f"mixture: position {position}: all weights are 0 ({item[1]!r:.200})")
        changes.append((position, tuple(sample_weights(streams, proportions, mean_costs))))
    return tuple(changes)


def most_samples(quotas: Quotas) -> list[int]:
    """Return the most samples of each stream that an epoch takes under any of the weights."""
    taken = [quotas.per_epoch, *(shared_out(quotas.num_samples, weights) for _, weights in quotas.changes)]
    return [max(each) for each in zip(*taken, strict=True)]


def _report_idle(
    streams: Sequence[Stream], size: int, changes: Sequence[tuple[int, Sequence[Fraction]]]
) -> None:
    """Say once which weights above 0 are too small for a whole epoch to take a sample."""
    idle = [
        f"{stream} from position {position} on"
        for position, weights in dict(changes).items()
        for stream, weight, samples in zip(streams, weights, shared_out(size, tuple(weights)), strict=True)
        if weight and not samples
    ]
    if idle:
        more = f", and {len(idle) - _LISTED} more" if len(idle) > _LISTED else ""
        _logger.warning(
            "mixture: weights above 0 that give no sample to an epoch of %d: %s%s; raise them or epoch_size",
            size,
            ", ".join(idle[:_LISTED]),
            more,
        )


def _position(value: Any) -> int:
    position = parse_count(value, name="mixture: position") if isinstance(value, str) else as_integer(value)
    if position is None or not 0 <= position <= _MAX_POSITION:
        raise ValueError(f"mixture: position {shown(value)}: expected a number of samples from 0 to 2**62")
    return position


def _weight(value: Any, where: str) -> Fraction:
    is_number = isinstance(value, (numbers.Real, Fraction)) and not isinstance(value, bool)
    if is_number and is_huge(value):
        raise ValueError(
            f"{where}: weight {shown(value)}: too large a number; only the weights' ratios count"
        )
    if not is_number or not 0 <= value < math.inf:
        raise ValueError(f"{where}: weight {value!r}: expected a finite number, at least 0")
    return value if isinstance(value, Fraction) else Fraction(str(value))
