"""Text of unknown origin on a terminal, and what all commands do with errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._text import printable
from streamshard.errors import FormatError
from tests.support.small_datasets import write_dataset


@given(st.text(st.characters(codec=None)))
def test_what_is_printed_is_always_one_harmless_line(text: str) -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        shown = printable(text, encoding=encoding)
        assert shown.isprintable()
        shown.encode(encoding)


def test_plain_text_of_any_language_is_left_alone() -> None:
    assert printable("héllo, 日本語, 🙂 \\n") == "héllo, 日本語, 🙂 \\n"
    assert printable("日", encoding="ascii") == "\\u65e5"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FormatError("shard 'x\x1b[2J':\n bad"), "error: shard 'x\\x1b[2J': bad\n"),
        (
            FileNotFoundError(2, "No such file or directory", "/x/y"),
            "error: /x/y: No such file or directory\n",
        ),
        (ValueError("columns=3"), "error: columns=3\n"),
        (OSError("odd"), "error: odd\n"),
    ],
)
def test_an_expected_error_is_one_paragraph_and_exit_1(error: Exception, message: str) -> None:
    @click.command(cls=NamedErrorCommand)
    def fail() -> None:
        raise error

    result = CliRunner().invoke(fail, [])
    assert result.exit_code == 1
    assert result.stderr == message
    assert result.stdout == ""


def test_a_fault_of_the_program_keeps_its_traceback() -> None:
    @click.command(cls=NamedErrorCommand)
    def fail() -> None:
        raise KeyError("x")

    assert isinstance(CliRunner().invoke(fail, []).exception, KeyError)


def test_any_text_is_shown_under_an_ascii_locale(tmp_path: Path) -> None:
    write_dataset(tmp_path, [{"t": "日本語 🙂"}], {"t": "str"})
    line = [sys.executable, "-m", "streamshard.cli.main", "show", str(tmp_path), "0"]
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "\\u65e5\\u672c\\u8a9e \\U0001f642" in done.stdout


@pytest.mark.parametrize("name", ["info", "show", "verify", "merge", "state", "state show"])
def test_help_fits_one_screen(name: str) -> None:
    line = [sys.executable, "-m", "streamshard.cli.main", *name.split(), "--help"]
    done = subprocess.run(
        line, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"}
    )
    lines = done.stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
