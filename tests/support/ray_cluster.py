"""A Ray cluster of several nodes on this machine, nodes that see other files, and units of work that hang."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
DOOMED = "STREAMSHARD_TEST_DOOMED"
_STORE_NBYTES = 80 << 20
_ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    # No token is laid down in the home of whoever runs the tests, and nobody is told of it.
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}


class LocalCluster:
    """Nodes with one CPU each, whose processes are real: a node dies when it is killed.

    Attributes:
        doomed: a node on which :func:`hanging_unit` hangs, after it has written to ``pipe``.
        hidden: the folder that one node does not see.
    """

    doomed: Any
    pipe: Path
    hidden: Path

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**self._arguments(), "temp_dir": str(folder), "include_dashboard": False},
        )
        self.address = str(self._cluster.address)
        self._blind: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _arguments() -> dict[str, Any]:
        return {"num_cpus": 1, "object_store_memory": _STORE_NBYTES}

    def connect(self) -> None:
        """Be a driver of the cluster, so that worker processes serve all tests."""
        import ray

        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")

    def add(self, **environment: str) -> Any:
        """Start a node, whose processes have these variables too."""
        return self._cluster.add_node(wait=False, env_vars=environment, **self._arguments())

    def add_blind(self, folder: Path) -> None:
        """Start a node on which an empty file system lies over ``folder``."""
        start = (
            f"mount -t tmpfs none '{folder}' && exec '{sys.executable}' -m ray.scripts.scripts start --block"
            f" --address='{self.address}' --num-cpus=1 --object-store-memory={_STORE_NBYTES}"
        )
        self._blind = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", start],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self, nodes: int) -> None:
        """Until this many nodes are there."""
        import ray

        deadline = time.monotonic() + 120
        while sum(node["Alive"] for node in ray.nodes()) < nodes:
            if time.monotonic() > deadline or (self._blind is not None and self._blind.poll() is not None):
                raise RuntimeError(f"not all of {nodes} nodes have come up: {ray.nodes()}")
            time.sleep(0.05)

    def kill(self, node: Any) -> None:
        """SIGKILL for all processes of a node: its raylet and the workers below it."""
        started = [info.process.pid for infos in node.all_processes.values() for info in infos]
        doomed = [psutil.Process(pid) for pid in started if psutil.pid_exists(pid)]
        doomed += [child for parent in doomed for child in parent.children(recursive=True)]
        for process in doomed:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def close(self) -> None:
        import ray

        ray.shutdown()
        if self._blind is not None:
            os.killpg(self._blind.pid, signal.SIGTERM)
            self._blind.wait(30)
        self._cluster.shutdown()


@contextlib.contextmanager
def local_cluster() -> Iterator[LocalCluster]:
    """A cluster of one node, to which others can be added."""
    # Sockets lie there, whose paths must be short; and the address of the last cluster, which Ray writes into a folder
    # that it expects to be there: not that of whoever runs the tests, who may have a cluster.
    folder = Path(tempfile.mkdtemp(prefix="sst-"))
    (folder / "ray").mkdir()
    environment = {**_ENVIRONMENT, "RAY_TMPDIR": str(folder)}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        cluster = LocalCluster(folder)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def can_hide() -> bool:
    """Whether this user may give a process a view of the file system of its own."""
    try:
        return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def sightless_unit(files: Any, sealed: Any, directory: str) -> Any:
    """A unit of work on a node that sees no source that is to be read."""
    from streamshard.convert.ray_node import Outcome, run_unit

    return Outcome(absent=True) if sealed.opened()[0] == "stage" else run_unit(files, sealed, directory)


def telling_unit(files: Any, sealed: Any, directory: str) -> Any:
    """A unit of work that writes down, beside the output, its node and what was reserved for it."""
    import ray

    from streamshard.convert.ray_node import run_unit

    here = ray.get_runtime_context()
    told = {"node": here.get_node_id(), **here.get_assigned_resources()}
    name = f"told-{uuid.uuid4().hex}.json"
    (Path(directory).parents[1] / name).write_text(json.dumps(told), encoding="ascii")
    return run_unit(files, sealed, directory)


def hanging_unit(files: Any, sealed: Any, directory: str) -> Any:
    """A unit of work that on the doomed node tells where it is and never ends."""
    from streamshard.convert.ray_node import run_unit

    pipe = os.environ.get(DOOMED)
    if pipe and sealed.opened()[0] == "write":
        with open(pipe, "w", encoding="ascii") as told:
            told.write("here")
        signal.pause()
    return run_unit(files, sealed, directory)
