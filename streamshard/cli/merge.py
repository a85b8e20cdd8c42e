"""``streamshard merge``: one index over datasets in sub-directories."""

from __future__ import annotations

import warnings
from typing import Any

import click

from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import storage_option
from streamshard.cli._text import printable, say


@click.command("merge", cls=NamedErrorCommand)
@click.argument("out")
@click.argument("indexes", metavar="[INDEX]...", nargs=-1)
@storage_option
def command(out: str, indexes: tuple[str, ...], storage_options: dict[str, Any]) -> None:
    """Write one index.json in OUT, a directory or URL, over the datasets below it.

    With INDEX (paths or URLs of index.json files in OUT or below), those in that order; else every one below OUT, in
    the order of their paths. Shards stay where they are.
    """
    from streamshard.read.catalog import load_index
    from streamshard.storage import open_store
    from streamshard.write.merge import merge_index

    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        if indexes:
            merge_index(list(indexes), out, storage_options=storage_options)
        else:
            merge_index(out, storage_options=storage_options)
    for warning in noted:
        click.echo(printable(f"note: {warning.message}"), err=True)
    index, _ = load_index(open_store(out, storage_options=storage_options))
    say(f"{out}: {index.num_samples:,} samples in {len(index.shards):,} shards")
