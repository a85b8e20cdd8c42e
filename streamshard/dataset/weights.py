"""How many samples each stream gives to an epoch: exact, for any weights and any size."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from streamshard._sizes import parse_count
from streamshard.format.costs import MEASURES
from streamshard.order.timeline import shared_out

if TYPE_CHECKING:
    from streamshard.dataset.source import OpenStream
    from streamshard.dataset.stream import Stream
    from streamshard.format.index import Index

MAX_EPOCH_SAMPLES = (1 << 53) - 1
"""Most samples of an epoch: positions are whole numbers of JSON that every reader keeps exactly."""

_LISTED = 20
_logger = logging.getLogger(__name__)


def parse_epoch_size(epoch_size: int | str | None) -> int | None:
    """Return the size of an epoch in samples, or None for what the streams give by themselves.

    Raises:
        ValueError: no count such as 1000 or ``"1.5M"``, or not from 1 to 2**53 - 1.
    """
    if epoch_size is None:
        return None
    size = parse_count(epoch_size, name="epoch_size")
    if not 1 <= size <= MAX_EPOCH_SAMPLES:
        raise ValueError(f"epoch_size={epoch_size!r}: expected 1 to 2**53 - 1 samples")
    return size


def samples_per_epoch(
    streams: Sequence[Stream],
    available: Sequence[int],
    epoch_size: int | None = None,
    mean_costs: Sequence[Fraction] | None = None,
) -> list[int]:
    """Return the samples that each stream gives to an epoch, in their order.

    With ``proportion``, the epoch's size (default: all streams' samples together) is shared out in these
    proportions, of samples or of a cost; with ``epoch_size`` alone, in proportion to the streams' sizes. Shares
    are rounded by largest remainder, ties to the earlier stream, so they add up to the size exactly. Otherwise
    each stream gives ``choose`` samples, or ``repeat`` times (default: once) its own, rounded down.

    Args:
        streams: what the user said about each.
        available: samples that each has.
        epoch_size: size asked for, at least 1.
        mean_costs: mean cost of a sample of each stream, as ``mean_costs_of`` gives them; None: proportions are
            shares of samples.

    Raises:
        ValueError: weights of two kinds, a size beside weights that set one, proportions of a cost without
            proportions, or a weighted stream that would give nothing. Names all streams concerned and what they say.
    """
    relative = [stream for stream in streams if stream.proportion is not None]
    absolute = [stream for stream in streams if stream.repeat is not None or stream.choose is not None]
    if mean_costs is not None and not relative:
        raise ValueError(
            f"weight_by: proportions become shares of a cost, but no stream has one ({_said(streams)}); give every "
            "stream a proportion, or leave weight_by out"
        )
    if relative and len(relative) < len(streams):
        raise ValueError(
            f"some streams have a proportion, some have none ({_said(streams)}): proportions are relative to each "
            "other, so give one to every stream or to none"
        )
    if absolute and epoch_size is not None:
        raise ValueError(
            f"repeat and choose set the epoch's size, so epoch_size={epoch_size} cannot ({_said(streams)}); use "
            "proportion, or leave epoch_size out"
        )
    if relative:
        proportions = [_exact(stream.proportion) for stream in streams]
        weights = sample_weights(streams, proportions, mean_costs)
        chosen = list(shared_out(sum(available) if epoch_size is None else epoch_size, tuple(weights)))
    elif epoch_size is not None:
        chosen = list(shared_out(epoch_size, tuple(Fraction(samples) for samples in available)))
    else:
        chosen = [_own(stream, samples) for stream, samples in zip(streams, available, strict=True)]
    _refuse_idle(streams, chosen, available)
    if sum(chosen) > MAX_EPOCH_SAMPLES:
        raise ValueError(
            f"an epoch would have more than 2**53 - 1 samples ({_said(streams)}); lower a weight"
        )
    return chosen


def sample_weights(
    streams: Sequence[object], proportions: Sequence[Fraction], mean_costs: Sequence[Fraction] | None = None
) -> list[Fraction]:
    """Return the share of the samples that each stream gets, up to a common factor.

    Where proportions are those of a cost, a stream's samples are the fewer the more one of them costs: the weight
    is its proportion divided by the mean cost of its samples.

    Args:
        streams: what names them in a message.
        proportions: of each stream, at least 0.
        mean_costs: of a sample of each stream, at least 0; None: the proportions are those of samples.

    Raises:
        ValueError: all proportions are 0; or a stream with a proportion above 0 whose samples cost nothing.
    """
    named = list(zip(streams, proportions, strict=True))
    if not any(proportions):
        said = _listed([f"{stream}: {_shown(proportion)}" for stream, proportion in named])
        raise ValueError(f"all proportions are 0 ({said}); raise one above 0")
    if mean_costs is None:
        return list(proportions)
    free = [
        f"{stream}: {_shown(proportion)}"
        for (stream, proportion), cost in zip(named, mean_costs, strict=True)
        if proportion and not cost
    ]
    if free:
        raise ValueError(
            f"samples that cost nothing cannot make up a share of the cost ({_listed(free)}); give these streams "
            "proportion=0, or weight by samples"
        )
    return [
        proportion / cost if proportion else Fraction(0)
        for proportion, cost in zip(proportions, mean_costs, strict=True)
    ]


def mean_costs_of(opened: Sequence[OpenStream], weight_by: str) -> list[Fraction] | None:
    """Return the mean cost of a sample of each opened stream; None where samples themselves are what counts.

    Args:
        opened: streams that have at least one sample.
        weight_by: ``"samples"``; ``"bytes"`` of the uncompressed shards; or a cost that the indexes carry.

    Raises:
        ValueError: not the name of a cost, or one that an index lacks.
    """
    if not isinstance(weight_by, str) or not weight_by:
        raise ValueError(f"weight_by={weight_by!r}: expected 'samples', 'bytes' or the name of a cost")
    if weight_by == "samples":
        return None
    lacking = [each for each in opened if weight_by != "bytes" and weight_by not in each.index.costs]
    if lacking:
        has = _listed([f"{each.stream}: {_costs_text(each.index)}" for each in lacking])
        raise ValueError(
            f"weight_by={weight_by!r}: the index of some streams lacks this cost ({has}); write them with "
            f"MDSWriter(costs={{{weight_by!r}: COLUMN}}) or streamshard convert --cost {weight_by}=COLUMN, or weight "
            "by samples or bytes"
        )
    return [Fraction(_total_cost(each.index, weight_by), each.index.num_samples) for each in opened]


def _total_cost(index: Index, weight_by: str) -> int:
    if weight_by == "bytes":
        return int(index.table.raw_nbytes.sum())
    return int(index.costs[weight_by].sum())


def _costs_text(index: Index) -> str:
    return "has " + ", ".join(map(repr, (*MEASURES, *sorted(index.costs))))


def _shown(weight: Fraction) -> str:
    return str(weight) if weight.denominator == 1 else f"{float(weight):.6g}"


def _refuse_idle(streams: Sequence[Stream], chosen: Sequence[int], available: Sequence[int]) -> None:
    """Refuse weights above 0 that come to nothing, and report once what a size leaves out."""
    idle = [
        (stream, f"{stream}{_weight_text(stream)} would give 0 of its {own} samples")
        for stream, samples, own in zip(streams, chosen, available, strict=True)
        if samples < 1 and stream.proportion != 0
    ]
    if not idle:
        return
    text = _listed([text for _, text in idle])
    if any(_weight_text(stream) for stream, _ in idle):
        raise ValueError(
            f"{text} to an epoch; at least 1 is needed. Raise its weight or epoch_size, or leave the stream out"
        )
    _logger.warning("epoch_size=%d leaves streams out: %s to any epoch", sum(chosen), text)


def _own(stream: Stream, available: int) -> int:
    if stream.choose is not None:
        return parse_count(stream.choose, name="choose")
    # 0.29 of 100 samples is 29, though 0.29 * 100 is not quite.
    return available if stream.repeat is None else int(_exact(stream.repeat) * available)


def _exact(weight: float | None) -> Fraction:
    return Fraction(0) if weight is None else Fraction(str(weight))


def _weight_text(stream: Stream) -> str:
    for key in ("proportion", "repeat", "choose"):
        value = getattr(stream, key)
        if value is not None:
            return f" with {key}={value!r}"
    return ""


def _said(streams: Sequence[Stream]) -> str:
    return _listed([f"{stream}{_weight_text(stream) or ' without a weight'}" for stream in streams])


def _listed(texts: Sequence[str]) -> str:
    more = f", and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more
