"""The processes of a group that meet at each step, tell each other where they stand, and pass bytes on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from streamshard.errors import TopologyError

_MOST_NBYTES = 1 << 30  # of one transfer: backends count elements in 32 bits here and there


class Peers:
    """This process among the members of a process group.

    The group's backend says where bytes must lie to be sent: in memory where it has one for the CPU (gloo, mpi,
    ucc), else on the current device (nccl). All members call ``exchange`` and ``broadcast`` in the same order.

    Args:
        group: a ``torch.distributed.ProcessGroup`` that this process is a member of. Nobody else should use it at
            the same time.

    Raises:
        TypeError: no process group.
        TopologyError: this process is not in it.
    """

    def __init__(self, group: Any) -> None:
        if not _is_group(group):
            raise TypeError(
                f"read_once={group!r}: expected a process group whose members get the same samples, as "
                'mesh["tp"].get_group() or what torch.distributed.new_group() gave'
            )
        self.rank = int(dist.get_rank(group))
        if self.rank < 0:
            raise TopologyError(
                "read_once: this process is no member of the group; torch.distributed.new_group() gives every "
                "process a handle of every group: pass the one that this process belongs to"
            )
        self.size = int(dist.get_world_size(group))
        self._group = group
        self._device = _device_type(group)

    def name(self, member: int) -> str:
        """Name a member for people: its number among all processes."""
        return f"process {dist.get_global_rank(self._group, member)}"

    def exchange(self, words: Sequence[int]) -> list[list[int]]:
        """Return everybody's words: as many whole numbers of 64 bits, with sign, from each member, by number."""
        own = torch.tensor(words, dtype=torch.int64, device=self._device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(every, own, group=self._group)
        return [[int(word) for word in each.tolist()] for each in every]

    def broadcast(
        self, source: int, nbytes: int, parcel: torch.Tensor | None, *, pinned: bool = False
    ) -> torch.Tensor:
        """Pass bytes on from one member to all.

        Args:
            source: the member that has them.
            nbytes: how many.
            parcel: there, the bytes, a uint8 tensor (nbytes,) in memory.
            pinned: elsewhere, put them into page-locked memory.

        Returns:
            The bytes, a uint8 tensor (nbytes,) in memory.
        """
        is_source = self.rank == source
        if parcel is None or not is_source:
            parcel = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)
        sender = dist.get_global_rank(self._group, source)
        for begin in range(0, nbytes, _MOST_NBYTES):
            piece = parcel[begin : begin + _MOST_NBYTES]
            sent = piece.to(self._device)
            dist.broadcast(sent, sender, group=self._group)
            if sent is not piece and not is_source:
                piece.copy_(sent)
        return parcel


def _is_group(group: object) -> bool:
    if not dist.is_available():
        return False
    return isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER


def _device_type(group: Any) -> str:
    """``cpu`` where the group can send from memory, else its first device type."""
    backends: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", str(dist.get_backend_config(group))))
    if "cpu" in backends or not backends:
        return "cpu"
    return next(iter(backends))
