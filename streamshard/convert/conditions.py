"""Which records are wanted at all: conditions such as ``score>=0.5``, all of which must hold."""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streamshard.convert.problems import BAD_VALUE, RecordProblem, shorten

_CONDITION = re.compile(r"(.+?)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    """One condition on the value under a key of the input; a missing key counts as null."""

    key: str
    sign: str
    value: Any

    def holds(self, record: Mapping[str, Any]) -> bool:
        """Whether a record is wanted. Null is smaller and larger than nothing.

        Raises:
            RecordProblem: a value that has no order with ours.
        """
        found = record.get(self.key)
        if self.sign in ("=", "!="):
            return _OPERATORS[self.sign](found, self.value)
        if found is None:
            return False
        try:
            return _OPERATORS[self.sign](found, self.value)
        except TypeError:
            raise RecordProblem(
                BAD_VALUE,
                f"key {self.key!r} holds {shorten(str(found), 60)}, which cannot be compared with {self.value!r}"
                f" (--where {self})",
            ) from None

    def __str__(self) -> str:
        return f"{self.key}{self.sign}{json.dumps(self.value, ensure_ascii=False)}"


def parse_where(texts: Sequence[str]) -> tuple[Condition, ...]:
    """``["score>=0.5", "lang=en"]`` → conditions; a value is JSON, or text where it is none.

    Raises:
        ValueError: no condition.
    """
    made = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ValueError(f"--where {text}: expected KEY=VALUE, or !=, <, <=, >, >= in the place of =")
        key, sign, value = match.groups()
        try:
            known = json.loads(value)
        except ValueError:
            known = value
        if sign not in ("=", "!=") and type(known) not in (int, float, str):
            raise ValueError(f"--where {text}: {value} has no order; expected a number or a text")
        made.append(Condition(key, sign, known))
    return tuple(made)
