"""The command ``streamshard``: a group whose subcommands load only when they are run."""

from __future__ import annotations

from typing import Any

import click

from streamshard import __version__
from streamshard.cli._group import LazyGroup
from streamshard.cli._streams import open_closed_streams
from streamshard.cli.start import COMMANDS, WHAT_IT_DOES


class MainGroup(LazyGroup):
    """The outermost group, which any standard stream may be closed for."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        open_closed_streams()
        return super().main(*args, **kwargs)


@click.group(
    cls=MainGroup,
    commands_in=COMMANDS,
    help=WHAT_IT_DOES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="streamshard")
def main() -> None:
    """See ``WHAT_IT_DOES``."""


if __name__ == "__main__":
    main()
