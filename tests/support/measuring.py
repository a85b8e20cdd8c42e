"""What a child of ``tests.support.nursery`` does in the place of ``benchmarks.child``: it calls one function."""

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
