"""Mixing streams: which stream the sample at a position comes from.

Exact and in closed form: a binary tree over the streams, and at each node a rule that gives any run of positions
to the two children in their share. After any prefix of an epoch each stream is within 1.5 samples of its share.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# A run of positions times the total below which floats divide exactly enough: 1 / total is then some 8 times the
# rounding errors.
_EXACT_IN_FLOATS = 1 << 48
_EXACT_IN_INTEGERS = 1 << 62
_SHORTEST = 1 << 12  # runs of positions for which floats are worth it
_TILE = 1 << 14  # places followed at once, so that they stay in the processor's cache
_WIDTHS = (16, 32, 64, 128)
_ROW = 8  # what a row of places costs, in places


class _State(NamedTuple):
    """Where the tree stands before a position.

    Attributes:
        position: the position.
        below: of each inner node, then of each stream, the positions before this one that are its own, int64.
        rests: of each inner node with p of them, (p·share + total // 2) mod total; int64.
    """

    position: int
    below: NDArray[np.int64]
    rests: NDArray[np.int64]


class Mixture:
    """The stream labels of one epoch, in which stream s has ``samples[s]`` positions (0 is allowed).

    The tree is kept as arrays over its inner nodes, children after parents. What a stream has of a run of positions
    is followed from the stream to the root, all streams side by side.

    Raises:
        ValueError: all numbers are 0, or one is negative.
    """

    def __init__(self, samples: Sequence[int]) -> None:
        if not any(samples) or min(samples) < 0:
            raise ValueError(
                f"samples of streams in an epoch {list(samples)}: expected numbers >= 0, one at least > 0"
            )
        self.samples = tuple(samples)
        self.total = sum(samples)
        # Of each inner node: its children, inner nodes or, from the number of these on, streams; and of every
        # ``total`` positions the first child's.
        self._children, self._shares, self._totals = _huffman(self.samples)
        self._child = np.array(self._children, dtype=np.int64).reshape(-1, 2)
        self._share = np.array(self._shares, dtype=np.int64)
        self._whole = np.array(self._totals, dtype=np.int64)
        # A branch leads from a node to a child: the parts of its node's total, and the branch above it.
        self._parts = np.stack((self._share, self._whole - self._share), axis=1).ravel()
        to_child = np.full(len(self._shares) + len(samples), -1, dtype=np.int64)
        to_child[self._child.ravel()] = np.arange(self._child.size)
        self._above = np.repeat(to_child[: len(self._shares)], 2)
        self._branch = to_child[len(self._shares) :]
        self._levels, self._depth = self._by_depth()
        self._deepest_first = np.argsort(-self._depth, kind="stable")
        self._held: _State | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": None}

    def before(self, position: int) -> list[int]:
        """Count each stream's labels before a position (0 to the total)."""
        found: list[int] = self._at(position).below[len(self._shares) :].tolist()
        return found

    def labels(self, begin: int, end: int) -> NDArray[np.int64]:
        """Give the streams of positions begin … end-1, shape (end - begin,)."""
        return self.labels_and_counts(begin, end)[0]

    def labels_and_counts(self, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give the streams of positions begin … end-1, and each stream's labels before ``begin``."""
        state = self._at(begin)
        counts = state.below[len(self._shares) :]
        labels = np.empty(end - begin, dtype=np.int64)
        if not self._shares:
            labels[:] = next(stream for stream, n in enumerate(self.samples) if n)
            return labels, counts
        most = _EXACT_IN_FLOATS // self.total
        in_floats = most >= _SHORTEST
        if not in_floats:
            most = max(1, _EXACT_IN_INTEGERS // self.total)
        for start in range(begin, end, most):
            stop = min(end, start + most)
            after = self._moved(state, stop - start)
            here = (after.below - state.below)[len(self._shares) :]
            follow = self._followed if in_floats else self._followed_wide
            follow(labels[start - begin : stop - begin], state.rests, here)
            state = after
        return labels, counts

    def _by_depth(self) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """Give the inner nodes of each depth, and each stream's depth."""
        inner = len(self._shares)
        depth = np.zeros(len(self.samples), dtype=np.int64)
        levels: list[NDArray[np.int64]] = []
        nodes = np.arange(min(1, inner))
        while nodes.size:
            levels.append(nodes)
            children = self._child[nodes].ravel()
            depth[children[children >= inner] - inner] = len(levels)
            nodes = children[children < inner]
        return levels, depth

    def _at(self, position: int) -> _State:
        """Give the state before a position; quickly if it is soon after the one that was asked for last."""
        held = self._held
        if held is None or not 0 <= position - held.position <= _EXACT_IN_INTEGERS // self.total:
            held = self._begin(position)
        elif position > held.position:
            held = self._moved(held, position - held.position)
        self._held = held
        return held

    def _begin(self, position: int) -> _State:
        # In Python's integers: the products have up to 106 bits.
        inner = len(self._shares)
        below = [0] * (inner + len(self.samples))
        rests = [0] * inner
        below[0 if inner else next(stream for stream, n in enumerate(self.samples) if n)] = position
        for node, ((first, rest), share, total) in enumerate(
            zip(self._children, self._shares, self._totals, strict=True)
        ):
            p = below[node]
            taken, rests[node] = divmod(p * share + total // 2, total)
            below[first], below[rest] = taken, p - taken
        return _State(position, np.array(below, dtype=np.int64), np.array(rests, dtype=np.int64))

    def _moved(self, state: _State, steps: int) -> _State:
        """Give the state some positions later: such that their product with the total is at most 2**62."""
        rests = state.rests.copy()
        more = np.zeros_like(state.below)
        more[0 if self._shares else next(stream for stream, n in enumerate(self.samples) if n)] = steps
        for nodes in self._levels:
            p = more[nodes]
            taken, rests[nodes] = np.divmod(p * self._share[nodes] + state.rests[nodes], self._whole[nodes])
            more[self._child[nodes]] = np.stack((taken, p - taken), axis=1)
        return _State(state.position + steps, state.below + more, rests)

    def _followed(
        self, labels: NDArray[np.int64], rests: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Fill in the labels of the positions after a place at which the nodes have ``rests``; counts: of each stream.

        Number j, from 0, of a child that gets A of T positions is number ⌊((j + 1)·T - rest - 1) / A⌋ of its node;
        for the second child the rest is T - 1 - rest. In floats: half a step more keeps every quotient so far from
        the next integer that rounding cannot matter. Rows of one stream each are followed at once; places that fill
        up its last row come after the last position.
        """
        whole, rest = np.repeat(self._whole, 2), np.repeat(rests, 2)
        rest[0::2] = self._whole - 1 - rests
        slopes, starts = whole / self._parts, (rest + 0.5) / self._parts
        streams = self._deepest_first[counts[self._deepest_first] > 0]
        counts = counts[streams]
        widths = (*_WIDTHS, min(int(counts.max()), _TILE))
        width = min(widths, key=lambda width: int((-(-counts // width)).sum()) * (width + _ROW))
        rows = -(-counts // width)
        stream = np.repeat(streams, rows)
        first = (np.arange(stream.size) - np.repeat(np.cumsum(rows) - rows, rows)) * width
        depth = self._depth[stream]
        in_row = np.arange(width, dtype=np.float64)
        found = np.empty(labels.size + 1, dtype=np.int64)
        at_once = max(1, _TILE // width)
        for begin in range(0, stream.size, at_once):
            some = slice(begin, begin + at_once)
            places = first[some, None] + in_row
            branch = self._branch[stream[some]]
            depths = depth[some]
            for level in range(int(depths[0])):
                # Deep streams come first.
                branch = branch[: int(np.count_nonzero(depths > level))]
                lower = places[: branch.size]
                lower *= slopes[branch, None]
                lower += starts[branch, None]
                np.floor(lower, out=lower)
                branch = self._above[branch]
            np.minimum(places, labels.size, out=places)
            found[places.astype(np.int64).ravel()] = np.repeat(stream[some], width)
        labels[:] = found[:-1]

    def _followed_wide(
        self, labels: NDArray[np.int64], rests: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """The same in integers, for any numbers."""
        streams = self._deepest_first
        counts = counts[streams]
        stream = np.repeat(streams, counts)
        places = np.arange(stream.size) - np.repeat(np.cumsum(counts) - counts, counts)
        branch, depth = self._branch[stream], self._depth[stream]
        for level in range(int(depth[0])):
            branch = branch[: int(np.count_nonzero(depth > level))]
            node = branch // 2
            lower = places[: branch.size]
            lower *= self._whole[node]
            lower += np.where(branch % 2, rests[node], self._whole[node] - 1 - rests[node])
            lower //= self._parts[branch]
            branch = self._above[branch]
        labels[places] = stream


def _huffman(samples: Sequence[int]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    """Join the two lightest nodes until one is left; ties by stream number, the heavier child first.

    Gives the children of each inner node, the root first (stream s is number s after the last inner node), the first
    child's samples, and its own.
    """
    # The first stream below names a node, so no two entries tie.
    heap = [(n, stream, ~stream) for stream, n in enumerate(samples) if n]
    heapq.heapify(heap)
    made: list[tuple[int, int, int, int]] = []
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        if light[0] == heavy[0]:
            light, heavy = heavy, light
        total = light[0] + heavy[0]
        made.append((heavy[2], light[2], heavy[0], total))
        heapq.heappush(heap, (total, min(light[1], heavy[1]), len(made) - 1))
    last = len(made) - 1
    # Inner nodes are counted from the last one made, which is the root.

    def turned(child: int) -> int:
        return last - child if child >= 0 else len(made) + ~child

    children = [(turned(first), turned(rest)) for first, rest, _, _ in reversed(made)]
    return children, [share for _, _, share, _ in reversed(made)], [total for *_, total in reversed(made)]
