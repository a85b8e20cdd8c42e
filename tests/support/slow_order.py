"""The order of one stream once more: slow, in plain integers and lists, written from the design's text.

It shares nothing with the package but the numbers of the key uses (they are part of the promise) and, where a
piece has 2**16 samples or more, the Feistel bijection.
"""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np

from streamshard.order.keys import Key
from streamshard.order.permutation import Bijection


def words(use: int, seed: int, stream: int, turn: int, place: int, item: int, count: int) -> list[int]:
    entropy: list[int] = []
    for part in (use, seed, stream, turn, place, item):
        entropy += [part % 2**32, part // 2**32]
    generator = np.random.Philox(np.random.SeedSequence(np.array(entropy, dtype=np.uint32)))
    return [int(word) for word in generator.random_raw(count)]


def shuffled(items: list, *key: int) -> list:
    n = len(items)
    if n < 2:
        return list(items)
    bits = (n - 1).bit_length()
    drawn = words(*key, n)
    ranked = sorted((word // 2**bits, number) for number, word in enumerate(drawn))
    return [items[number] for _, number in ranked]


def default_lanes(shards: int) -> int:
    lanes = 1
    while lanes * 2 <= min(64, shards / 2):
        lanes *= 2
    return lanes


def lane_turns(lanes: list[int], drawn: list[int]) -> list[int]:
    """λ of a range of lanes; ``drawn`` is used up from the front."""
    total = len(lanes)
    if total == 1:
        return lanes
    half = total // 2
    h = drawn.pop(0) % total
    first = lane_turns(lanes[:half], drawn)
    rest = lane_turns(lanes[half:], drawn)
    merged = []
    for p in range(total):
        rank = (p * half + h) // total
        if ((p + 1) * half + h) // total > rank:
            merged.append(first[rank])
        else:
            merged.append(rest[p - rank])
    return merged


class SlowStream:
    def __init__(self, sizes, *, seed, stream=0, shuffle="sliding", lanes=None, window=None):
        self.sizes, self.seed, self.stream, self.shuffle = list(sizes), seed, stream, shuffle
        self.n = sum(sizes)
        shards = len([size for size in sizes if size])
        self.lanes = 1 if shuffle in ("full", "none") else (lanes or default_lanes(shards))
        self.window = window or max(2, 128 // self.lanes)
        self._passes: dict[int, list[tuple[int, int, int]]] = {}

    def at(self, index: int) -> tuple[int, int, int]:
        """(sample, lane, row) of an index of the infinite walk."""
        turn = index // self.n
        if turn not in self._passes:
            self._passes[turn] = self._pass(turn)
        return self._passes[turn][index % self.n]

    def lane_pieces(self, lane: int) -> tuple[list[list[int]], bool, bool]:
        """Sample ids of each piece of a lane, in run order, and whether its first and last border cut a shard."""
        order = list(range(len(self.sizes)))
        order = shuffled(order, 1, self.seed, self.stream, 0, 0, 0)
        run = [(shard, sum(self.sizes[:shard]) + row) for shard in order for row in range(self.sizes[shard])]
        begin, end = lane * self.n // self.lanes, (lane + 1) * self.n // self.lanes
        pieces: list[list[int]] = []
        last = None
        for shard, sample in run[begin:end]:
            if shard != last:
                pieces.append([])
            pieces[-1].append(sample)
            last = shard
        cut = [0 < border < self.n and run[border - 1][0] == run[border][0] for border in (begin, end)]
        return pieces, cut[0], cut[1]

    def reversed_bits(self, lane: int) -> tuple[int, int]:
        bits = (self.lanes - 1).bit_length()
        return sum(((lane >> bit) & 1) << (bits - 1 - bit) for bit in range(bits)), 2**bits

    def ordered_pieces(self, turn: int, lane: int, k: int) -> list[list[int]]:
        """A lane's pieces in the order of a pass."""
        pieces, first_cut, last_cut = self.lane_pieces(lane)
        numbers = shuffled(list(range(len(pieces))), 3, self.seed, self.stream, turn, lane, 0)
        cut = {}
        if len(pieces) > 1:
            cut = {0: lane} if first_cut else {}
            if last_cut:
                cut[len(pieces) - 1] = lane + 1
        whole = [pieces[number] for number in numbers if number not in cut]
        if self.shuffle == "block" and len(whole) > 2 * k:
            alike = []
            for number, begin in enumerate(range(0, len(whole), 2 * k)):
                down = (number + lane + turn) % 2 == 1
                alike += sorted(whole[begin : begin + 2 * k], key=lambda p: -len(p) if down else len(p))
            whole = alike
        ends = [sum(map(len, whole[: number + 1])) for number in range(len(whole))]
        u = words(9, self.seed, self.stream, turn, 0, 0, 1)[0] // 2**32
        placed = []
        for number, border in cut.items():
            t = (u + border * 2654435769) % 2**32
            if len(whole) >= 2 * k:
                low, high = ends[k - 1], ends[len(whole) - k]
                row = low + (high - low) * t // 2**32
                place = len([end for end in ends if end <= row])
            else:
                place, t = (0, 0) if border == lane else (len(whole), 1)
            placed.append((place, t, number))
        for place, _, number in sorted(placed, reverse=True):
            whole.insert(place, pieces[number])
        return whole

    def blocks(self, turn: int, lane: int) -> list[list[int]]:
        def permuted(samples: list, use: int, item: int) -> list:
            return shuffled(samples, use, self.seed, self.stream, turn, lane, item)

        k = 1 if self.shuffle == "shard" else self.window
        pieces = self.ordered_pieces(turn, lane, k)
        if not pieces:
            return []
        if self.shuffle == "block":
            return [
                permuted([sample for piece in group for sample in piece], 5, number)
                for number, group in enumerate(self.groups(pieces, lane))
            ]
        k, n = min(k, len(pieces)), len(pieces)
        dealt = self.dealt(pieces, k)
        tracks: list[list[int]] = []
        item = 0
        for track in dealt:
            tracks.append([])
            for piece in track:
                if len(piece) >= 2**16:
                    walk = Bijection(Key(4, self.seed, self.stream, turn, lane, item), len(piece))
                    tracks[-1] += [piece[i] for i in walk.span(0, len(piece)).tolist()]
                else:
                    tracks[-1] += permuted(piece, 4, item)
                item += 1
        even = [len(track) * min(4 * k, n) // (2 * n) if n > k else 0 for track in tracks]
        ahead = self.head_starts(even, lane)
        knots = [
            [0] * k,
            [e + a for e, a in zip(even, ahead, strict=True)],
            [len(track) - e + a for track, e, a in zip(tracks, even, ahead, strict=True)],
            [len(track) for track in tracks],
        ]
        blocks: list[list[int]] = []
        for before, after in itertools.pairwise(knots):
            steps = -(-(sum(after) - sum(before)) // max(2048, 64 * k))
            for step in range(steps):
                parts = []
                for track, a, b in zip(tracks, before, after, strict=True):
                    parts.append(track[a + (b - a) * step // steps : a + (b - a) * (step + 1) // steps])
                blocks.append(self.step(parts, turn, lane, len(blocks)))
        return blocks

    def groups(self, pieces: list[list[int]], lane: int) -> list[list[list[int]]]:
        """Blocks of nearly the same size, ⌊place + 1/2⌋, the first one of 1/2 to 3/2."""
        numerator, denominator = self.reversed_bits(lane)
        blocks = -(-len(pieces) // self.window)
        edges = [0]
        for number in range(1, blocks):
            place = Fraction(len(pieces), blocks) * (
                number + Fraction(2 * numerator + 1, 2 * denominator) - Fraction(1, 2)
            )
            edges.append(int(place + Fraction(1, 2)))
        return [pieces[a:b] for a, b in zip(edges, [*edges[1:], len(pieces)], strict=True)]

    def dealt(self, pieces: list[list[int]], k: int) -> list[list[list[int]]]:
        tracks: list[list[list[int]]] = [[] for _ in range(k)]
        full = len(pieces) // k * k
        for number, begin in enumerate(range(0, full, k)):
            group = sorted(pieces[begin : begin + k], key=len)
            if number % 2:
                group.reverse()
            for track, piece in zip(tracks, group, strict=True):
                track.append(piece)
        shortest = sorted(range(k), key=lambda track: sum(map(len, tracks[track])))
        for track, piece in zip(shortest, sorted(pieces[full:], key=lambda p: -len(p)), strict=False):
            tracks[track].append(piece)
        return tracks

    def head_starts(self, even: list[int], lane: int) -> list[int]:
        numerator, denominator = self.reversed_bits(lane)
        k = len(even)
        most = sum(even) // (2 * k)
        starts: list[int] = []
        for pair in range(k // 2):
            members = even[2 * pair :] if pair == k // 2 - 1 else even[2 * pair : 2 * pair + 2]
            share = (pair + Fraction(2 * numerator + 1, 2 * denominator)) / (2 * (k // 2))
            ahead = min(int(most * share), min(members) // 2)
            starts += [ahead, -ahead] if len(members) == 2 else [ahead, -(ahead // 2), ahead // 2 - ahead]
        return starts or [0]

    def step(self, parts: list[list[int]], turn: int, lane: int, number: int) -> list[int]:
        """Row i of x of a track's is at (i + random) / x of the step."""
        if len(parts) == 1:
            return parts[0]
        total = sum(map(len, parts))
        bits = max(24, total.bit_length())
        drawn = iter(words(5, self.seed, self.stream, turn, lane, number, total))
        found = []
        for part in parts:
            for i, sample in enumerate(part):
                stretch = 2 ** (64 - bits) // len(part)
                chance = next(drawn) // 2 ** (64 - bits)
                found.append((i * stretch + chance * stretch // 2**bits, len(found), sample))
        return [sample for _, _, sample in sorted(found)]

    def _pass(self, turn: int) -> list[tuple[int, int, int]]:
        n, count = self.n, self.lanes
        if self.shuffle == "none":
            return [(place, 0, place) for place in range(n)]
        if self.shuffle == "full":
            return [
                (s, 0, p)
                for p, s in enumerate(shuffled(list(range(n)), 6, self.seed, self.stream, turn, 0, 0))
            ]
        turns = lane_turns(list(range(count)), words(2, self.seed, self.stream, turn, 0, 0, count - 1))
        walks = [[sample for block in self.blocks(turn, lane) for sample in block] for lane in range(count)]
        longer = [lane for lane in turns if len(walks[lane]) > n // count]
        visits = [turns[q % count] for q in range(count * (n // count))] + longer
        rows = [0] * count
        placed = []
        for lane in visits:
            placed.append((walks[lane][rows[lane]], lane, rows[lane]))
            rows[lane] += 1
        return placed


class SlowMixture:
    """Stream and rank of every position of one epoch, enumerated."""

    def __init__(self, samples: list[int], *, seed: int, epoch: int, permuted: bool):
        trees = [(n, stream, stream) for stream, n in enumerate(samples) if n]
        while len(trees) > 1:
            trees.sort(key=lambda tree: tree[:2])
            light, heavy = trees[:2]
            if light[0] == heavy[0]:
                light, heavy = heavy, light
            trees = [*trees[2:], (light[0] + heavy[0], min(light[1], heavy[1]), (heavy, light))]
        total = sum(samples)
        labels = [self._label(trees[0], position) for position in range(total)]
        if permuted:
            runs = [labels[begin : begin + 4096] for begin in range(0, total, 4096)]
            labels = [
                x for number, run in enumerate(runs) for x in shuffled(run, 7, seed, 0, epoch, 0, number)
            ]
        seen = [0] * len(samples)
        self.spots = []
        for stream in labels:
            self.spots.append((stream, seen[stream]))
            seen[stream] += 1

    def _label(self, tree, p: int) -> int:
        total, _, below = tree
        while not isinstance(below, int):
            first, rest = below
            h = total // 2
            rank = (p * first[0] + h) // total
            if ((p + 1) * first[0] + h) // total > rank:
                p, (total, _, below) = rank, first
            else:
                p, (total, _, below) = p - rank, rest
        return below


def mixed_batch(
    streams: list[SlowStream], samples: list[int], mixture: SlowMixture, epoch: int, begin: int, end: int
):
    """Samples of positions begin … end-1 of a mixed epoch in the order in which a batch of them is cut."""
    rows = []
    for stream, rank in mixture.spots[begin:end]:
        walk = streams[stream]
        sample, lane, row = walk.at(epoch * samples[stream] + rank)
        key = (lane * 2**32 + row * 2654435769 % 2**32) // walk.lanes
        rows.append((key, sample + sum(other.n for other in streams[:stream])))
    if any(walk.shuffle != "none" for walk in streams):
        rows.sort(key=lambda found: found[0])
    return [sample for _, sample in rows]


def global_batch(stream: SlowStream, samples_per_epoch: int, epoch: int, begin: int, end: int) -> list[int]:
    """Samples of positions begin … end-1 of an epoch in the order in which a batch of them is cut."""
    spots = [stream.at(epoch * samples_per_epoch + position) for position in range(begin, end)]
    if stream.shuffle != "none":
        spots.sort(key=lambda spot: (spot[1] * 2**32 + spot[2] * 2654435769 % 2**32) // stream.lanes)
    return [sample for sample, _, _ in spots]


def rank_part(
    stream: SlowStream,
    samples_per_epoch: int,
    epoch: int,
    begin: int,
    end: int,
    ranks: int,
    rank: int,
    remainder: str,
) -> tuple[list[int], int]:
    """(samples, padding at their end) of one rank in the short batch that ends the epoch."""
    batch = global_batch(stream, samples_per_epoch, epoch, begin, end)
    size = len(batch)
    if remainder == "exact":
        return batch[rank::ranks], 0
    cuts = [r * size // ranks for r in range(ranks + 1)]
    width = -(-size // ranks)
    missing = [width - (cuts[r + 1] - cuts[r]) for r in range(ranks)]
    pads = list(range(samples_per_epoch - sum(missing), samples_per_epoch))
    mine = pads[sum(missing[:rank]) : sum(missing[: rank + 1])]
    repeated = [stream.at(epoch * samples_per_epoch + position % samples_per_epoch)[0] for position in mine]
    return batch[cuts[rank] : cuts[rank + 1]] + repeated, len(repeated)
