"""Run a command until standard input ends, then kill its process group and remove its directory.

    python supervise.py DIRECTORY COMMAND...

The parent keeps the other end of standard input open as long as it lives, so that a test run that crashes or is killed
leaves neither a server nor its files behind.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import sys


def main() -> None:
    directory, *command = sys.argv[1:]
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C goes to the whole terminal group; the parent decides
    with open(os.path.join(directory, "server.log"), "ab") as log:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            start_new_session=True,
            env={**os.environ, "TMPDIR": directory},
        )
    try:
        sys.stdin.buffer.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)
        # SeaweedFS puts sockets named after its gRPC ports into /tmp, wherever it is told to work.
        for port in (word.rpartition("=")[2] for word in command if ".grpc=" in word):
            for leftover in glob.glob(f"/tmp/seaweedfs-*-grpc-{port}.sock"):
                os.unlink(leftover)


if __name__ == "__main__":
    main()
