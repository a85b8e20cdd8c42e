"""Names in braces, as shells and WebDataset write many at once: ``data-{00000..00063}.tar``, ``{train,val}.jsonl``."""

from __future__ import annotations

import re

from streamshard.errors import ConvertError
from streamshard.storage.redact import public_url

_BRACES = re.compile(r"\{(?:(\d{1,18})\.\.(\d{1,18})|([^{},]*(?:,[^{},]*)+))\}")
_MOST_NAMES = 1_000_000


def expanded(text: str) -> list[str]:
    """All names that a text stands for, in the order of a shell; the text alone where it has no such braces.

    Raises:
        ConvertError: more than a million.
    """
    pieces: list[list[str]] = []
    end = 0
    count = 1
    for match in _BRACES.finditer(text):
        first, last, listed = match.groups()
        several = len(listed.split(",")) if listed is not None else abs(int(last) - int(first)) + 1
        count *= several
        if count > _MOST_NAMES:
            raise ConvertError(
                f"source {public_url(text)!r}: its braces stand for more than {_MOST_NAMES} names"
            )
        pieces += [
            [text[end : match.start()]],
            listed.split(",") if listed is not None else _numbers(first, last),
        ]
        end = match.end()
    names = [""]
    for piece in [*pieces, [text[end:]]]:
        names = [name + more for name in names for more in piece]
    return names


def _numbers(first: str, last: str) -> list[str]:
    begin, end = int(first), int(last)
    # As in a shell: as wide as the wider one, if one of them begins with a zero.
    padded = any(len(one) > 1 and one[0] == "0" for one in (first, last))
    width = max(len(first), len(last)) if padded else 0
    step = 1 if begin <= end else -1
    return [f"{number:0{width}d}" for number in range(begin, end + step, step)]
