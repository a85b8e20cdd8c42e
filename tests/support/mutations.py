"""Bytes made from other bytes by seeded damage: quick, so that millions can be made, and repeatable by seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

_WORDS = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0x10000, 2**31 - 1, 2**31, 2**32 - 1]
_LONG = [*_WORDS, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]
_TEXTS = [
    b"null", b"true", b"-1", b"0", b"1e400", b"NaN", b"Infinity", b"-Infinity", b"1.5", b"9" * 30, b"9" * 5000,
    b'""', b'"..\\/x"', b'"/etc/passwd"', b'"\\u0000"', b'"a\\\\b"', b'"\\ud800"', b"{}", b"[]", b"[" * 3000,
    b'{"a":' * 2000, b'"shards": [], ', b'"version": 3, ', b'"mds"', b'"pkl"', b'"ndarray:uint8:0"', b'"zstd:99"',
    b"\xff\xfe", b"\x00", b"\xef\xbb\xbf", b",", b":", b"}", b"]", b'"', b"\\",
]  # fmt: skip


class Mutator:
    """Damages seeds. One seed number gives one sequence."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._ways: list[Callable[[bytearray, bytes], None]] = [
            self._flip, self._byte, self._word, self._long, self._cut, self._remove, self._repeat, self._insert,
            self._splice, self._text, self._number,
        ]  # fmt: skip

    def mutate(self, seeds: Sequence[bytes]) -> bytes:
        """Damage one of ``seeds`` in one to four ways."""
        rng = self._rng
        content = bytearray(rng.choice(seeds))
        other = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
            rng.choice(self._ways)(content, other)
        return bytes(content)

    def _at(self, content: bytearray) -> int:
        # Heads and tails are where counts and lengths lie.
        size = len(content)
        if size > 64 and self._rng.random() < 0.4:
            return self._rng.randrange(64)
        return self._rng.randrange(size + 1)

    def _flip(self, content: bytearray, _: bytes) -> None:
        if content:
            content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)

    def _byte(self, content: bytearray, _: bytes) -> None:
        if content:
            content[min(self._at(content), len(content) - 1)] = self._rng.randrange(256)

    def _word(self, content: bytearray, _: bytes) -> None:
        at = self._at(content)
        if self._rng.random() < 0.7:
            at &= ~3
        content[at : at + 4] = self._rng.choice(_WORDS).to_bytes(4, "little")

    def _long(self, content: bytearray, _: bytes) -> None:
        at = self._at(content) & ~7
        content[at : at + 8] = self._rng.choice(_LONG).to_bytes(8, "little")

    def _cut(self, content: bytearray, _: bytes) -> None:
        del content[self._at(content) :]

    def _remove(self, content: bytearray, _: bytes) -> None:
        at = self._at(content)
        del content[at : at + self._rng.choice((1, 1, 2, 4, 8, 40))]

    def _repeat(self, content: bytearray, _: bytes) -> None:
        at = self._at(content)
        content[at:at] = content[at : at + self._rng.choice((1, 4, 8, 60))] * self._rng.choice((1, 1, 2, 50))

    def _insert(self, content: bytearray, _: bytes) -> None:
        at = self._at(content)
        content[at:at] = self._rng.randbytes(self._rng.choice((1, 1, 2, 4, 9)))

    def _splice(self, content: bytearray, other: bytes) -> None:
        at, there = self._at(content), self._rng.randrange(len(other) + 1)
        content[at:] = other[there:]

    def _text(self, content: bytearray, _: bytes) -> None:
        at = self._at(content)
        content[at : at + self._rng.choice((0, 1, 4))] = self._rng.choice(_TEXTS)

    def _number(self, content: bytearray, _: bytes) -> None:
        """Replace a run of digits near some place, as JSON has them."""
        begin = self._at(content)
        end = len(content)
        while begin < end and not 48 <= content[begin] < 58:
            begin += 1
        last = begin
        while last < end and 48 <= content[last] < 58:
            last += 1
        if begin < end:
            content[begin:last] = self._rng.choice(_TEXTS[:10])
