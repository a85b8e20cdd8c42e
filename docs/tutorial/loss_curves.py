"""One loss curve on 1, 2, 4 and 8 ranks, and over a resume from 2 to 4 ranks in the middle of an epoch.

    python docs/tutorial/loss_curves.py [--picture loss_curves.svg]

Trains a small network on the emoji beside this file, with torch's DistributedDataParallel over gloo, in processes of
this machine. All runs have one global batch of 36 samples, so step by step they learn from the same samples, and
their losses may differ only by the order in which sums were rounded. The script compares all of them with the run on
one rank, prints the largest deviation, and ends with an error if it is more than rounding. One more run weighs its
gradients wrongly, to show that this would be noticed.

Needs streamshard with its ``torch`` extra.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from loss_picture import picture
from torch import nn
from train import CATEGORIES, prepare

from streamshard import StreamingDataLoader, StreamingDataset

EMOJI = Path(__file__).resolve().parent / "emoji"
GLOBAL_BATCH = 36  # 8 ranks get 4 or 5 samples each
ALLOWED = {"float64": 1e-12, "float32": 1e-4}
"""Largest deviation that rounding explains: a sum of 36 terms errs by about 1e-15 (float64) or 1e-7 (float32) of its
value, and training adds to it in each of some dozens of steps."""


def build_model(dtype: torch.dtype) -> nn.Module:
    """Make the same small network in every process. No batch norm: that would look at one rank's samples only."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(4, 8, kernel_size=5, stride=2), nn.GELU(),
        nn.Conv2d(8, 16, kernel_size=5, stride=2), nn.GELU(),
        nn.Flatten(), nn.Linear(16 * 5 * 5, len(CATEGORIES)),
    )  # fmt: skip
    return model.to(dtype)


def train(rank: int, ranks: int, options: dict[str, Any]) -> None:
    """Train from the checkpoint, if there is one, up to step ``until``; rank 0 logs each loss, and saves at the end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{options['meeting']}", rank=rank, world_size=ranks)
    dtype = getattr(torch, options["dtype"])
    model = nn.parallel.DistributedDataParallel(build_model(dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    dataset = StreamingDataset(
        local=options["dataset"], shuffle=True, global_batch_size=GLOBAL_BATCH, transform=prepare
    )
    loader = StreamingDataLoader(dataset)

    step = 0
    checkpoint = Path(options["checkpoint"])
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]

    losses = []
    while step < options["until"]:
        for batch in loader:
            # Ranks may hold 4 or 5 samples, or, at the end of an epoch, fewer and some repeats that fill up. DDP
            # takes the mean over ranks, so that the mean over samples needs: repeats left out of each rank's sum,
            # that sum divided by the samples of all ranks, and DDP's division by the ranks undone.
            own = len(batch["id"]) - loader.last_batch_padding
            outputs, labels = model(batch["pixels"].to(dtype)), batch["label"]
            sum_of_losses = nn.functional.cross_entropy(outputs[:own], labels[:own], reduction="sum")
            totals = torch.stack([sum_of_losses.detach(), torch.tensor(own, dtype=dtype)])
            dist.all_reduce(totals)
            optimizer.zero_grad()
            if options["weighted"]:
                (sum_of_losses * ranks / totals[1]).backward()
            else:
                nn.functional.cross_entropy(outputs, labels).backward()
            optimizer.step()
            losses.append(float(totals[0] / totals[1]))
            step += 1
            if step == options["until"]:
                break

    if rank == 0:
        torch.save(
            {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "data": loader.state_dict(),
            },
            checkpoint,
        )
        Path(options["losses"]).write_text(json.dumps(losses), encoding="utf-8")
    dist.destroy_process_group()


def losses_of(work: Path, name: str, legs: list[tuple[int, int]], how: dict[str, Any]) -> list[float]:
    """Train in legs of (ranks, step at which the leg ends), each resuming from the one before; return all losses."""
    directory = work / name
    directory.mkdir()
    losses: list[float] = []
    for number, (ranks, until) in enumerate(legs):
        options = {
            "dataset": str(work / "shards"),
            **how,
            "until": until,
            "checkpoint": str(directory / "checkpoint.pt"),
            "meeting": str(directory / f"meeting-{number}"),
            "losses": str(directory / "losses.json"),
        }
        torch.multiprocessing.start_processes(
            train, (ranks, options), nprocs=ranks, start_method="forkserver"
        )
        losses += json.loads((directory / "losses.json").read_text(encoding="utf-8"))
    return losses


def deviations_of(losses: list[float], reference: list[float]) -> list[float]:
    """Relative deviation at each step."""
    return [abs(one - other) / abs(other) for one, other in zip(losses, reference, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8], help="worlds to train in")
    parser.add_argument("--epochs", type=int, default=3, help="how long to train, at least 2")
    parser.add_argument(
        "--dtype", choices=sorted(ALLOWED), default="float64", help="of the model and its sums"
    )
    parser.add_argument("--picture", type=Path, help="write the curves there, as SVG")
    arguments = parser.parse_args()
    # The server imports these once; the ranks are its forks, here and on macOS.
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["torch", "streamshard.dataset.loader"]
    )

    with tempfile.TemporaryDirectory(prefix="streamshard-curves-") as directory:
        work = Path(directory)
        words = ["convert", EMOJI / "train.jsonl", "--out", work / "shards", "--size-limit", "128kb"]
        subprocess.run(
            [sys.executable, "-m", "streamshard.cli.main", *map(str, words), "--quiet"], check=True
        )
        epoch = math.ceil(StreamingDataset(local=work / "shards").size / GLOBAL_BATCH)
        steps, resumed_at = arguments.epochs * epoch, epoch + epoch // 2
        if resumed_at >= steps:
            parser.error("--epochs: at least 2, so that there is something left after the resume")
        runs = {f"{ranks} rank{'s' * (ranks > 1)}": [(ranks, steps)] for ranks in arguments.ranks}
        runs["2, then 4 ranks"] = [(2, resumed_at), (4, steps)]
        most = max(arguments.ranks)
        wrong = f"{most} ranks, unweighted"
        if most > 1:
            runs[wrong] = [(most, steps)]
        curves = {}
        for name, legs in runs.items():
            how = {"dtype": arguments.dtype, "weighted": name != wrong}
            curves[name] = losses_of(work, name, legs, how)
            print(
                f"{name:16} {len(curves[name])} steps, loss {curves[name][0]:.6f} to {curves[name][-1]:.6f}",
                flush=True,
            )

    reference = next(iter(curves))
    deviations = {name: deviations_of(losses, curves[reference]) for name, losses in curves.items()}
    if arguments.picture is not None:
        arguments.picture.write_text(picture(curves, deviations, epoch, resumed_at), encoding="utf-8")
    largest = max(max(each) for name, each in deviations.items() if name != wrong)
    print(f"largest relative deviation from the run on {reference}, at any step: {largest:.1e}")
    allowed = ALLOWED[arguments.dtype]
    if largest > allowed:
        sys.exit(f"NOT the same training: rounding explains no more than {allowed:.0e}")
    if wrong in deviations:
        print(f"without the weights, as a check of this check: {max(deviations[wrong]):.1e}")
        if max(deviations[wrong]) <= allowed:
            sys.exit("NOT a test of anything: wrong gradients make no difference")
    if curves[reference][-1] >= curves[reference][0]:
        sys.exit("NOT a test of anything: the loss did not go down")


if __name__ == "__main__":
    main()
