"""The help of the command is click's, to the letter, without click."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from streamshard.cli.main import main
from streamshard.cli.start import help_text


def run(argv: list[str], code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    begin = f"import sys; sys.argv = {argv!r}; from streamshard.cli.start import main; "
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return subprocess.run(
        [sys.executable, "-c", f"{begin}{code or 'sys.exit(main())'}"],
        capture_output=True, text=True, env={**kept, **environment}, timeout=60,
    )  # fmt: skip


def test_the_help_is_that_of_click() -> None:
    shown = CliRunner().invoke(main, ["--help"], prog_name="streamshard", terminal_width=80)
    assert help_text() == shown.output


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_loads_no_click(option: str) -> None:
    done = run(["/there/streamshard", option], "code = main(); print('click' in sys.modules, code)")
    assert done.stdout == help_text() + "False 0\n"


@pytest.mark.parametrize(
    ("argv", "environment"),
    [(["streamshard", "--version"], {}), (["streamshard", "--help"], {"COLUMNS": "40"})],
)
def test_all_else_is_left_to_click(argv: list[str], environment: dict[str, str]) -> None:
    done = run(argv, **environment)
    assert done.returncode == 0
    assert done.stdout not in ("", help_text())


def test_python_looks_for_garbage_but_seldom_in_a_command() -> None:
    at_exit = "print(gc.get_threshold()[0], gc.get_freeze_count() > 10_000)"
    code = f"import atexit, gc; atexit.register(lambda: {at_exit}); main()"
    assert run(["streamshard", "--version"], code).stdout.splitlines()[-1] == "100000 True"


def test_an_unknown_command_is_an_error() -> None:
    done = run(["streamshard", "convrt"])
    assert done.returncode == 2
    assert "convrt" in done.stderr


def test_help_for_a_reader_that_is_gone_ends_quietly() -> None:
    begin = "import sys; sys.argv = ['streamshard', '--help']; from streamshard.cli.start import main; main()"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", begin], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert b"Traceback" not in done.stderr
