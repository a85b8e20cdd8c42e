"""Telling a report: as text or JSON, and by the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import click


class _Report(Protocol):
    @property
    def ok(self) -> bool: ...

    def to_json(self) -> dict[str, Any]: ...


R = TypeVar("R", bound=_Report)


def tell(ctx: click.Context, report: R, show: Callable[[R], None], *, as_json: bool) -> None:
    """Print a report, with ``show`` or as JSON, and end the command: exit 0 if it is ``ok``, else 1."""
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        show(report)
    ctx.exit(0 if report.ok else 1)
