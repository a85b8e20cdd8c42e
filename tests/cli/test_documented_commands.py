"""Every command line in the documentation is one that the commands take: no option of it is misspelt or gone."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from streamshard.cli.main import main

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _lines() -> list[tuple[str, str]]:
    found = []
    for page in [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]:
        for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.match(r"(?:\$ )?streamshard (.*)", line.strip())
                if match:
                    found.append((page.name, match.group(1)))
    return found


def test_there_are_many() -> None:
    assert len(_lines()) > 15


@pytest.mark.parametrize(("page", "line"), sorted(set(_lines())))
def test_a_documented_line_is_understood(page: str, line: str) -> None:
    args = shlex.split(line, comments=True)
    command: click.Command = main
    context = click.Context(main, info_name="streamshard")
    while isinstance(command, click.Group):
        name = args.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"{page}: no command {name!r}"
        command = found
    command.make_context(command.name, args, parent=context)
