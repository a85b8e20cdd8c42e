"""Reading the text of an index entry by entry, so that only one entry at a time exists as Python objects.

Most entries of an index are alike but for a name, some hashes and some counts. Once enough alike have been seen, the
text of the last one, with these places left open, becomes a pattern, and whatever matches it needs no JSON parser.
Everything else is parsed and checked as usual. Patterns are remembered for the next index: a mixture may have a
thousand of them, small and alike.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
import secrets
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from streamshard.errors import FormatError
from streamshard.format.entries import MOST_PATH_LENGTH, EntryParser, ShardInfo, unique_keys
from streamshard.format.shard_table import Kind, ShardTable
from streamshard.format.table_builder import TableBuilder

# Making a pattern costs what parsing some hundred entries does.
_ALIKE_BEFORE_PATTERN = 256
_MOST_PATTERNS = 16
_MOST_REMEMBERED = 64
_LONGEST_PATTERN = 1 << 16
_AT_ONCE = 4096

_SPACE = re.compile(r"[ \t\n\r]*")
# What stands before and behind the list of shards, as a rule.
_USUAL_BEGIN = re.compile(r'[ \t\n\r]*\{[ \t\n\r]*"shards"[ \t\n\r]*:[ \t\n\r]*')
_USUAL_END = re.compile(r'[ \t\n\r]*,[ \t\n\r]*"version"[ \t\n\r]*:[ \t\n\r]*2[ \t\n\r]*\}[ \t\n\r]*\Z')
# Printable ASCII without quote, backslash and colon; no part begins with a dot: safe as a path, and without escapes.
_PART = r"[!#-\-0-9;-\[\]-~ ][!#-.0-9;-\[\]-~ ]*"
_OPEN = {
    "name": rf'"(?=[^"]{{1,{MOST_PATH_LENGTH}}}")({_PART}(?:/{_PART})*)"',
    "hash": r'"([0-9A-Za-z]*)"',
    "count": r"(0|[1-9][0-9]{0,17})",
}
_WRITERS = tuple(
    json.JSONEncoder(separators=separators, ensure_ascii=ascii_only).encode
    for separators in ((", ", ": "), (",", ":"))
    for ascii_only in (True, False)
)


class Scanned(NamedTuple):
    """What was found in the text of an index: the table of its shards, and its other keys.

    ``names_ascend`` where each file's name is above the one before, so that no two are equal.
    """

    table: ShardTable
    rest: dict[str, Any]
    names_ascend: bool


def scan_indexes(texts: Iterable[bytes]) -> list[Scanned | None]:
    """Parse the texts of some indexes.

    They share what can be shared: schemas, patterns and arrays. None stands for a text that is no index, or not as
    usual: parsing it as a whole says what it is.
    """
    scanner = _Scanner()
    found: list[dict[str, Any] | None] = []
    ends = [0]
    for text in texts:
        try:
            found.append(scanner.document(text.decode("utf-8")))
        except (ValueError, RecursionError):  # FormatError, JSONDecodeError and UnicodeDecodeError among them
            scanner.shorten(ends[-1])
            found.append(None)
        ends.append(scanner.num_shards)
    builder = scanner.finished()
    tables = builder.tables(ends)
    ascend = itertools.starmap(builder.names_ascend, itertools.pairwise(ends))
    for shard in scanner.contradicting:
        found[bisect_right(ends, shard) - 1] = None
    return [
        None if rest is None else Scanned(table, rest, each)
        for table, rest, each in zip(tables, found, ascend, strict=True)
    ]


class _Scanner:
    """Texts become shards in a builder.

    Attributes:
        contradicting: numbers of shards whose counts cannot be true.
    """

    def __init__(self) -> None:
        self._text = ""
        self._decode = json.JSONDecoder(object_pairs_hook=unique_keys).raw_decode
        self._parser = EntryParser()
        self._builder = TableBuilder()
        self._patterns: list[_Pattern] = []
        # What one pattern has found and nobody has added yet: to add a few at a time takes as long as to find them.
        self._held: list[tuple[str, ...]] = []
        self._held_by: _Pattern | None = None
        self.contradicting: list[int] = []

    @property
    def num_shards(self) -> int:
        """Shards so far."""
        return self._builder.num_shards + len(self._held)

    def shorten(self, num_shards: int) -> None:
        """Take back all shards but the first ones."""
        self.finished().shorten(num_shards)
        self.contradicting = [shard for shard in self.contradicting if shard < num_shards]

    def finished(self) -> TableBuilder:
        """Give the builder, which has all shards."""
        held, self._held = self._held, []
        if self._held_by is not None and held:
            begin = self._builder.num_shards
            self.contradicting += [begin + bad for bad in self._held_by.add(held, self._builder)]
        return self._builder

    def document(self, text: str) -> dict[str, Any]:
        """Add the shards of an index; give its other keys."""
        self._text = text
        found: dict[str, Any] = {}
        begin = _USUAL_BEGIN.match(text)
        key, at = ("shards", begin.end()) if begin is not None else self._key(self._expect("{", 0))
        while True:
            if key in found:
                raise FormatError(f"the key {key!r:.80} is there twice")
            if key == "shards":
                at = self._shards(at)
                if not found and _USUAL_END.match(text, at) is not None:
                    return {"version": 2}
                found[key] = None
            else:
                found[key], at = self._decode(self._text, at)
            at = self._skip(at)
            if self._text[at : at + 1] == "}":
                break
            key, at = self._key(self._expect(",", at))
        if "shards" not in found or self._skip(at + 1) != len(self._text):
            raise FormatError("no list of shards, or more text behind the document")
        del found["shards"]
        return found

    def _key(self, at: int) -> tuple[str, int]:
        """Parse a key; return it and where its value begins."""
        key, at = self._decode(self._text, at)
        if not isinstance(key, str):
            raise FormatError("a key that is no string")
        return key, self._expect(":", self._skip(at))

    def _shards(self, at: int) -> int:
        """Parse the list that begins at ``at``; return where it ends."""
        text = self._text
        at = self._expect("[", at)
        if text[at : at + 1] == "]":
            return at + 1
        while True:
            for pattern in self._patterns:
                taken, at = self._take(pattern, at)
                if taken:
                    break
            else:
                begin = at
                entry, at = self._decode(text, begin)
                info = self._parser.entry(entry)
                self.finished().add(info)
                if len(self._patterns) < _MOST_PATTERNS:
                    known = _REMEMBERED.pattern(text[begin:at], entry, info)
                    if known is not None and known not in self._patterns:
                        self._patterns.append(known)
            at = self._skip(at)
            if text[at : at + 1] == "]":
                return at + 1
            at = self._expect(",", at)

    def _take(self, pattern: _Pattern, at: int) -> tuple[bool, int]:
        """Hold the entries from ``at`` on that match; return whether any does, and where the last one ends."""
        found = pattern.take(self._text, at)
        if not found:
            return False, at
        if pattern is not self._held_by or len(self._held) >= _AT_ONCE:
            self.finished()
            self._held_by = pattern
        self._held += [match.groups() for match in found]
        return True, found[-1].end()

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()

    def _expect(self, character: str, at: int) -> int:
        """Return where the text goes on behind a character and white space."""
        if self._text[at : at + 1] != character:
            raise FormatError(f"no {character!r} at character {at}")
        return self._skip(at + 1)


class _Pattern:
    """The text of an entry with its names, hash values and counts left open."""

    def __init__(self, expression: str, kind: Kind, places: Mapping[tuple[str, ...], int]) -> None:
        self._match = re.compile(expression).match
        self._kind = kind
        self._num_samples = places["samples",]
        self._raw_nbytes = places["raw_data", "bytes"]
        strings = [places["raw_data", "basename"]]
        strings += [places["raw_data", "hashes", name] for name in kind.raw_hashes]
        self._compressed_nbytes: int | None = None
        if kind.compressed_hashes is not None:
            self._compressed_nbytes = places["zip_data", "bytes"]
            strings.append(places["zip_data", "basename"])
            strings += [places["zip_data", "hashes", name] for name in kind.compressed_hashes]
        self._strings = itemgetter(*strings)
        self._one_string = len(strings) == 1

    @classmethod
    def of(cls, text: str, entry: dict[str, Any], info: ShardInfo) -> _Pattern | None:
        """Make the pattern of an entry that was found to be good; None for one written in an unusual way."""
        write = next((write for write in _WRITERS if write(entry) == text), None)
        if write is None or len(text) > _LONGEST_PATTERN:
            return None
        opened = copy.deepcopy(entry)
        token = secrets.token_hex(8)
        kinds: list[str] = []
        places: dict[tuple[str, ...], int] = {}

        def leave_open(kind: str, *path: str) -> None:
            places[path] = len(kinds)
            inner = opened
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = f"{token}{len(kinds)};"
            kinds.append(kind)

        leave_open("count", "samples")
        for key, file in (("raw_data", info.raw), ("zip_data", info.compressed)):
            if file is not None:
                leave_open("name", key, "basename")
                leave_open("count", key, "bytes")
                for name in file.hashes:
                    leave_open("hash", key, "hashes", name)
        pieces = re.split(f'"{token}([0-9]+);"', write(opened))
        # Groups count in the order of the text, places in the order in which they were left open.
        order = [int(number) for number in pieces[1::2]]
        if sorted(order) != list(range(len(kinds))):
            return None
        expression = re.escape(pieces[0]) + "".join(
            _OPEN[kinds[number]] + re.escape(literal)
            for number, literal in zip(order, pieces[2::2], strict=True)
        )
        return cls(expression, Kind.of(info), {path: order.index(place) for path, place in places.items()})

    def fits(self, text: str) -> bool:
        """Whether an entry begins as the pattern does, and so is written in the same way."""
        return self._match(text) is not None

    def take(self, text: str, at: int) -> list[re.Match[str]]:
        """Find the entries from ``at`` on that match, some thousand at most."""
        found: list[re.Match[str]] = []
        match = self._match
        while len(found) < _AT_ONCE:
            here = match(text, at)
            if here is None:
                break
            found.append(here)
            end = here.end()
            if text.startswith(", ", end):
                at = end + 2
            elif text.startswith(",", end):
                at = end + 1
            else:
                break
        return found

    def add(self, found: list[tuple[str, ...]], builder: TableBuilder) -> list[int]:
        """Add entries to a builder; give the places of those whose counts contradict each other."""
        num_samples = self._counts(found, self._num_samples)
        raw_nbytes = self._counts(found, self._raw_nbytes)
        compressed = None
        if self._compressed_nbytes is not None:
            compressed = self._counts(found, self._compressed_nbytes)
        chosen = map(self._strings, found)
        strings = list(chosen) if self._one_string else list(itertools.chain.from_iterable(chosen))
        builder.add_alike(self._kind, num_samples, raw_nbytes, compressed, strings)
        samples, nbytes = np.frombuffer(num_samples, np.int64), np.frombuffer(raw_nbytes, np.int64)
        contradicts = (samples > (nbytes - 8) // 4) | (nbytes >= 1 << 32)
        bad: list[int] = np.flatnonzero(contradicts).tolist()
        return bad

    @staticmethod
    def _counts(found: list[tuple[str, ...]], place: int) -> array[int]:
        return array("q", map(int, map(itemgetter(place), found)))


class _Remembered:
    """How often entries of a kind were parsed, and the pattern of those that came often; the last kinds only.

    Threads may use it at once: at worst they count one entry less, or make a pattern twice.
    """

    def __init__(self) -> None:
        self._counts: dict[Kind, int] = {}
        self._patterns: dict[Kind, _Pattern] = {}

    def pattern(self, text: str, entry: dict[str, Any], info: ShardInfo) -> _Pattern | None:
        """Count an entry that was parsed; return the pattern of its kind if there is one by now."""
        kind = Kind.of(info)
        found = self._patterns.get(kind)
        if found is not None and found.fits(text):
            return found
        found = None
        count = self._counts.pop(kind, 0) + 1
        if count >= _ALIKE_BEFORE_PATTERN:
            count = 0
            found = _Pattern.of(text, entry, info)
            if found is not None:
                self._patterns[kind] = found
                _shorten(self._patterns)
        self._counts[kind] = count
        _shorten(self._counts)
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._counts.clear()
        self._patterns.clear()


def _shorten(known: dict[Kind, Any]) -> None:
    """Forget the eldest ones."""
    for kind in list(known)[: max(0, len(known) - _MOST_REMEMBERED)]:
        known.pop(kind, None)


_REMEMBERED = _Remembered()
