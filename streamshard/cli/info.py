"""``streamshard info``: what a dataset consists of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamshard._sizes import format_bytes
from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import json_option, split_option, storage_option
from streamshard.cli._text import say, shortened, table

if TYPE_CHECKING:
    from streamshard.read.summary import ColumnSummary, Spread, Summary


@click.command("info", cls=NamedErrorCommand)
@click.argument("dataset")
@split_option
@storage_option
@json_option
def command(dataset: str, split: str | None, storage_options: dict[str, Any], as_json: bool) -> None:
    """Sum up the dataset at DATASET, a directory or URL that holds index.json.

    Sizes of values are the mean of a few samples where a column has no fixed size.
    """
    from streamshard.read.summary import summarise_dataset
    from streamshard.storage import open_store

    summary = summarise_dataset(open_store(dataset, storage_options=storage_options), split=split)
    if as_json:
        click.echo(json.dumps(summary.to_json(), indent=2))
    else:
        _print(summary)


def _print(summary: Summary) -> None:
    say(summary.source)
    compressed = (
        ""
        if summary.compressed_nbytes is None
        else f" ({format_bytes(summary.compressed_nbytes)} compressed, "
        f"{summary.compressed_nbytes / max(1, summary.raw_nbytes):.0%})"
    )
    rows = [
        ("samples", f"{summary.num_samples:,}"),
        ("shards", f"{summary.num_shards:,}"),
        ("bytes", f"{summary.raw_nbytes:,}, {format_bytes(summary.raw_nbytes)}{compressed}"),
        ("compression", _counts(summary.compressions, summary.num_shards) or "none"),
        ("hashes", _counts(summary.hashes, summary.num_shards) or "none"),
    ]
    if summary.shard_nbytes is not None:
        rows.append(("shard bytes", _spread(summary.shard_nbytes, format_bytes)))
    if summary.shard_samples is not None:
        rows.append(("shard samples", _spread(summary.shard_samples, lambda count: f"{count:,.0f}")))
    rows += [
        (f"cost {name}", f"{total:,}, mean {total / max(1, summary.num_samples):,.1f} a sample")
        for name, total in summary.costs.items()
    ]
    table(rows)
    if summary.columns:
        more = f" (of the first of {summary.num_schemas} schemas)" if summary.num_schemas > 1 else ""
        say(f"columns{more}")
        table([(column.name, column.encoding, _size(column)) for column in summary.columns])
    if summary.guess_note:
        say(f"note: {summary.guess_note}")
    if summary.extra:
        say("streamshard")
        table([(key, shortened(json.dumps(value), 200)) for key, value in summary.extra.items()])


def _counts(counts: dict[str, int], num_shards: int) -> str:
    return ", ".join(
        name if count == num_shards else f"{name} ({count:,} of {num_shards:,} shards)"
        for name, count in sorted(counts.items())
    )


def _spread(spread: Spread, show: Any) -> str:
    return (
        f"least {show(spread.least)}, median {show(spread.median)}, mean {show(spread.mean)}, "
        f"greatest {show(spread.greatest)}"
    )


def _size(column: ColumnSummary) -> str:
    if column.nbytes is None:
        return "variable"
    return f"{column.nbytes:,.0f} bytes" if column.fixed else f"about {format_bytes(column.nbytes)}"
