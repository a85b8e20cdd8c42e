"""The main job from start to end, on real pictures, on this machine alone.

Converts the emoji set beside this file, looks at it, verifies it, trains on 2 ranks, kills them with SIGKILL at a
random step, resumes on 3 ranks, and checks that every sample of the epoch was learned exactly once.

    python docs/tutorial/first_light.py [DIRECTORY]

Needs streamshard with its ``torch`` extra. Works in DIRECTORY, or in a temporary one that it removes at the end.
"""

from __future__ import annotations

import collections
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "emoji"
PATIENCE_S = 300


def streamshard(*arguments: object) -> None:
    """Run the command line, showing the command."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ streamshard {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "streamshard.cli.main", *words], check=True)


def start(
    dataset: Path, run: Path, ranks: int, batch_size: int, attempt: int
) -> list[subprocess.Popen[bytes]]:
    """Start one process for each rank, each the leader of a group that its DataLoader workers belong to."""
    print(f"\n$ train.py on {ranks} ranks, batch size {batch_size} each", flush=True)
    return [
        subprocess.Popen(
            [sys.executable, HERE / "train.py", dataset, run, "--batch-size", str(batch_size)],
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "ATTEMPT": str(attempt)},
            start_new_session=True,
        )
        for rank in range(ranks)
    ]


def killed_after_step(processes: list[subprocess.Popen[bytes]], run: Path, step: int) -> bool:
    """SIGKILL all ranks and their workers once rank 0 has begun a later step; False if the epoch was over before."""
    log = run / "samples-2-0.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while not log.exists() or log.read_bytes().count(b"\n") <= step:
        if time.monotonic() > deadline or any(process.poll() for process in processes):
            kill(processes)
            sys.exit("training did not get as far as the step at which it was to be killed")
        time.sleep(0.002)
    kill(processes)
    return epochs_done(run) == 0


def kill(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in processes:
        process.wait()


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all ranks; on the first that fails, end the others."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        for process in processes:
            if process.wait(timeout=max(0.0, deadline - time.monotonic())):
                sys.exit(f"a rank ended with exit code {process.returncode}")
    finally:
        kill(processes)


def steps_done(run: Path) -> int:
    """Number of steps in the checkpoint; 0 without one."""
    return int(checkpoint(run).get("step", 0))


def epochs_done(run: Path) -> int:
    """Epoch in which the checkpoint's data goes on; 0 without one."""
    return int(checkpoint(run).get("data", {}).get("epoch", 0))


def checkpoint(run: Path) -> dict[str, Any]:
    """What train.py saved last; empty before its first step."""
    import torch

    try:
        return torch.load(run / "checkpoint.pt")
    except FileNotFoundError:
        return {}


def learned(run: Path, ranks: int, first: int, last: int) -> collections.Counter[str]:
    """Count the sample ids of the steps first, …, last - 1 that ``ranks`` ranks wrote down."""
    ids: collections.Counter[str] = collections.Counter()
    for rank in range(ranks):
        for line in (run / f"samples-{ranks}-{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if first <= entry["step"] < last:
                ids.update(entry["ids"])
    return ids


def main(work: Path) -> None:
    began = time.monotonic()
    dataset, run = work / "shards", work / "run"
    run.mkdir(parents=True)

    streamshard(
        "convert", SOURCE / "train.jsonl", "--image-root", SOURCE, "--out", dataset, "--size-limit", "128kb"
    )
    streamshard("info", dataset)
    streamshard("show", dataset, 0)
    streamshard("verify", dataset)

    kill_at = random.randint(5, 15)
    while not killed_after_step(start(dataset, run, ranks=2, batch_size=8, attempt=0), run, kill_at):
        print("the kill came too late, on a machine with much else to do: once more from the start, sooner")
        shutil.rmtree(run)
        run.mkdir()
        kill_at //= 2
    kept = steps_done(run)
    print(f"killed with SIGKILL; the checkpoint holds {kept} steps")

    finish(start(dataset, run, ranks=3, batch_size=5, attempt=1))
    steps = steps_done(run)

    expected = [
        json.loads(line)["id"] for line in (SOURCE / "train.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    before, after = learned(run, 2, 0, kept), learned(run, 3, kept, steps)
    counts = before + after
    lost = [identity for identity in expected if not counts[identity]]
    repeated = [identity for identity, times in counts.items() if times > 1]
    if lost or repeated or len(counts) != len(expected):
        sys.exit(f"NOT exactly once: {len(lost)} samples lost, {len(repeated)} repeated")
    print(
        f"\nproved in {time.monotonic() - began:.0f} s:\n"
        f"  converted   {len(expected)} records with their pictures, byte for byte\n"
        f"  verified    every shard against index, header, hashes and decoders\n"
        f"  trained     {kept} steps on 2 ranks: {before.total()} samples\n"
        f"  killed      with SIGKILL, workers and all\n"
        f"  resumed     on 3 ranks with another batch size, {steps - kept} steps: {after.total()} samples\n"
        f"  exactly once: all {len(expected)} samples of the epoch were learned, none of them twice"
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="streamshard-tutorial-") as directory:
            main(Path(directory))
