"""``streamshard verify``: everything that is wrong with a dataset."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from streamshard._sizes import format_bytes
from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import json_option, split_option, storage_option
from streamshard.cli._reports import tell
from streamshard.cli._text import say

if TYPE_CHECKING:
    from streamshard.read.report import Report


@click.command("verify", cls=NamedErrorCommand)
@click.argument("dataset")
@click.option("--no-decode", is_flag=True, help="Do not decode the samples.")
@click.option("--deep/--headers", "deep", default=None, help="Read all samples, or headers only.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--allow-unsafe-types", is_flag=True, help="Decode pkl columns too; this can run code in them.")
@split_option
@storage_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    dataset: str,
    no_decode: bool,
    deep: bool | None,
    workers: int,
    allow_unsafe_types: bool,
    split: str | None,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Check every shard at DATASET, a directory or URL, and list every problem.

    Checked: index, presence and size of files, headers and offsets of shards. In a directory, and with --deep at
    a URL, also: all hashes, of single samples too where there are such, decompression, and that each sample
    decodes. --deep lists every bad sample, else at most 1,000 of each shard are. Exit 0 if all is well, 1 if
    anything is not.
    """
    from streamshard.read.verify import verify_dataset

    with _progress() as progress:
        report = verify_dataset(
            dataset,
            split=split,
            decode=not no_decode,
            workers=workers,
            allow_unsafe_types=allow_unsafe_types,
            deep=deep,
            storage_options=storage_options,
            progress=progress,
        )
    tell(ctx, report, _print, as_json=as_json)


def _print(report: Report) -> None:
    for problem in report.problems:
        say(f"problem: {problem.message}")
    for note in report.notes:
        say(f"note: {note}")
    unhashed = f", {report.unhashed_files:,} without any hash" if report.unhashed_files else ""
    hashed = f", {report.hashed_samples:,} hashed" if report.hashed_samples else ""
    say(
        f"{report.source}: {len(report.problems):,} problems in {report.num_shards:,} shards, "
        f"{report.num_samples:,} samples ({report.decoded_samples:,} decoded{hashed}), "
        f"{format_bytes(report.nbytes)} read; "
        + (
            f"{report.hashed_files:,} files hashed{unhashed}"
            if report.deep
            else f"{report.headers:,} headers checked"
        )
    )
    if report.ok:
        say("ok" if report.deep else "ok, as far as sizes and headers tell")


class _progress:  # noqa: N801 used like a function
    """A bar on a terminal, nothing elsewhere."""

    def __enter__(self) -> Any:
        self._bar: Any = None
        return self._show if sys.stderr.isatty() else None

    def _show(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit=" shards", file=sys.stderr, leave=False)
        self._bar.update(done - self._bar.n)

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.close()
