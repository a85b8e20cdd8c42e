"""A small but whole training job: data-parallel, checkpointed, resumable on any number of ranks.

    RANK=0 WORLD_SIZE=2 python train.py DATASET RUN_DIRECTORY --batch-size 8

Start it once for each rank. It trains one epoch of a classifier that tells an emoji's category from its picture.
After each step rank 0 writes a checkpoint; a job that is started again in the same directory goes on from it, no
matter how many ranks it has now.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from streamshard import StreamingDataLoader, StreamingDataset

CATEGORIES = [
    "Activities", "Animals & Nature", "Component", "Flags", "Food & Drink",
    "Objects", "People & Body", "Smileys & Emotion", "Symbols", "Travel & Places",
]  # fmt: skip


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    """Turn a stored sample into what the model takes: pixels float32 (4, 32, 32) in [0, 1], a class number."""
    picture = sample["image"].convert("RGBA").resize((32, 32))
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return {
        "id": sample["id"],
        "pixels": pixels.view(32, 32, 4).permute(2, 0, 1).float() / 255,
        "label": CATEGORIES.index(sample["category"]),
    }


def save(path: Path, checkpoint: dict[str, Any]) -> None:
    """Replace the checkpoint in one step: a kill leaves the old one or the new one, never half of one."""
    unfinished = path.with_suffix(".tmp")
    torch.save(checkpoint, unfinished)
    unfinished.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="directory or URL of the shards")
    parser.add_argument("run", type=Path, help="directory of this job: checkpoints and logs")
    parser.add_argument("--batch-size", type=int, default=8, help="samples of one rank's batch")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader workers of each rank")
    arguments = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = arguments.run / f"meeting-{os.environ.get('ATTEMPT', '0')}"
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting.resolve()}", rank=rank, world_size=world_size
    )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, len(CATEGORIES)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    dataset = StreamingDataset(remote=arguments.dataset, shuffle=True, shuffle_seed=7, transform=prepare)
    loader = StreamingDataLoader(dataset, batch_size=arguments.batch_size, num_workers=arguments.workers)

    latest = arguments.run / "checkpoint.pt"
    step = 0
    if latest.exists():
        checkpoint = torch.load(latest)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        loader.load_state_dict(checkpoint["data"])
        step = checkpoint["step"]

    with (arguments.run / f"samples-{world_size}-{rank}.jsonl").open("a", encoding="utf-8") as log:
        for batch in loader:
            own = len(batch["id"]) - loader.last_batch_padding
            # What is about to be learned; a step without a checkpoint after it never happened.
            log.write(json.dumps({"step": step, "ids": batch["id"][:own]}) + "\n")
            log.flush()
            # The mean over all ranks' samples, repeats left out: ranks may hold different numbers of them.
            total = torch.tensor(float(own))
            dist.all_reduce(total)
            loss = nn.functional.cross_entropy(
                model(batch["pixels"])[:own], batch["label"][:own], reduction="sum"
            )
            loss = loss / total
            optimizer.zero_grad()
            loss.backward()
            shown = loss.detach()
            for part in [shown, *(parameter.grad for parameter in model.parameters())]:
                dist.all_reduce(part)
            optimizer.step()
            step += 1
            if rank == 0:
                save(
                    latest,
                    {
                        "step": step,
                        "loss": float(shown),
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "data": loader.state_dict(),
                    },
                )
    dist.barrier()
    if rank == 0:
        (arguments.run / "finished").write_text(f"{step}\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
