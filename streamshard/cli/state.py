"""``streamshard state``: what a saved training state says, and whether it fits a dataset."""

from __future__ import annotations

import click

from streamshard.cli._group import LazyGroup

_COMMANDS = {
    "show": ("streamshard.cli.state_show", "Say what is in a state."),
    "check": ("streamshard.cli.state_check", "Say whether it fits a dataset, and which samples come next."),
}


@click.group("state", cls=LazyGroup, commands_in=_COMMANDS)
def command() -> None:
    """Look at STATE.json, as `json.dump(loader.state_dict(), file)` saves it, alone or within a checkpoint."""
