"""The launcher of ``tests.support.ranks``: starts ranks that know who they are by arguments alone."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any


def run_rank(rank: int, config: dict[str, Any]) -> None:
    import torch

    target = _target(config["target"])
    torch.set_num_threads(1)
    if config["rendezvous"] is None:
        target(rank, config["options"])
        return
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"file://{config['rendezvous']}", rank=rank, world_size=config["ranks"]
    )
    try:
        target(rank, config["options"])
    finally:
        dist.destroy_process_group()


def _target(name: str) -> Any:
    from tests.support import trainers

    module, _, function = name.rpartition(".")
    return getattr(import_module(f"tests.support.{module}") if module else trainers, function)


def launch(config: dict[str, Any], begun: Callable[[], None] = lambda: None) -> None:
    """Start the ranks and wait for them. ``begun`` is called when all are there, or before there is one in here."""
    # For tests.support.ranks, where a job hangs; forked processes do the same.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    if not config["ranks"]:
        begun()
        run_rank(0, {**config, "rendezvous": None})
        return

    import torch.multiprocessing

    context = torch.multiprocessing.start_processes(
        run_rank, (config,), nprocs=config["ranks"], join=False, start_method=config["method"]
    )
    # Only now: a process that forks should have one thread.
    begun()
    while not context.join():
        pass


def main() -> None:
    launch(json.loads(sys.argv[1]), begun=_die_with_the_test_run)


def _die_with_the_test_run() -> None:
    def watch() -> None:
        while os.read(0, 1):  # closed by the death of the test run
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
