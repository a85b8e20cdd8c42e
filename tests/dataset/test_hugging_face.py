"""Accelerate and the Trainer: docs/how-to/accelerate_loop.py and transformers_trainer.py do what the page says."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset
from tests.support.loading import epoch_of, joined, text_dataset
from tests.support.ranks import PATIENCE_S, lines_of

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"

needs = {
    name: pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"needs {name}")
    for name in ("accelerate", "transformers")
}


def run(command: list[str]) -> str:
    """Run a script offline and return what it printed."""
    environment = {
        **{
            name: value
            for name, value in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
        },
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@needs["accelerate"]
@pytest.mark.slow
def test_b121_two_accelerate_processes_read_pictures_of_all_sizes_once_and_resume(tmp_path: Path) -> None:
    columns = {"id": "str", "image": "png"}
    with MDSWriter(out=tmp_path / "set", columns=columns, size_limit="4kb") as writer:
        for number in range(50):
            writer.write({"id": f"a{number}", "image": Image.new("RGB", (1 + number, 60 - number))})
    logs: list[list[dict[str, Any]]] = []
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [str(HOW_TO / "accelerate_loop.py"), str(tmp_path / "set"), str(tmp_path)]
    for processes, command in (
        (2, [*launch, *script, "--steps", "3", "--workers", "1"]),
        (1, [sys.executable, *script]),
    ):
        run(command)
        for rank in range(processes):
            path = tmp_path / f"log.{rank}"
            logs.append(lines_of(path))
            path.unlink()
    assert [len(log) for log in logs] == [3, 3, 7]
    ids = joined([line["ids"] for log in logs for line in log])
    sizes = joined([line["sizes"] for log in logs for line in log])
    assert sorted(ids) == sorted(f"a{number}" for number in range(50))
    assert all(size == [1 + int(name[1:]), 60 - int(name[1:])] for name, size in zip(ids, sizes, strict=True))


@needs["transformers"]
@pytest.mark.slow
def test_b134_the_trainer_goes_beyond_an_epoch_and_resumes_amid_the_second(tmp_path: Path) -> None:
    directory = text_dataset(tmp_path / "set", 80)
    for most in (15, 27):
        script = str(HOW_TO / "transformers_trainer.py")
        printed = run([sys.executable, script, str(directory), str(tmp_path), "--max-steps", str(most)])
        assert json.loads(printed.splitlines()[-1])["global_step"] == most
    loader = StreamingDataLoader(StreamingDataset(local=directory, shuffle=True), 8)
    expected = joined([epoch_of(loader) for _ in range(3)])[:27]
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == expected
