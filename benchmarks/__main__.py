"""``python -m benchmarks``: see ``--help``."""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    bench_cloud,
    bench_convert,
    bench_growth,
    bench_images,
    bench_loader,
    bench_order,
    bench_planning,
    bench_quality,
    bench_read,
    bench_replication,
    bench_scale,
    bench_start,
    bench_streams,
    bench_write,
)
from benchmarks.contest import Contest, Setting, hold
from benchmarks.peers import PEERS, interpreters, set_up
from benchmarks.summary import BEGIN, END, between_marks, summarize
from benchmarks.survey import Survey, conduct
from benchmarks.table import render

BENCHMARKS: dict[str, Callable[[Setting], Iterator[Contest | Survey]]] = {
    "text": bench_read.text,
    "columns": bench_read.columns,
    "text-workers": bench_loader.text_workers,
    "blob": bench_read.blob,
    "blob-workers": bench_loader.blob_workers,
    "access": bench_read.access,
    "pictures": bench_loader.pictures,
    "resume": bench_loader.resume,
    "epochs": bench_loader.epochs,
    "order": bench_order.order,
    "scale": bench_scale.scale,
    "streams": bench_streams.streams,
    "quality": bench_quality.quality,
    "write": bench_write.write,
    "start": bench_start.start,
    "growth": bench_growth.growth,
    "convert": bench_convert.convert,
    "planning": bench_planning.planning,
    "replication": bench_replication.replication,
    "cloud": bench_cloud.cloud,
    "images": bench_images.images,
}


ALONE = ("scale", "streams", "quality", "replication", "cloud", "images", "planning")
"""Works that ``all`` leaves out: long ones with pages of their own, beside no peer or beside others."""


def run(
    names: Sequence[str], setting: Setting, out: Path | None = None, done: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Run benchmarks by name and return their results, which ``out`` holds as soon as they are there.

    Args:
        names: of ``BENCHMARKS``.
        setting: how to run. Where it says to keep going, a benchmark that cannot be set up is left out.
        out: file for the results, replaced whole each time.
        done: results of an earlier run; what they have is not measured again.
    """
    results = [*done]
    titles = {result["title"] for result in done}
    for number, name in enumerate(names, 1):
        print(f"== {name} ({number} of {len(names)})", file=sys.stderr, flush=True)
        try:
            for asked in BENCHMARKS[name](setting):
                if asked.title in titles:
                    print(f"{asked.title}: there already", file=sys.stderr, flush=True)
                    continue
                found = conduct(asked, setting) if isinstance(asked, Survey) else hold(asked, setting)
                results.append({"benchmark": name, **found})
                print(render(results[-1]), flush=True)
                if out is not None:
                    out.with_suffix(".part").write_text(_dump(results))
                    out.with_suffix(".part").replace(out)
        except Exception as error:
            if not setting.keep_going:
                raise
            print(f"== {name} ends here: {error!r}", file=sys.stderr, flush=True)
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
        _summary(argv[1:])
        return
    parser = _parser()
    options = parser.parse_args(argv)
    everything = [name for name in BENCHMARKS if name not in ALONE]
    names = list(
        dict.fromkeys(each for name in options.names for each in (everything if name == "all" else [name]))
    )
    try:
        found = interpreters(options.peer_python, options.peers)
    except ValueError as error:
        parser.error(str(error))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started ends too
    done = []
    if options.resume and options.json is not None and options.json.exists():
        done = json.loads(options.json.read_text())
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.data or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        setting = Setting(
            found,
            options.runs,
            directory,
            options.samples,
            scale=options.scale,
            limit_s=options.limit,
            keep_going=not options.strict,
        )
        run(names, setting, options.json, done)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure streamshard beside its peers: each party in a process of its own, run by run in turn, "
        "products compared. Prints a table for each benchmark.",
        epilog="python -m benchmarks setup DIR [NAME ...]   make the peers' environments with pip.   "
        "python -m benchmarks table FILE ...   print the tables of stored results.   "
        "python -m benchmarks summary FILE ... [--into PAGE ...]   print the tables of all works, or put them "
        "between the marks in pages.",
    )
    parser.add_argument("names", nargs="+", choices=[*BENCHMARKS, "all"], metavar="NAME",
                        help=f"{', '.join(BENCHMARKS)}, or all, which leaves out {', '.join(ALONE)}")  # fmt: skip
    parser.add_argument("--peers", type=Path, metavar="DIR", help="where setup made the environments")
    parser.add_argument("--peer-python", action="append", default=[], metavar="[NAME=]PATH",
                        help="interpreter of a peer (mosaicml-streaming if not named)")  # fmt: skip
    parser.add_argument("--samples", type=int, metavar="N", help="in place of each benchmark's own number")
    parser.add_argument("--scale", type=float, default=1.0, metavar="F",
                        help="factor on each benchmark's own number of samples (1)")  # fmt: skip
    parser.add_argument("--runs", type=int, default=3, metavar="K", help="measured runs of each party (3)")
    parser.add_argument("--data", type=Path, metavar="DIR",
                        help="keep generated data here; default: a temporary directory")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers here")
    parser.add_argument("--resume", action="store_true",
                        help="keep what FILE has already and measure the rest")  # fmt: skip
    parser.add_argument("--limit", type=float, default=900.0, metavar="S",
                        help="seconds for one run of a party, which is left out when they are over (900)")  # fmt: skip
    parser.add_argument("--strict", action="store_true",
                        help="end with the first party that fails or produces something else")  # fmt: skip
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


def _summary(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks summary",
        description="Print the tables of all works, or put them into pages.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--into", nargs="+", type=Path, default=[], metavar="PAGE",
                        help=f"replace what stands between {BEGIN} and {END}")  # fmt: skip
    options = parser.parse_args(argv)
    text = summarize([result for path in options.files for result in json.loads(path.read_text())])
    if not options.into:
        print(text)
    for page in options.into:
        page.write_text(between_marks(page.read_text(), text, page.name))


def _tables(argv: Sequence[str]) -> None:
    for path in argv:
        for result in json.loads(Path(path).read_text()):
            print(render(result))


if __name__ == "__main__":
    main()
