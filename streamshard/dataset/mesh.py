"""A torch ``DeviceMesh`` of the data-parallel dimensions as a ``World``: the only place that knows of meshes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from streamshard.errors import TopologyError
from streamshard.order.world import World

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def world_of(
    world: World | DeviceMesh | None, replication: int | None, environ: Mapping[str, str] | None = None
) -> World | None:
    """Return the topology that was given, as numbers that any process can be told.

    Of a mesh, of one dimension or more, this process is the data-parallel rank that its place in the mesh says,
    in row-major order: peers at the same place of the same mesh's copies get the same samples.

    Args:
        world: what the user gave.
        replication: what the user gave beside it.
        environ: read instead of ``os.environ``, for ``LOCAL_WORLD_SIZE``.

    Raises:
        TopologyError: this process is not in the mesh; or ``replication`` beside a mesh, which says it already.
        TypeError: neither ``World`` nor ``DeviceMesh``.
    """
    if world is None or isinstance(world, World):
        return world
    if not _is_mesh(world):
        raise TypeError(
            f"world={world!r}: expected a World(rank=, world_size=) or a torch DeviceMesh of the data-parallel "
            'dimensions, as mesh["dp"]'
        )
    if replication is not None:
        raise TopologyError(
            f"replication={replication} and a DeviceMesh exclude each other: ranks that are at one place of the "
            "data-parallel mesh get the same samples already; leave replication= out"
        )
    ranks = [int(rank) for rank in world.mesh.flatten().tolist()]
    here = int(world.get_rank())
    if here not in ranks:
        raise TopologyError(
            f"process {here} is not in {_described(world)} of processes {_listed(ranks)}: give each process the "
            'mesh that it belongs to, as mesh["dp"] of one mesh over all processes'
        )
    variables = os.environ if environ is None else environ
    return World(ranks.index(here), len(ranks), _ranks_per_node(ranks, variables.get("LOCAL_WORLD_SIZE", "")))


def _is_mesh(world: object) -> bool:
    import torch.distributed

    if not torch.distributed.is_available():
        return False
    from torch.distributed.device_mesh import DeviceMesh

    return isinstance(world, DeviceMesh)


def _ranks_per_node(ranks: Sequence[int], local_world_size: str) -> int | None:
    """How many of these processes share a node: all of them where nothing is said of nodes, as without a mesh.

    Where the nodes do not hold equal runs of them, the last, perhaps smaller one apart, each is taken to be on a
    node of its own: nothing may then be expected of a neighbour.
    """
    try:
        processes = int(local_world_size)
    except ValueError:
        return None
    if processes < 1:
        return None
    nodes = [rank // processes for rank in ranks]
    of_first = nodes.count(nodes[0])
    runs = [nodes[begin : begin + of_first] for begin in range(0, len(nodes), of_first)]
    whole = all(len(set(run)) == 1 for run in runs) and len({run[0] for run in runs}) == len(runs)
    return of_first if whole else 1


def _described(mesh: DeviceMesh) -> str:
    names = mesh.mesh_dim_names
    return f"the DeviceMesh ({', '.join(names)})" if names else "the DeviceMesh"


def _listed(ranks: Sequence[int]) -> str:
    text = ", ".join(map(str, ranks[:8]))
    return text + ", ..." if len(ranks) > 8 else text
