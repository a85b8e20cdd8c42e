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
    # Ctrl-C or a time-out may reach this process too, and it has to outlive the one that it watches.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
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
