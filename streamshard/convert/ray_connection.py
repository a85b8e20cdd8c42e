"""A connection to a Ray cluster: made if this process has none, and what runs once on every node."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from streamshard.errors import ConvertError, MissingDependencyError

_SECONDS_TO_ANSWER = 20.0

logger = logging.getLogger(__name__)


class Connection:
    """This process as a driver of the cluster at ``address``; ``ray`` is the module.

    Raises:
        MissingDependencyError: Ray is not installed.
    """

    def __init__(self, address: str) -> None:
        self.ray = _ray()
        self._address = address
        self._own = False

    def nodes(self) -> list[Any]:
        """What Ray knows of each living node."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def on_all_nodes(self, function: Callable[..., Any], *values: Any) -> list[Any]:
        """Run a function once on every node; nodes that die meanwhile give no answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self.ray.remote(function)
        asked = [
            remote.options(
                num_cpus=0,
                max_retries=1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False),
            ).remote(*values)
            for node in self.nodes()
        ]
        answers = []
        for reference in asked:
            try:
                answers.append(self.ray.get(reference))
            except self.ray.exceptions.RayTaskError as error:
                raise ConvertError(f"a node of the Ray cluster cannot do it: {cause_of(error)}") from error
            except self.ray.exceptions.RayError as error:
                logger.info("a node gave no answer: %s", first_line(error))
        return answers

    def open(self) -> None:
        """Connect.

        Raises:
            ConvertError: nobody answers, or this process is connected to another cluster.
        """
        address = self._address
        if self.ray.is_initialized():
            connected = self.ray.get_runtime_context().gcs_address
            if address not in ("auto", "local", connected):
                raise ConvertError(
                    f"--address {address}: this process is connected to the Ray cluster at {connected}; leave the"
                    " address out, or call ray.shutdown() first"
                )
            return
        try:
            _knock(address)
            with _handlers_kept():
                self.ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="streamshard"
                )
        except (ValueError, RuntimeError, OSError) as error:
            raise ConvertError(
                f"--address {address}: no Ray cluster answers there ({first_line(error)}); start one with"
                " 'ray start --head', name another address, or give --address local for this machine alone"
            ) from error
        self._own = True

    def close(self) -> None:
        """Disconnect, if this connection was made here."""
        if self._own:
            self._own = False
            self.ray.shutdown()


def _knock(address: str) -> None:
    """Raise OSError where nobody listens, at once: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_ANSWER).close()


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray takes the signal that ends a process; it belongs to whoever runs the conversion."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _ray() -> Any:
    # Else Ray warns of what it will do by itself some day.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError(
            f"--engine ray needs Ray ({error}): pip install 'streamshard[ray]'"
        ) from None
    return ray


def cause_of(error: Any) -> str:
    """What a task that raised an error of its own has raised, in one line."""
    cause = getattr(error, "cause", None) or error
    if isinstance(cause, ModuleNotFoundError) or "No module named 'streamshard" in str(error):
        return f"{first_line(cause)}: install streamshard, of the same version, on all nodes"
    return first_line(cause)


def first_line(error: BaseException) -> str:
    """The first line of an error's text that is not blank, bounded."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:500]
