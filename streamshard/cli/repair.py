"""``streamshard repair``: make a damaged dataset whole again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import json_option, split_option, storage_option
from streamshard.cli._reports import tell
from streamshard.cli._text import say

if TYPE_CHECKING:
    from streamshard.repair.report import RepairReport

_MOST_RANGES = 20


@click.command("repair", cls=NamedErrorCommand)
@click.argument("dataset", metavar="DIR_OR_URL")
@click.option("--from", "origin", metavar="DIR_OR_URL", help="A copy of the dataset to fetch from.")
@click.option("--deep", is_flag=True, help="At a URL: read all shards, not only sizes and headers.")
@click.option("--dry-run", is_flag=True, help="Change nothing; say what would be done.")
@click.option(
    "--unproven",
    type=click.Choice(["ask", "keep", "drop"]),
    default="ask",
    show_default=True,
    help="Samples of a shard whose hash is wrong and nothing says where.",
)
@click.option("--allow-unsafe-types", is_flag=True, help="Decode pkl columns too; this can run code in them.")
@split_option
@storage_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    dataset: str,
    origin: str | None,
    deep: bool,
    dry_run: bool,
    unproven: Literal["ask", "keep", "drop"],
    allow_unsafe_types: bool,
    split: str | None,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Mend a dataset.

    An index that is lost or damaged comes from --from, else is made anew from the shards. A damaged shard comes
    from --from, else is cut to its good samples, and the ids of those that are lost are listed. The old files
    stay until the new ones are complete. At a URL nothing is cut. Exit 0 if every problem was dealt with, 1 if
    any was not.
    """
    from streamshard.repair.job import repair_dataset

    report = repair_dataset(
        dataset,
        origin=origin,
        deep=deep,
        split=split,
        dry_run=dry_run,
        unproven=unproven,
        allow_unsafe_types=allow_unsafe_types,
        storage_options=storage_options,
    )
    tell(ctx, report, _print, as_json=as_json)


def _print(report: RepairReport) -> None:
    for repair in report.repairs:
        for problem in repair.problems:
            say(f"problem: {problem.message}")
        say(f"{repair.done}: {repair.message}")
        if repair.lost:
            shown = [str(begin) if end == begin + 1 else f"{begin}-{end - 1}" for begin, end in repair.lost]
            more = (
                f" and {len(shown) - _MOST_RANGES:,} more ranges (--json)"
                if len(shown) > _MOST_RANGES
                else ""
            )
            say(f"lost: {repair.num_lost:,} samples: {', '.join(shown[:_MOST_RANGES])}{more}")
    for note in report.notes:
        say(f"note: {note}")
    undecided = sum(repair.done == "undecided" for repair in report.repairs)
    say(
        f"{report.source}: index {report.index}; {len(report.repairs):,} of {report.num_shards:,} shards had problems, "
        f"{undecided:,} were left; {report.num_lost:,} of {report.num_samples:,} samples lost"
    )
    if not report.changed:
        say("nothing to do" if report.ok else "nothing was done")
    elif report.dry_run:
        say("nothing was changed (--dry-run)")
