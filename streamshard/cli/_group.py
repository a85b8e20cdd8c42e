"""A group of commands that load only when they are run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from streamshard.cli._streams import leave_unread
from streamshard.errors import StreamshardError


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is called for, and turns the package's errors into one message.

    Args:
        commands_in: name -> (module with an object ``command``, one line for --help): help needs no import of it.
    """

    def __init__(self, *args: Any, commands_in: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_in:
            return None
        module = self._commands_in[cmd_name][0]
        command = importlib.import_module(module).command
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.command is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self._commands_in.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            leave_unread(ctx)
        except (StreamshardError, OSError) as error:
            raise click.ClickException(str(error)) from error
