"""Faults of the network, drawn by a seed, such that whoever tries again as often as is usual gets through."""

from __future__ import annotations

import random
import threading
from collections import Counter

from tests.support.faulty_proxy import Fault

SHARE = 0.12
"""Of the requests, how many meet a fault."""

_STATUSES = [(503, "SlowDown"), (500, "InternalError"), (503, "ServiceUnavailable"), (429, "TooManyRequests")]


class RandomFaults:
    """Called by the proxy for each request.

    A fault of a path is followed by a sound answer: two silent connections in a row would use up the time limit of
    the request, and then its failure would be right.
    """

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(f"{seed} faults")
        self._lock = threading.Lock()
        self._spared: set[str] = set()
        self.met: Counter[str] = Counter()

    def __call__(self, method: str, path: str) -> Fault | None:
        del method
        plain = path.partition("?")[0]
        with self._lock:
            if plain in self._spared:
                self._spared.discard(plain)
                return None
            if self._rng.random() >= SHARE:
                return None
            self._spared.add(plain)
            name, fault = self._draw()
            self.met[name] += 1
            return fault

    def _draw(self) -> tuple[str, Fault]:
        rng = self._rng
        name = rng.choices(("status", "cut", "half", "slow", "late", "stall"), weights=(8, 6, 4, 3, 3, 1))[0]
        if name == "status":
            return name, Fault(status=rng.choice(_STATUSES))
        if name == "cut":
            return name, Fault(cut_after=rng.randrange(4000))
        if name == "half":
            return name, Fault(half_body=True)
        if name == "slow":
            return name, Fault(bytes_per_s=rng.uniform(20_000, 200_000))
        if name == "late":
            return name, Fault(latency_s=rng.uniform(0.05, 0.8))
        return name, Fault(stall_after=rng.randrange(2000))
