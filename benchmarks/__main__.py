"""``python -m benchmarks``: see ``--help``."""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    bench_convert,
    bench_order,
    bench_quality,
    bench_read,
    bench_replication,
    bench_scale,
    bench_start,
    bench_write,
)
from benchmarks.contest import Contest, Setting, hold
from benchmarks.peers import PEERS, interpreters, set_up
from benchmarks.survey import Survey, conduct
from benchmarks.table import render, summarize

BENCHMARKS: dict[str, Callable[[Setting], Iterator[Contest | Survey]]] = {
    "text": bench_read.text,
    "blob": bench_read.blob,
    "access": bench_read.access,
    "order": bench_order.order,
    "scale": bench_scale.scale,
    "quality": bench_quality.quality,
    "write": bench_write.write,
    "start": bench_start.start,
    "convert": bench_convert.convert,
    "replication": bench_replication.replication,
}


def run(names: Sequence[str], setting: Setting, out: Path | None = None) -> list[dict[str, Any]]:
    """Run benchmarks by name and return their results, which ``out`` holds as soon as they are there."""
    results = []
    for name in names:
        for asked in BENCHMARKS[name](setting):
            found = conduct(asked, setting) if isinstance(asked, Survey) else hold(asked, setting)
            results.append({"benchmark": name, **found})
            print(render(results[-1]), flush=True)
            if out is not None:
                out.write_text(_dump(results))
    return results


def _dump(results: list[dict[str, Any]]) -> str:
    """Give JSON with each flat dict, such as a run or a row, on a line of its own."""

    def joined(flat: re.Match[str]) -> str:
        return "{" + re.sub(r"\n\s+", " ", flat[1]) + "}"

    return re.sub(r"\{\n\s+([^{}\[\]]*)\n\s+\}", joined, json.dumps(results, indent=1)) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["setup"]:
        set_up(*_setup_arguments(argv[1:]))
        return
    if argv[:1] == ["table"]:
        _tables(argv[1:])
        return
    if argv[:1] == ["summary"]:
        print(summarize(result for path in argv[1:] for result in json.loads(Path(path).read_text())))
        return
    parser = _parser()
    options = parser.parse_args(argv)
    names = list(BENCHMARKS) if "all" in options.names else options.names
    try:
        found = interpreters(options.peer_python, options.peers)
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.data or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        run(names, Setting(found, options.runs, directory, options.samples), options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure streamshard beside its peers: each party in a process of its own, run by run in turn, "
        "products compared. Prints a table for each benchmark.",
        epilog="python -m benchmarks setup DIR [NAME ...]   make the peers' environments with pip.   "
        "python -m benchmarks table FILE ...   print the tables of stored results.   "
        "python -m benchmarks summary FILE ...   print all their ratios in one table.",
    )
    parser.add_argument("names", nargs="+", choices=[*BENCHMARKS, "all"], metavar="NAME",
                        help=f"{', '.join(BENCHMARKS)}, or all")  # fmt: skip
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where setup made the environments")
    parser.add_argument("--peer-python", action="append", default=[], metavar="[NAME=]PATH",
                        help="interpreter of a peer (mosaicml-streaming if not named)")  # fmt: skip
    parser.add_argument("--samples", type=int, metavar="N", help="in place of each benchmark's own number")
    parser.add_argument("--runs", type=int, default=3, metavar="K", help="measured runs of each party (3)")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="keep generated data here; default: a temporary directory")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    return parser


def _setup_arguments(argv: Sequence[str]) -> tuple[Path, Sequence[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks setup", description="Make an environment for each peer with pip."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(PEERS)}; default: all")
    options = parser.parse_args(argv)
    unknown = set(options.names) - set(PEERS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return options.directory, options.names or list(PEERS)


def _tables(argv: Sequence[str]) -> None:
    for path in argv:
        for result in json.loads(Path(path).read_text()):
            print(render(result))


if __name__ == "__main__":
    main()
