"""The command ``streamshard``: a group whose subcommands load only when they are run."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

from streamshard import __version__
from streamshard.cli._streams import open_closed_streams
from streamshard.errors import StreamshardError

# name -> (module with an object `command`, one line for --help): help needs no import of the module.
_COMMANDS = {
    "convert": ("streamshard.cli.convert", "Turn JSONL + images into a dataset of shards."),
    "info": ("streamshard.cli.info", "Say what a dataset holds."),
    "show": ("streamshard.cli.show", "Show one sample."),
    "verify": ("streamshard.cli.verify", "Check every shard and list every problem."),
    "merge": ("streamshard.cli.merge", "Join the datasets in subdirectories under one index."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called for, and turns the package's errors into one message."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(_COMMANDS[cmd_name][0]).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{_COMMANDS[cmd_name][0]}.command is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # The reader of our output has gone (`| head`): nothing more to say, and nothing to flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)
        except (StreamshardError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="streamshard")
def main() -> None:
    """Turn JSONL and images once into shards that stream to any number of GPUs."""


if __name__ == "__main__":
    main()
