"""What is called in the place of a benchmark's function; by a peer's interpreter too, so it imports nothing else."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def measure(options: dict[str, Any]) -> Any:
    """Call a function and return what it does.

    Options:
        module, function: which.
        options: its keywords.
    """
    return getattr(import_module(options["module"]), options["function"])(**options["options"])


def measure_twice(**work: Any) -> list[Any]:
    """Call a function for what it produces, then for what it takes: importing a peer takes seconds. See ``measure``."""
    return [measure({**work, "options": {**work["options"], "check": check}}) for check in (True, False)]
