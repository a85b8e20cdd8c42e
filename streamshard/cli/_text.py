"""Text of unknown origin on a terminal: nothing in it may act on the terminal or be lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click


def printable(text: str, *, encoding: str | None = None) -> str:
    r"""Return ``text`` with all that does not simply print as ``\n``, ``\x1b``, ``\u202e`` ...

    Control characters, bidirectional overrides, lone surrogates and what ``encoding`` (default: UTF-8)
    cannot say are escaped; so the result is one line that moves no cursor and hides nothing.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def say(line: str = "") -> None:
    """Print one line of text that may come from anywhere."""
    click.echo(printable(line, encoding=getattr(sys.stdout, "encoding", None)))


def shortened(text: str, limit: int, unit: str = "characters") -> str:
    """Return ``text`` cut to ``limit`` characters, with its full length if it was cut."""
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text):,} {unit})"


def table(rows: Sequence[tuple[str, ...]], *, indent: int = 2) -> None:
    """Print rows as columns, the last one ragged."""
    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]) - 1)] if rows else []
    for row in rows:
        cells = [printable(cell).ljust(width) for cell, width in zip(row, widths, strict=False)]
        say(" " * indent + "  ".join([*cells, row[-1]]).rstrip())
