"""What ranks do that read in tensor- and context-parallel groups; run by ``tests.support.ranks`` as the others."""

from __future__ import annotations

import json
from typing import Any

from tests.support.loading import make_loader, numbers_of


def read_on_meshes(rank: int, options: dict[str, Any]) -> None:
    """Read an epoch with each loader of ``ways`` on each mesh, and log what this rank got.

    Options:
        dataset: arguments of ``StreamingDataset``.
        meshes: for each, ``shape``, ``names`` of its dimensions, and which of them are data parallel (``dp``).
        ways: arguments of ``make_loader``.
        log: each rank writes ``{log}.{rank}``.
    """
    from torch.distributed.device_mesh import init_device_mesh

    from streamshard import StreamingDataset

    with open(f"{options['log']}.{rank}", "w") as log:
        for number, mesh in enumerate(options["meshes"]):
            device_mesh = init_device_mesh("cpu", tuple(mesh["shape"]), mesh_dim_names=tuple(mesh["names"]))
            names = mesh["dp"]
            part = device_mesh[names[0]] if len(names) == 1 else device_mesh[tuple(names)]
            for way in options["ways"]:
                dataset = StreamingDataset(**options["dataset"], world=part)
                loader = make_loader(dataset=dataset, **way)
                world = dataset.world
                line = {
                    "mesh": number,
                    "world": None
                    if world is None
                    else [world.rank, world.world_size, world.local_world_size],
                    "batches": [numbers_of(batch) for batch in loader],
                }
                log.write(json.dumps(line) + "\n")


def refuse_meshes(rank: int, options: dict[str, Any]) -> None:
    """Write down what is said to a process outside of a mesh, and to one that gives a mesh and a replication."""
    from torch.distributed.device_mesh import DeviceMesh

    from streamshard import StreamingDataset
    from streamshard.errors import TopologyError

    said = []
    for arguments in ({"world": DeviceMesh("cpu", [0], mesh_dim_names=("dp",))}, {"replication": 2}):
        mesh = DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "tp"))["dp"]
        try:
            dataset = StreamingDataset(**{**options["dataset"], "world": mesh, **arguments})
            said.append(repr(dataset.world))
        except TopologyError as error:
            said.append(str(error))
    with open(f"{options['log']}.{rank}", "w") as log:
        log.writelines(json.dumps({"said": text}) + "\n" for text in said)
