"""Data-parallel ranks that are groups of processes: who gets what, shown on four processes.

    torchrun --nproc-per-node 4 parallel_groups.py DATASET --by mesh hand --read-once

Two data-parallel ranks of two tensor-parallel processes each. Process 0 prints which samples each one got.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from streamshard import StreamingDataLoader, StreamingDataset, World

TP = 2


def by_mesh(dataset: dict[str, Any]) -> StreamingDataset:
    """The data-parallel dimension of the mesh that the model is parallel over, too."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // TP, TP), mesh_dim_names=("dp", "tp"))
    return StreamingDataset(**dataset, world=mesh["dp"])


def by_hand(dataset: dict[str, Any]) -> StreamingDataset:
    """Data-parallel rank and size as two numbers, whatever the launcher or framework calls them."""
    dp_rank, dp_size = dist.get_rank() // TP, dist.get_world_size() // TP
    return StreamingDataset(**dataset, world=World(rank=dp_rank, world_size=dp_size))


def by_replication(dataset: dict[str, Any]) -> StreamingDataset:
    """Consecutive processes are one data-parallel rank."""
    return StreamingDataset(**dataset, replication=TP)


def main() -> None:
    ways = {"mesh": by_mesh, "hand": by_hand, "replication": by_replication}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="directory or URL of the shards")
    parser.add_argument("--by", choices=ways, nargs="+", default=list(ways))
    parser.add_argument("--read-once", action="store_true", help="one process of each group reads")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()

    dist.init_process_group("gloo", init_method=os.environ.get("MEETING", "env://"),
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))  # fmt: skip
    group = None
    if options.read_once:
        rows = [list(range(first, first + TP)) for first in range(0, dist.get_world_size(), TP)]
        group, _ = dist.new_subgroups_by_enumeration(rows, backend="gloo")
    for way in options.by:
        dataset = ways[way]({"remote": options.dataset, "shuffle": True, "columns": ["id"]})
        loader = StreamingDataLoader(dataset, batch_size=8, num_workers=options.workers, read_once=group)
        ids = [sample_id for batch in loader for sample_id in batch["id"]]

        everybody: list[list[str]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everybody, ids)
        if dist.get_rank() == 0:
            for process, received in enumerate(everybody):
                print(f"by {way}, process {process}: {len(received)} samples, first {' '.join(received[:3])}")
            union = {sample_id for received in everybody for sample_id in received}
            print(f"by {way}, together: {len(union)} of {dataset.size} samples")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
