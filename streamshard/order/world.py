"""Where one process stands among the ranks of a job: arithmetic only, nothing is detected here."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from streamshard._sizes import shown
from streamshard.errors import TopologyError


@dataclass(frozen=True, slots=True)
class World:
    """A rank in a job of ``world_size`` ranks, ``local_world_size`` of them on each node.

    Ranks are numbered node by node. Where ``local_world_size`` does not divide ``world_size``, the last
    node is the smaller one. ``local_world_size=None`` means that all ranks share one node.

    Raises:
        TopologyError: a number that is no integer or outside its range.
    """

    rank: int = 0
    world_size: int = 1
    local_world_size: int | None = None

    def __post_init__(self) -> None:
        world_size = _integer("world_size", self.world_size)
        rank = _integer("rank", self.rank)
        local = (
            world_size
            if self.local_world_size is None
            else _integer("local_world_size", self.local_world_size)
        )
        if world_size < 1:
            raise TopologyError(f"world_size={world_size}: a job has at least one rank")
        if not 0 <= rank < world_size:
            raise TopologyError(
                f"rank={rank} is not one of world_size={world_size} ranks: expected 0 to {world_size - 1}"
            )
        if not 1 <= local <= world_size:
            raise TopologyError(
                f"local_world_size={local}: expected 1 to world_size={world_size} ranks on a node"
            )
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world_size", world_size)
        object.__setattr__(self, "local_world_size", local)

    @property
    def ranks_per_node(self) -> int:
        """``local_world_size`` as a plain int: the ranks on each node but perhaps the last."""
        return self.world_size if self.local_world_size is None else self.local_world_size

    @property
    def node(self) -> int:
        """This rank's node, from 0."""
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        """Nodes of the job, the last, perhaps smaller one included."""
        return -(-self.world_size // self.ranks_per_node)

    @property
    def local_rank(self) -> int:
        """This rank's number on its node, from 0."""
        return self.rank % self.ranks_per_node

    def replicate(self, k: int) -> World:
        """Give the world in which ``k`` consecutive ranks count as one, because they read the same samples.

        Raises:
            TopologyError: ``k`` does not divide the ranks, or its groups would straddle nodes unevenly.
        """
        k = _integer("replication", k)
        if k < 1 or self.world_size % k:
            raise TopologyError(
                f"replication={k} does not divide world_size={self.world_size}: "
                "every group of ranks that read the same samples must be whole"
            )
        local = self.ranks_per_node
        if local % k and k % local:
            raise TopologyError(
                f"replication={k} and local_world_size={local}: one must divide the other, "
                "so that a group of ranks lies on one node or fills whole nodes"
            )
        return World(self.rank // k, self.world_size // k, min(max(1, local // k), self.world_size // k))


def _integer(name: str, value: object) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type] # this is the check
        except TypeError:
            pass
    raise TopologyError(f"{name}={shown(value)}: expected an integer")
