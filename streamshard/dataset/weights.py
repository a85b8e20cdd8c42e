"""How many samples each stream gives to an epoch: exact, for any weights and any size."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from streamshard._sizes import parse_count

if TYPE_CHECKING:
    from streamshard.dataset.stream import Stream


def samples_per_epoch(
    streams: Sequence[Stream], available: Sequence[int], epoch_size: int | None = None
) -> list[int]:
    """Return the samples that each stream gives to an epoch, in their order.

    With ``proportion``, the epoch's size (default: all streams' samples together) is shared out in these
    proportions; with ``epoch_size`` alone, in proportion to the streams' sizes. Shares are rounded by largest
    remainder, ties to the earlier stream, so they add up to the size exactly. Otherwise each stream gives
    ``choose`` samples, or ``repeat`` times (default: once) its own.

    Args:
        streams: what the user said about each.
        available: samples that each has.
        epoch_size: size asked for, at least 1.

    Raises:
        ValueError: weights of both kinds, a size beside weights that set one, or nothing to give.
    """
    relative = [stream for stream in streams if stream.proportion is not None]
    absolute = [stream for stream in streams if stream.repeat is not None or stream.choose is not None]
    if relative and len(relative) < len(streams):
        other = next(stream for stream in streams if stream.proportion is None)
        raise ValueError(
            f"{relative[0]} has proportion={relative[0].proportion}, {other} has none: proportions are relative "
            "to each other, so give one to every stream or to none"
        )
    if absolute and epoch_size is not None:
        raise ValueError(
            f"{absolute[0]}: repeat and choose set the epoch's size, so epoch_size={epoch_size} cannot"
        )
    if relative:
        weights = [_exact(stream.proportion) for stream in streams]
        chosen = _shared_out(sum(available) if epoch_size is None else epoch_size, weights, streams)
    elif epoch_size is not None:
        chosen = _shared_out(epoch_size, [Fraction(samples) for samples in available], streams)
    else:
        chosen = [_own(stream, samples) for stream, samples in zip(streams, available, strict=True)]
    for stream, samples, own in zip(streams, chosen, available, strict=True):
        weighted = stream.proportion or stream.repeat or stream.choose
        if samples < 1 and (weighted or len(streams) == 1):
            raise ValueError(
                f"{stream}: would give {samples} of its {own} samples to an epoch; at least 1 is needed. Raise its "
                "weight or epoch_size, or leave the stream out"
            )
    if sum(chosen) < 1:
        raise ValueError("the streams together give no sample to an epoch; raise a weight above 0")
    return chosen


def _own(stream: Stream, available: int) -> int:
    if stream.choose is not None:
        return parse_count(stream.choose, name="choose")
    # 0.29 of 100 samples is 29, though 0.29 * 100 is not quite.
    return available if stream.repeat is None else int(_exact(stream.repeat) * available)


def _exact(weight: float | None) -> Fraction:
    return Fraction(0) if weight is None else Fraction(str(weight))


def _shared_out(size: int, weights: Sequence[Fraction], streams: Sequence[Stream]) -> list[int]:
    """Share ``size`` out in proportion to ``weights`` by largest remainder."""
    total = sum(weights)
    if not total:
        said = ", ".join(f"{stream}: {stream.proportion}" for stream in streams)
        raise ValueError(f"all proportions are 0 ({said}); raise one above 0")
    exact = [size * weight / total for weight in weights]
    shares = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: (shares[number] - exact[number], number))
    for number in by_remainder[: size - sum(shares)]:
        shares[number] += 1
    return shares
