"""The order of opened streams, and its states. Needs no torch, so that the command line can ask it, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamshard._sizes import as_integer
from streamshard.dataset.fingerprint import Fingerprints
from streamshard.dataset.quotas import Mixture, most_samples, quotas_of
from streamshard.dataset.settings import only, walks_of
from streamshard.dataset.states import States
from streamshard.dataset.weights import mean_costs_of, parse_epoch_size
from streamshard.order.epoch import BATCHINGS, Order

if TYPE_CHECKING:
    from streamshard.dataset.source import OpenStream
    from streamshard.order.position import Setting
    from streamshard.order.timeline import Quotas

SAMPLINGS = ("balanced", "fixed")


@dataclass(frozen=True, slots=True)
class Ordering:
    """All arguments of ``StreamingDataset`` that its order depends on, under their names there.

    Raises:
        ValueError: an unknown method.
    """

    epoch_size: int | str | None = None
    weight_by: str = "samples"
    mixture: Mixture | None = None
    sampling_method: str = "balanced"
    batching_method: str = "random"
    num_canonical_nodes: int | None = None
    shuffle: bool = False
    shuffle_algo: str = "sliding"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None

    def __post_init__(self) -> None:
        only("sampling_method", self.sampling_method, *SAMPLINGS)
        only("batching_method", self.batching_method, *BATCHINGS)
        parse_epoch_size(self.epoch_size)
        if self.mixture is not None and self.sampling_method == "fixed":
            raise ValueError(
                "sampling_method='fixed' takes the same samples in every epoch, so a mixture= that changes cannot be; "
                "use sampling_method='balanced'"
            )

    def states(self, opened: Sequence[OpenStream], quotas: Quotas | None = None) -> States:
        """Make the order of opened streams; of which epochs take ``quotas``, where these are known already.

        Raises:
            ValueError, TopologyError, TypeError: arguments that contradict each other or the streams.
        """
        streams = [each.stream for each in opened]
        if quotas is None:
            quotas = quotas_of(
                streams,
                [each.index.num_samples for each in opened],
                parse_epoch_size(self.epoch_size),
                mean_costs_of(opened, self.weight_by),
                self.mixture,
            )
        walks = walks_of(
            opened,
            most_samples(quotas),
            fixed=quotas.per_epoch if self.sampling_method == "fixed" else None,
            shuffle=self.shuffle_algo if self.shuffle else None,
            seed=self.shuffle_seed,
            lanes=self.num_canonical_nodes,
            block_size=self.shuffle_block_size,
            batching=self.batching_method,
        )
        order = Order(walks, quotas, batching=self.batching_method)
        return States(
            order,
            self._settings(),
            [stream.name for stream in streams],
            Fingerprints([each.index for each in opened]),
        )

    def _settings(self) -> dict[str, Setting]:
        """The settings of the order that belong to no single stream, for its states."""
        lanes, block_size = self.num_canonical_nodes, self.shuffle_block_size
        return {
            "batching_method": self.batching_method,
            "sampling_method": self.sampling_method,
            "num_canonical_nodes": None if lanes is None else as_integer(lanes),
            "shuffle_block_size": None if block_size is None else as_integer(block_size),
        }
