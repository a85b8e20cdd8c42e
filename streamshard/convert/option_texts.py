"""Options of a conversion as they are written in a command."""

from __future__ import annotations

from collections.abc import Sequence

from streamshard._sizes import parse_bytes


def parse_max_errors(text: str) -> int | float:
    """``"100"`` → 100; ``"1%"`` → 0.01.

    Raises:
        ValueError: neither.
    """
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else int(text)
    except ValueError:
        raise ValueError(f"--max-errors {text}: expected a number or a share, such as 100 or 1%") from None


def parse_pairs(
    texts: Sequence[str], option: str, example: str, *, first: bool = False
) -> tuple[tuple[str, str], ...]:
    """``["a=int32"]`` → ``(("a", "int32"),)``, parted at the last ``=``, or at the first.

    Args:
        texts: as given with ``option``.
        option: what a refusal names.
        example: what a refusal says was expected.
        first: what comes after ``=`` may have some, and not what comes before it.

    Raises:
        ValueError: a text without ``=``.
    """
    for text in texts:
        if "=" not in text:
            raise ValueError(f"{option} {text}: expected {example}")
    part = str.partition if first else str.rpartition
    return tuple((name, value) for name, _, value in (part(text, "=") for text in texts))


def parse_size_limit(text: str) -> int | None:
    """``"64mb"`` → 67108864; ``"none"`` → ``None``.

    Raises:
        ValueError: not a size.
    """
    return None if text.strip().lower() == "none" else parse_bytes(text, name="size_limit")
