"""A loop with Hugging Face Accelerate over pictures of all sizes: each process reads its own share, and resumes.

    accelerate launch --cpu --num_processes 2 accelerate_loop.py DATASET RUN_DIRECTORY --steps 5

Run it again with the same directory, on any number of processes, and it goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from streamshard import StreamingDataLoader, StreamingDataset


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="directory or URL of the shards: columns id, image")
    parser.add_argument("run", type=Path, help="directory of checkpoints and logs")
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    dataset = StreamingDataset(remote=options.dataset, shuffle=True)
    loader = StreamingDataLoader(dataset, batch_size=4, num_workers=options.workers)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    checkpoint = options.run / "checkpoint"
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))

    with (options.run / f"log.{accelerator.process_index}").open("a") as log:
        for step, batch in enumerate(loader, 1):
            sizes = torch.tensor([picture.size for picture in batch["image"]], dtype=torch.float32)
            loss = model(sizes.to(accelerator.device)).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            log.write(json.dumps({"ids": batch["id"], "sizes": sizes.tolist()}) + "\n")
            if step == options.steps:
                break
    accelerator.save_state(str(checkpoint))
    accelerator.end_training()


if __name__ == "__main__":
    main()
