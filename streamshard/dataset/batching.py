"""How a dataset's samples are grouped: batch sizes and remainder, from the dataset, then from its loader."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamshard.dataset.settings import positive
from streamshard.order.batches import REMAINDERS, BatchPlan
from streamshard.order.epoch import Order
from streamshard.order.world import World


@dataclass(frozen=True, slots=True)
class Batching:
    """What was said about batches. ``None`` leaves the choice to a loader; without one, 1 sample and ``pad``.

    Attributes:
        batch_size: samples of one data-parallel rank's batch.
        global_batch_size: samples of all ranks' batches together; in place of ``batch_size``.
        remainder: what becomes of the last, shorter global batch.
        replication: that many consecutive ranks count as one.

    Raises:
        ValueError: a number below 1, both sizes, or an unknown remainder.
    """

    batch_size: int | None = None
    global_batch_size: int | None = None
    remainder: str | None = None
    replication: int = 1

    def __post_init__(self) -> None:
        for name in ("batch_size", "global_batch_size", "replication"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        if self.batch_size is not None and self.global_batch_size is not None:
            raise ValueError(
                f"batch_size={self.batch_size} and global_batch_size={self.global_batch_size} exclude each other"
            )
        if self.remainder is not None and self.remainder not in REMAINDERS:
            raise ValueError(f"remainder={self.remainder!r}: expected one of {', '.join(REMAINDERS)}")

    @property
    def is_sized(self) -> bool:
        """Whether a batch size was given, one way or the other."""
        return self.batch_size is not None or self.global_batch_size is not None

    def for_loader(self, batch_size: int | None, *, drop_last: bool) -> Batching:
        """Return what holds for a loader with these arguments.

        Raises:
            ValueError: they contradict what the dataset was told.
        """
        batch_size = positive("batch_size", batch_size)
        if batch_size is not None and self.is_sized and self.batch_size != batch_size:
            own = self.global_batch_size or self.batch_size
            raise ValueError(
                f"the loader's batch_size={batch_size} contradicts the dataset's "
                f"{'global_batch_size' if self.global_batch_size else 'batch_size'}={own}: give one of them"
            )
        if drop_last and self.remainder not in (None, "drop"):
            raise ValueError(f"drop_last=True contradicts the dataset's remainder={self.remainder!r}")
        return replace(
            self,
            batch_size=self.batch_size if self.is_sized else batch_size or 1,
            remainder="drop" if drop_last else self.remainder,
        )

    def plan(self, order: Order, world: World, epoch: int, start: int) -> tuple[BatchPlan, int]:
        """Return the batches from position ``start`` of an epoch on, and a rank's data-parallel rank.

        Raises:
            TopologyError: ranks and batch sizes that contradict each other.
        """
        ranks = world.replicate(self.replication)
        plan = order.plan(
            epoch,
            start,
            global_batch_size=self.global_batch_size or (self.batch_size or 1) * ranks.world_size,
            ranks=ranks.world_size,
            remainder=self.remainder or "pad",
        )
        return plan, ranks.rank
