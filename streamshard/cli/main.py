"""The command ``streamshard``: a group whose subcommands load only when they are run."""

from __future__ import annotations

from typing import Any

import click

from streamshard import __version__
from streamshard.cli._group import LazyGroup
from streamshard.cli._streams import open_closed_streams

_COMMANDS = {
    "convert": ("streamshard.cli.convert", "Turn JSONL + images into a dataset of shards."),
    "info": ("streamshard.cli.info", "Say what a dataset holds."),
    "show": ("streamshard.cli.show", "Show one sample."),
    "verify": ("streamshard.cli.verify", "Check every shard and list every problem."),
    "repair": ("streamshard.cli.repair", "Mend a damaged dataset: fetch, rebuild or cut."),
    "merge": ("streamshard.cli.merge", "Join the datasets in subdirectories under one index."),
    "state": ("streamshard.cli.state", "Say where a training state stands, and whether it fits."),
}


class MainGroup(LazyGroup):
    """The outermost group, which any standard stream may be closed for."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        return super().main(*args, **kwargs)


@click.group(cls=MainGroup, commands_in=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="streamshard")
def main() -> None:
    """Turn JSONL and images once into shards that stream to any number of GPUs."""


if __name__ == "__main__":
    main()
