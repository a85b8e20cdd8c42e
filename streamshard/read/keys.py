"""Where a dataset's files lie below the root of a store."""

from __future__ import annotations


def key_in(split: str | None, basename: str) -> str:
    """Return the key of ``basename`` in the sub-directory ``split``, or at the root without one."""
    inside = (split or "").strip("/")
    return f"{inside}/{basename}" if inside else basename
