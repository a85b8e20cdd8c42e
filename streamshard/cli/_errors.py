"""What every command does with an error: one paragraph on stderr and exit 1, no traceback."""

from __future__ import annotations

import errno
import sys
from typing import Any

import click

from streamshard.cli._text import printable
from streamshard.errors import StreamshardError


class NamedErrorCommand(click.Command):
    """A command whose expected errors are messages. Usage errors stay click's: exit 2.

    An error of another class is a fault of this program and keeps its traceback.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # nobody reads: the group's to deal with, as for every command
        except (StreamshardError, OSError, ValueError) as error:
            click.echo(f"error: {_one_paragraph(error)}", err=True)
            ctx.exit(1)


def _one_paragraph(error: Exception) -> str:
    if isinstance(error, OSError) and not isinstance(error, StreamshardError) and error.errno is not None:
        name = error.filename if error.filename is not None else ""
        text = (
            f"{name}: {error.strerror}" if name else f"{error.strerror or errno.errorcode.get(error.errno)}"
        )
    else:
        text = str(error) or type(error).__name__
    return printable(" ".join(text.split()), encoding=getattr(sys.stderr, "encoding", None))
