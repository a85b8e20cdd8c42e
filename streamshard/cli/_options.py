"""Options that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _parse_pairs(_ctx: click.Context, _option: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            # The value may be a secret: only the part that cannot be one is repeated.
            raise click.BadParameter("expected KEY=VALUE, such as anon=true")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options


def split_option(command: F) -> F:
    """Add ``--split NAME``."""
    return click.option("--split", metavar="NAME", help="Sub-directory of DATASET to use.")(command)


def storage_option(command: F) -> F:
    """Add ``--storage-option KEY=VALUE``, given to the command as the dict ``storage_options``."""
    return click.option(
        "--storage-option",
        "storage_options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_parse_pairs,
        help="Option for the storage library; repeatable. VALUE is JSON or text.",
    )(command)


def key_option(command: F) -> F:
    """Add ``--key PLACE``, given to the command as ``key``."""
    return click.option("--key", metavar="PLACE", help="Which state, where the file holds several.")(command)


def json_option(command: F) -> F:
    """Add ``--json``, given to the command as ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
