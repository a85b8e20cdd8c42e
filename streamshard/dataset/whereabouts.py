"""Which samples come next at a position of an epoch: on which rank, from which shard. Needs no torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from streamshard.dataset.source import OpenStream
    from streamshard.order.batches import BatchPlan
    from streamshard.order.epoch import Order

# What a text shows at most; the lists themselves are whole.
_SHOWN_STREAMS = 20
_SHOWN_RANKS = 16
_SHOWN_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where one stream stands.

    Attributes:
        number: of the stream in its dataset, from 0.
        name: its ``Stream(name=)``, or None.
        place: its directory or URL, without credentials.
        num_samples: samples that it has.
        cursor: samples that it has given since the run began, and with that the index of its next one.
        pass_number: the pass over its samples that the next one is in, from 0.
        place_in_pass: the next one's place in that pass, from 0.
        pass_size: samples of that pass: all of the stream's, but for ``sampling_method="fixed"``.
        taken: samples that it has given to the epoch.
    """

    number: int
    name: str | None
    place: str
    num_samples: int
    cursor: int
    pass_number: int
    place_in_pass: int
    pass_size: int
    taken: int

    @property
    def label(self) -> str:
        """What the stream is called: its name, else its number."""
        return str(self.number) if self.name is None else self.name


@dataclass(frozen=True, slots=True)
class ComingSample:
    """One sample that comes next.

    Attributes:
        rank: the data-parallel rank that gets it.
        batch: number of the batch of that rank, counted from the position on.
        position: its place in the epoch; None for padding, which repeats a sample.
        stream: number of its stream.
        stream_name: that stream's name, or None.
        shard: basename of its raw shard file.
        shard_number: the shard's number in the stream's index, from 0.
        row: its place in the shard, from 0.
        sample: its id in the dataset, as in ``dataset[sample]``.
        is_padding: whether it fills up the last batch.
    """

    rank: int
    batch: int
    position: int | None
    stream: int
    stream_name: str | None
    shard: str
    shard_number: int
    row: int
    sample: int
    is_padding: bool


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """A position of an epoch, and the samples that an iteration that begins there gives first.

    ``str()`` gives a text for people, cut to a screen; :meth:`to_json` all of it for scripts.

    Attributes:
        epoch: from 0.
        position: samples of the epoch before it, over all ranks, padding not counted.
        epoch_size: samples of the epoch.
        global_batch_size: samples of a full batch of all ranks together.
        ranks: data-parallel ranks.
        batches_left: batches of all ranks that the epoch still has, the listed ones included.
        left_out: samples at the epoch's end that ``remainder="drop"`` leaves out.
        streams: one item a stream.
        samples: of the next batches, batch by batch, in each of them rank by rank, in the order in which they come.
    """

    epoch: int
    position: int
    epoch_size: int
    global_batch_size: int
    ranks: int
    batches_left: int
    left_out: int
    streams: tuple[StreamPlace, ...]
    samples: tuple[ComingSample, ...]

    @property
    def percent(self) -> float:
        """How much of the epoch lies before the position, from 0 to 100."""
        return 100 * self.position / self.epoch_size

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain dicts and lists."""
        document = asdict(self)
        document["percent"] = self.percent
        document["streams"] = list(document["streams"])
        document["samples"] = list(document["samples"])
        return document

    def stream_rows(self, most: int | None = None) -> list[tuple[str, ...]]:
        """Return the first streams as rows of a table, its head included."""
        head = ("stream", "samples", "cursor", "pass", "place in pass", "of epoch", "where")
        rows = [
            (
                each.label,
                f"{each.num_samples:,}",
                f"{each.cursor:,}",
                f"{each.pass_number:,}",
                f"{each.place_in_pass:,} of {each.pass_size:,}",
                f"{each.taken:,}",
                each.place,
            )
            for each in self.streams[:most]
        ]
        return [head, *rows]

    def sample_rows(self, each_rank: int = _SHOWN_SAMPLES, ranks: int | None = None) -> list[tuple[str, ...]]:
        """Return the first samples of each rank as rows of a table, its head included."""
        head = ("rank", "batch", "position", "sample", "stream", "shard", "row")
        rows: list[tuple[str, ...]] = []
        for _, samples in self._by_rank()[:ranks]:
            for sample in samples[:each_rank]:
                stream = str(sample.stream) if sample.stream_name is None else sample.stream_name
                rows.append(
                    (
                        str(sample.rank),
                        str(sample.batch),
                        "padding" if sample.position is None else str(sample.position),
                        str(sample.sample),
                        stream,
                        sample.shard,
                        str(sample.row),
                    )
                )
        return [head, *rows]

    def headline(self) -> str:
        """Say in one line where this is."""
        left = f"{_counted(self.batches_left, 'batch', 'batches')} of {_counted(self.global_batch_size, 'sample')}"
        left += f" to come on {_counted(self.ranks, 'rank')}"
        dropped = f", {_counted(self.left_out, 'sample')} left out" if self.left_out else ""
        return (
            f"epoch {self.epoch}, position {self.position:,} of {self.epoch_size:,} ({self.percent:.1f} %): "
            f"{left}{dropped}"
        )

    def __str__(self) -> str:
        lines = [self.headline(), *_aligned(self.stream_rows(_SHOWN_STREAMS))]
        if len(self.streams) > _SHOWN_STREAMS:
            lines.append(f"  and {len(self.streams) - _SHOWN_STREAMS:,} more streams")
        if not self.samples:
            return "\n".join([*lines, "no batch of this epoch is left"])
        shown = self.sample_rows(ranks=_SHOWN_RANKS)
        lines += ["next", *_aligned(shown)]
        rest = len(self.samples) - (len(shown) - 1)
        if rest:
            lines.append(f"  and {rest:,} more in .samples")
        return "\n".join(lines)

    def _by_rank(self) -> list[tuple[int, list[ComingSample]]]:
        ordered = sorted(self.samples, key=lambda sample: sample.rank)  # stable: batches stay in order
        return [(rank, list(each)) for rank, each in itertools.groupby(ordered, lambda sample: sample.rank)]


def whereabouts(
    order: Order,
    streams: Sequence[OpenStream],
    plan: BatchPlan,
    epoch: int,
    num_samples: int | None = None,
) -> Whereabouts:
    """Say which samples an iteration gives first that begins at ``plan.start`` of an epoch.

    Args:
        order: the order.
        streams: the opened streams that it is of.
        plan: the batches from the position on.
        epoch: the epoch.
        num_samples: list whole global batches until they hold at least so many samples, or the epoch ends; at
            least 1. Default: one global batch.
    """
    standing = order.standing(plan, epoch, plan.start)
    places = []
    for number, (opened, walk) in enumerate(zip(streams, order.walks, strict=True)):
        cursor = standing.cursors[number]
        begin, size = walk.pass_of(cursor)
        places.append(
            StreamPlace(
                number=number,
                name=opened.stream.name,
                place=opened.url,
                num_samples=walk.num_samples,
                cursor=cursor,
                pass_number=walk.pass_number(cursor),
                place_in_pass=cursor - begin,
                pass_size=size,
                taken=standing.taken[number],
            )
        )
    wanted = 1 if num_samples is None else num_samples
    samples: list[ComingSample] = []
    for batch in range(plan.num_global_batches):
        if len(samples) >= wanted:
            break
        for rank, (positions, ids) in enumerate(order.global_batch(plan, epoch, batch)):
            own = _number_of(plan, batch, rank)
            samples += _located(order, streams, rank, own, positions.tolist(), ids.tolist())
    return Whereabouts(
        epoch=epoch,
        position=plan.start,
        epoch_size=plan.num_samples,
        global_batch_size=plan.global_batch_size,
        ranks=plan.ranks,
        batches_left=plan.num_batches,
        left_out=plan.left_out,
        streams=tuple(places),
        samples=tuple(samples),
    )


def _number_of(plan: BatchPlan, batch: int, rank: int) -> int:
    """Give the number that a global batch has for a rank, which ``exact`` may have left out of some before."""
    earlier = range(max(0, batch - plan.full_batches))
    return batch - sum(not plan.tail_size(tail, rank) for tail in earlier)


def _located(
    order: Order,
    streams: Sequence[OpenStream],
    rank: int,
    batch: int,
    positions: list[int | None],
    ids: list[int],
) -> list[ComingSample]:
    positions = positions + [None] * (len(ids) - len(positions))  # padding comes last
    found = []
    for position, sample in zip(positions, ids, strict=True):
        number = order.stream_of(sample)
        index = streams[number].index
        inside = sample - order.first_id(number)
        shard = int(np.searchsorted(index.begins, inside, side="right")) - 1
        found.append(
            ComingSample(
                rank=rank,
                batch=batch,
                position=position,
                stream=number,
                stream_name=streams[number].stream.name,
                shard=index.shards[shard].raw.basename,
                shard_number=shard,
                row=inside - int(index.begins[shard]),
                sample=sample,
                is_padding=position is None,
            )
        )
    return found


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lay rows out in columns, with everything that does not print escaped."""
    shown = [tuple(_plain(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in shown) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in shown
    ]


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _plain(text: str) -> str:
    # Names and shards come from outside, and this text ends on a terminal.
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
