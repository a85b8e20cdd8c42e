"""Global batches and who gets which part of them: counts only, no sample ids."""

from __future__ import annotations

from dataclasses import dataclass

from streamshard.errors import TopologyError

REMAINDERS = ("pad", "drop", "exact")

# A sort inside a batch numbers its samples in 32 bits.
MAX_BATCH = 1 << 31


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The batches of the rest of one epoch. Batch b is positions [start + b·G, start + (b+1)·G), cut at N.

    ``pad`` fills the last, shorter batch to a multiple of the ranks; ``drop`` leaves it out; ``exact`` deals
    its samples to the ranks in turn, so that ranks may differ by one batch and by one sample.

    Attributes:
        num_samples: N, samples of the epoch.
        global_batch_size: G.
        ranks: R, data-parallel ranks, at most G.
        start: p0, the position at which this run began or resumed, 0 <= start <= N.
        remainder: one of ``pad``, ``drop``, ``exact``.

    Raises:
        TopologyError: R > G; or ``drop`` with N < G, which would give no batch at all.
        ValueError: another number out of range (G is at most 2**31), or an unknown remainder.
    """

    num_samples: int
    global_batch_size: int
    ranks: int = 1
    start: int = 0
    remainder: str = "pad"

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
                f"global_batch_size={self.global_batch_size}: expected at most {MAX_BATCH} samples"
            )
        if self.ranks < 1:
            raise TopologyError(f"ranks={self.ranks}: a job has at least one rank")
        if self.global_batch_size < self.ranks:
            raise TopologyError(
                f"a global batch of {self.global_batch_size} samples cannot be shared by {self.ranks} ranks: "
                "every rank needs at least one sample of each batch; raise batch_size or global_batch_size"
            )
        if self.remainder == "drop" and self.num_samples < self.global_batch_size:
            raise TopologyError(
                f"remainder 'drop' would drop everything: the epoch has {self.num_samples} samples and a "
                f"global batch has {self.global_batch_size}; lower the batch size, or use remainder='pad'"
            )

    @property
    def full_batches(self) -> int:
        """Batches of G samples."""
        return (self.num_samples - self.start) // self.global_batch_size

    @property
    def tail(self) -> int:
        """Samples of the last, shorter batch that is given; 0 where there is none."""
        return 0 if self.remainder == "drop" else (self.num_samples - self.start) % self.global_batch_size

    @property
    def num_batches(self) -> int:
        """Global batches to come; what each rank gets, except that with ``exact`` a rank may get one less."""
        return self.full_batches + (self.tail > 0)

    def rank_num_batches(self, rank: int) -> int:
        """Batches that one rank gets."""
        self._check_rank(rank)
        return self.full_batches + (self.rank_batch_size(self.full_batches, rank) > 0 if self.tail else 0)

    def rank_span(self, samples: int, rank: int) -> tuple[int, int]:
        """Give one rank's half-open part of a batch of ``samples`` sorted positions: cut at ⌊r·n/R⌋."""
        return rank * samples // self.ranks, (rank + 1) * samples // self.ranks

    def rank_padding(self, batch: int, rank: int) -> int:
        """Padding samples, 0 or 1, at the end of one rank's part of a batch."""
        self._check_rank(rank)
        if self.remainder != "pad" or batch != self.full_batches or not self.tail:
            return 0
        begin, end = self.rank_span(self.tail, rank)
        return -(-self.tail // self.ranks) - (end - begin)

    def rank_batch_size(self, batch: int, rank: int) -> int:
        """Samples, padding included, of one rank's part of batch ``batch`` (0 <= batch < num_batches)."""
        self._check_rank(rank)
        if not 0 <= batch < self.num_batches:
            raise ValueError(f"batch={batch}: this plan has {self.num_batches} batches")
        if batch < self.full_batches:
            begin, end = self.rank_span(self.global_batch_size, rank)
            return end - begin
        if self.remainder == "pad":
            return -(-self.tail // self.ranks)
        return (self.tail - rank + self.ranks - 1) // self.ranks

    def samples_of_rank(self, rank: int) -> int:
        """Samples, padding included, that one rank gets from here to the end of the epoch."""
        self._check_rank(rank)
        begin, end = self.rank_span(self.global_batch_size, rank)
        last = self.rank_batch_size(self.full_batches, rank) if self.tail else 0
        return self.full_batches * (end - begin) + last

    def position_after(self, batches: int) -> int:
        """Give the position in the epoch after that many more global batches: min(N, start + batches·G)."""
        if batches < 0:
            raise ValueError(f"batches={batches}: must not be negative")
        return min(self.num_samples, self.start + batches * self.global_batch_size)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.ranks:
            raise TopologyError(f"rank={rank}: this plan has {self.ranks} ranks, numbered from 0")
