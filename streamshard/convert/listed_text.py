"""Lists and objects that stand as text in one cell of a table."""

from __future__ import annotations

import ast
import json
import re

# Python's parser takes up to half a kilobyte for each character that is not inside a string.
_LONGEST_LITERAL = 1 << 17
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_SIDE_BY_SIDE = re.compile(r"s\s+s")


def listed_in_text(text: str) -> object:
    """The list or object that a text has, as a cell of a table holds it: in JSON, or as Python writes it (pandas).

    The text itself where it is neither: a name may begin with a bracket.
    """
    if not text.rstrip().endswith(("]", "}")):
        return text
    for parse in (json.loads, _python_value):
        try:
            found = parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return found if isinstance(found, (list, dict)) else text
    return text


def _python_value(text: str) -> object:
    """The value of a Python literal, or of the text that NumPy makes of an array of strings (``['a' 'b']``)."""
    plain = text.replace("\\\\", "").replace("\\'", "").replace('\\"', "")
    quotes = plain.count("'") + plain.count('"')
    bare = _QUOTED.sub("s", plain) if quotes <= _LONGEST_LITERAL else plain
    if len(bare) > _LONGEST_LITERAL:
        raise ValueError(f"{len(bare)} characters beside the strings of a Python literal")
    if _SIDE_BY_SIDE.search(bare):
        # Python would join the strings.
        if plain != text:
            raise ValueError("strings side by side, with escapes")
        text = _QUOTED.sub(r"\g<0>,", text)
    return ast.literal_eval(text)
