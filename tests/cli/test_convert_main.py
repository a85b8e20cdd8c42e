"""The group ``streamshard``: its help is light, its errors are one message."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from streamshard.cli.main import main
from streamshard.errors import ConvertError


def test_help_lists_the_commands_and_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from streamshard.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'fsspec', 'PIL', 'zstandard', 'xxhash', 'tqdm'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    listed = [line.split()[0] for line in done.stdout.partition("Commands:")[2].splitlines() if line.strip()]
    assert listed == ["convert", "info", "show", "verify", "repair", "merge", "state"]


def test_an_unknown_command_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["transmute"])
    assert done.exit_code == 2
    assert "No such command 'transmute'" in done.stderr


@pytest.mark.parametrize(
    "error", [ConvertError("train.jsonl:4: broken"), PermissionError(13, "Permission denied", "/x")]
)
def test_the_packages_errors_become_one_message(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main, "get_command", lambda *_: failing)
    done = CliRunner().invoke(main, ["convert"])
    assert done.exit_code == 1
    assert done.stderr == f"Error: {error}\n"
