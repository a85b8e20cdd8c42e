"""How many examples the slow tier tries: CI's number, or that times STREAMSHARD_EXAMPLES.

CI has minutes. Before a release, or after a change of the order, give the slow tier hours:
``STREAMSHARD_EXAMPLES=50 python -m pytest -m slow --timeout 0 tests/order``.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = float(os.environ.get("STREAMSHARD_EXAMPLES", "1"))


def many(count: int) -> settings:
    """Settings for ``count`` examples in CI, without a time limit for each."""
    return settings(
        max_examples=max(1, round(count * TIMES)),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
