"""The Hugging Face Trainer over a StreamingDataLoader: more steps than an epoch has, and a resume amid one.

    python transformers_trainer.py DATASET RUN_DIRECTORY --max-steps 40

Run it again with more steps, and it goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from streamshard import StreamingDataLoader, StreamingDataset

STATE = "streamshard.json"


class StreamingTrainer(Trainer):
    """Takes the loader as it is: it gives each process its own share already."""

    def __init__(self, *, train_loader: StreamingDataLoader, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.train_loader = train_loader
        self.add_callback(LoaderState(train_loader))

    def get_train_dataloader(self) -> StreamingDataLoader:
        return self.train_loader


class LoaderState(TrainerCallback):
    """Keeps the loader's state beside each checkpoint."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self.loader = loader

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        # Not earlier: the Trainer has to count whole epochs, and the length of a resumed one is what is left.
        if state.global_step:
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            self.loader.load_state_dict(json.loads(saved.read_text()))

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.is_world_process_zero:
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            saved.write_text(json.dumps(self.loader.state_dict()))


class Model(nn.Module):
    """A model that notes which samples it was given."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        self.log = log

    def forward(self, number: torch.Tensor) -> dict[str, torch.Tensor]:
        with self.log.open("a") as log:
            log.write(json.dumps(number.tolist()) + "\n")
        return {"loss": self.linear(number.float()[:, None] / 1000).square().mean()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", help="directory or URL of the shards: a column number")
    parser.add_argument("run", type=Path, help="directory of checkpoints and logs")
    parser.add_argument("--max-steps", type=int, default=40)
    parser.add_argument("--workers", type=int, default=0)
    options = parser.parse_args()

    dataset = StreamingDataset(remote=options.dataset, shuffle=True, columns=["number"])
    trainer = StreamingTrainer(
        model=Model(options.run / "log"),
        args=TrainingArguments(
            output_dir=str(options.run),
            per_device_train_batch_size=8,  # the Trainer's own reckoning; the loader has its own
            max_steps=options.max_steps,
            save_steps=5,
            ignore_data_skip=True,  # the loader goes on by itself
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_loader=StreamingDataLoader(dataset, batch_size=8, num_workers=options.workers),
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(options.run)))
    print(json.dumps({"global_step": trainer.state.global_step, "epoch": trainer.state.epoch}))


if __name__ == "__main__":
    main()
