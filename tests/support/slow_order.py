"""The order of one stream once more: slow, in plain integers and lists, written from the design's text.

It shares nothing with the package but the numbers of the key uses (they are part of the promise) and, where a
piece has 2**16 samples or more, the Feistel bijection.
"""

from __future__ import annotations

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

    def lane_pieces(self, lane: int) -> list[list[int]]:
        """Sample ids of each piece of a lane, in run order."""
        order = list(range(len(self.sizes)))
        order = shuffled(order, 1, self.seed, self.stream, 0, 0, 0)
        run = [(shard, sum(self.sizes[:shard]) + row) for shard in order for row in range(self.sizes[shard])]
        mine = run[lane * self.n // self.lanes : (lane + 1) * self.n // self.lanes]
        pieces: list[list[int]] = []
        last = None
        for shard, sample in mine:
            if shard != last:
                pieces.append([])
            pieces[-1].append(sample)
            last = shard
        return pieces

    def blocks(self, turn: int, lane: int) -> list[list[int]]:
        pieces = shuffled(self.lane_pieces(lane), 3, self.seed, self.stream, turn, lane, 0)
        bits = (self.lanes - 1).bit_length()
        reversed_lane = sum(((lane >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
        if len(pieces) >= 16:
            cut = len(pieces[0]) * reversed_lane // 2**bits
            pieces = [pieces[0][:cut], *pieces[1:], pieces[0][cut:]]
            pieces = [piece for piece in pieces if piece]

        def permuted(samples: list, use: int, item: int) -> list:
            return shuffled(samples, use, self.seed, self.stream, turn, lane, item)

        if self.shuffle == "shard":
            return [permuted(piece, 4, number) for number, piece in enumerate(pieces)]
        k, total = self.window, len(pieces)
        if total <= k:
            return [permuted([sample for piece in pieces for sample in piece], 5, 0)]
        if self.shuffle == "block":
            edges = [edge for edge in range(k * reversed_lane // 2**bits, total, k) if edge]
            if edges and edges[0] < k / 2:
                edges = edges[1:]
            if edges and total - edges[-1] < k / 2:
                edges = edges[:-1]
            groups = [pieces[a:b] for a, b in zip([0, *edges], [*edges, total], strict=True)]
            return [
                permuted([s for piece in group for s in piece], 5, number)
                for number, group in enumerate(groups)
            ]
        parts: list[list[list[int]]] = [[] for _ in range(total + k - 1)]
        for t, piece in enumerate(pieces):
            if len(piece) >= 2**16:
                walk = Bijection(Key(4, self.seed, self.stream, turn, lane, t), len(piece))
                piece = [piece[i] for i in walk.span(0, len(piece)).tolist()]
            else:
                piece = permuted(piece, 4, t)
            for j in range(k):
                parts[t + j].append((t, piece[j * len(piece) // k : (j + 1) * len(piece) // k]))
        joined = [parts[:k], *([part] for part in parts[k : total - 1]), parts[total - 1 :]]
        # The order before the permutation: piece by piece, the parts of each in their order.
        flat = []
        for number, group in enumerate(joined):
            by_piece = sorted((t, nth, samples) for nth, block in enumerate(group) for t, samples in block)
            flat.append(permuted([sample for _, _, samples in by_piece for sample in samples], 5, number))
        return flat

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
