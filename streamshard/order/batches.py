"""Global batches and who gets which part of them: counts only, no sample ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamshard._sizes import shown
from streamshard.errors import TopologyError

_LISTED = 20

REMAINDERS = ("pad", "drop", "exact")

# A sort inside a batch numbers its samples in 32 bits.
MAX_BATCH = 1 << 31


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The batches of the rest of one epoch. Batch b is positions [start + b·G, start + (b+1)·G), cut at N.

    Shorter batches come last: one, of what G does not divide, or those named by ``short``. ``pad`` fills each
    to a multiple of the ranks; ``drop`` leaves it out; ``exact`` deals its samples to the ranks in turn, so that
    ranks may differ by one batch. After any number of steps the ranks together have a beginning of the epoch.

    Batches of a rank are numbered without gaps, also where ``exact`` gives it no part of a short batch.

    Attributes:
        num_samples: N, samples of the epoch.
        global_batch_size: G.
        ranks: R, data-parallel ranks, at most G.
        start: p0, the position at which this run began or resumed, 0 <= start <= N.
        remainder: one of ``pad``, ``drop``, ``exact``.
        short: sizes of the batches at the end, each from 1 to G, so that G divides the rest before them; None: at
            most one.
        is_by_stream: whether the short batches are of one stream each, so that a run may go on amid those that
            ``exact`` deals.

    Raises:
        TopologyError: R > G; or ``drop`` with N < G, which would give no batch at all.
        ValueError: another number out of range (G is at most 2**31), or an unknown remainder.
    """

    num_samples: int
    global_batch_size: int
    ranks: int = 1
    start: int = 0
    remainder: str = "pad"
    short: tuple[int, ...] | None = None
    is_by_stream: bool = False

    def __post_init__(self) -> None:
        if self.remainder not in REMAINDERS:
            raise ValueError(f"remainder={self.remainder!r}: expected one of {', '.join(REMAINDERS)}")
        if self.num_samples < 0:
            raise ValueError(f"num_samples={self.num_samples}: must not be negative")
        if not 0 <= self.start <= self.num_samples:
            raise ValueError(
                f"start={self.start}: expected a position from 0 to num_samples={self.num_samples}"
            )
        if self.global_batch_size > MAX_BATCH:
            raise ValueError(
                f"global_batch_size={shown(self.global_batch_size)}: expected at most {MAX_BATCH} samples"
            )
        if self.ranks < 1:
            raise TopologyError(f"ranks={self.ranks}: a job has at least one rank")
        if self.global_batch_size < self.ranks:
            raise TopologyError(
                f"a global batch of {self.global_batch_size} samples cannot be shared by {self.ranks} ranks: "
                "every rank needs at least one sample of each batch; raise batch_size or global_batch_size"
            )
        if self.short is None:
            tail = (self.num_samples - self.start) % self.global_batch_size
            object.__setattr__(self, "short", (tail,) if tail else ())
        elif (
            any(not 0 < size <= self.global_batch_size for size in self.short)
            or self.num_samples - self.start < sum(self.short)
            or (self.num_samples - self.start - sum(self.short)) % self.global_batch_size
        ):
            raise ValueError(
                f"short={self.short}: expected sizes from 1 to {self.global_batch_size} that leave whole batches of "
                f"positions {self.start} to {self.num_samples}"
            )
        reaches_all = [size >= self.ranks for size in self.short or ()]
        if self.remainder == "exact" and reaches_all != sorted(reaches_all, reverse=True):
            raise ValueError(f"short={self.short}: to be dealt out exactly, larger batches must come first")
        if self.remainder == "drop" and not self.start and not self.full_batches:
            has = f"the epoch has {self.num_samples} samples"
            if self.num_samples >= self.global_batch_size:
                has += f", of no stream enough to fill a batch of one stream ({_listed(self.short or ())}),"
            raise TopologyError(
                f"remainder='drop', as drop_last=True means, would drop everything: {has} and a global batch has "
                f"{self.global_batch_size}; lower the batch size, or use remainder='pad', which gives them all"
            )

    @property
    def full_batches(self) -> int:
        """Batches of G samples."""
        return (self.num_samples - self.start - sum(self.short or ())) // self.global_batch_size

    @property
    def tails(self) -> tuple[int, ...]:
        """Samples of each shorter batch that is given."""
        return () if self.remainder == "drop" else self.short or ()

    @property
    def left_out(self) -> int:
        """Samples that are not given, because ``drop`` leaves them out."""
        return sum(self.short or ()) if self.remainder == "drop" else 0

    @property
    def num_batches(self) -> int:
        """Steps to come: the batches that each rank gets, except that with ``exact`` a rank may get one less."""
        if self.remainder != "exact":
            return self.full_batches + len(self.tails)
        wide, rest = self._dealt()
        return self.full_batches + wide + -(-rest // self.ranks)

    @property
    def num_global_batches(self) -> int:
        """Global batches to come, each shorter one counted, also where ``exact`` deals out several in one step."""
        return self.full_batches + len(self.tails)

    def rank_tails(self, rank: int) -> list[int]:
        """Give the numbers of the shorter batches in which one rank has a part."""
        self._check_rank(rank)
        return [number for number in range(len(self.tails)) if self.tail_size(number, rank)]

    def tail_size(self, tail: int, rank: int) -> int:
        """Samples, padding included, of one rank's part of shorter batch number ``tail``."""
        if self.remainder == "pad":
            return -(-self.tails[tail] // self.ranks)
        return max(0, -(-(self.tails[tail] - self.first_dealt(tail, rank)) // self.ranks))

    def first_dealt(self, tail: int, rank: int) -> int:
        """Give the number, in a shorter batch that ``exact`` deals out, of one rank's first sample.

        Dealing goes on at the rank after the one that got the last sample of a batch that did not reach all
        ranks.
        """
        dealt = sum(size for size in self.tails[:tail] if size < self.ranks)
        return (rank - dealt) % self.ranks

    def is_dealt_in_order(self, tail: int) -> bool:
        """Whether a shorter batch is dealt over several steps, each of which must have the positions that come next."""
        is_one_of_many = self.is_by_stream or len(self.tails) > 1
        return self.remainder == "exact" and is_one_of_many and self.tails[tail] < self.ranks

    def tail_part(self, tail: int, rank: int) -> slice:
        """Give which samples of shorter batch number ``tail``, in their order, one rank gets, padding left out."""
        if self.remainder == "exact":
            return slice(self.first_dealt(tail, rank), self.tails[tail], self.ranks)
        return slice(*self.rank_span(self.tails[tail], rank))

    def pad_back(self, tail: int, rank: int) -> int:
        """Give how far before the end of shorter batch number ``tail`` the sample lies that fills up a rank's part."""
        size = self.tails[tail]
        low, _ = self.rank_span(size, rank)
        # The ranks before this one have `low` of the batch's samples, in rank · ⌈n/R⌉ slots: the rest are pads.
        return -size % self.ranks - (rank * -(-size // self.ranks) - low)

    def rank_num_batches(self, rank: int) -> int:
        """Batches that one rank gets."""
        return self.full_batches + len(self.rank_tails(rank))

    def rank_span(self, samples: int, rank: int) -> tuple[int, int]:
        """Give one rank's half-open part of a batch of ``samples`` sorted positions: cut at ⌊r·n/R⌋."""
        return rank * samples // self.ranks, (rank + 1) * samples // self.ranks

    def rank_padding(self, batch: int, rank: int) -> int:
        """Padding samples, 0 or 1, at the end of one rank's batch ``batch``."""
        self._check_rank(rank)
        if self.remainder != "pad" or not 0 <= batch - self.full_batches < len(self.tails):
            return 0
        tail = self.tails[batch - self.full_batches]
        begin, end = self.rank_span(tail, rank)
        return -(-tail // self.ranks) - (end - begin)

    def rank_batch_size(self, batch: int, rank: int) -> int:
        """Samples, padding included, of one rank's batch ``batch``; 0 for one that it does not get."""
        self._check_rank(rank)
        if not 0 <= batch < self.num_batches:
            raise ValueError(f"batch={batch}: this plan has {self.num_batches} batches")
        if batch < self.full_batches:
            begin, end = self.rank_span(self.global_batch_size, rank)
            return end - begin
        own = self.rank_tails(rank)
        number = batch - self.full_batches
        return self.tail_size(own[number], rank) if number < len(own) else 0

    def samples_of_rank(self, rank: int) -> int:
        """Samples, padding included, that one rank gets from here to the end of the epoch."""
        self._check_rank(rank)
        begin, end = self.rank_span(self.global_batch_size, rank)
        tails = sum(self.tail_size(tail, rank) for tail in range(len(self.tails)))
        return self.full_batches * (end - begin) + tails

    def batch_span(self, batch: int) -> tuple[int, int]:
        """Give the half-open span of positions of a global batch: a full one, or after those a shorter one."""
        begin = self.start + min(batch, self.full_batches) * self.global_batch_size
        if batch < self.full_batches:
            return begin, begin + self.global_batch_size
        number = batch - self.full_batches
        begin += sum(self.tails[:number])
        return begin, begin + self.tails[number]

    def position_after(self, batches: int) -> int:
        """Give the position in the epoch after that many more steps, the same for every rank."""
        if batches < 0:
            raise ValueError(f"batches={batches}: must not be negative")
        if batches <= self.full_batches:
            return self.start + batches * self.global_batch_size
        number = batches - self.full_batches
        end = self.start + self.full_batches * self.global_batch_size
        if self.remainder == "exact":
            wide, rest = self._dealt()
            dealt = min(rest, max(0, number - wide) * self.ranks)
            return end + sum(self.tails[: min(number, wide)]) + dealt
        return self.num_samples if number >= len(self.tails) else end + sum(self.tails[:number])

    def _dealt(self) -> tuple[int, int]:
        """Count the shorter batches that reach all ranks, and the samples of the others.

        Those are dealt to the ranks in turn, from batch to batch, so each step takes the next R samples of them.
        """
        wide = sum(size >= self.ranks for size in self.tails)
        return wide, sum(self.tails[wide:])

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise TopologyError(f"rank={rank}: this plan has {self.ranks} ranks, numbered from 0")


def _listed(sizes: Sequence[int]) -> str:
    more = f" and {len(sizes) - _LISTED} more" if len(sizes) > _LISTED else ""
    return ", ".join(map(str, sizes[:_LISTED])) + more
