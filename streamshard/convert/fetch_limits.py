"""What fetching of URL images may cost, and from where; the fetching itself is :mod:`streamshard.convert.fetching`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from streamshard._sizes import parse_bytes
from streamshard.storage.retry import RetryPolicy

DEFAULT_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """What fetching may cost, and from where.

    Args:
        private: allow hosts that are not on the public internet.
        max_nbytes: most bytes of one image.
        redirects: most redirects that are followed for one image.
        at_once: requests at the same time, over all processes of a conversion.
        retry: attempts, the seconds that one attempt may take (``timeout_s``), and the waits between them.

    Raises:
        ValueError: a limit of less than 1, or of no redirects less than 0.
    """

    private: bool = False
    max_nbytes: int = 1 << 26
    redirects: int = 5
    at_once: int = DEFAULT_AT_ONCE
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(attempts=5, timeout_s=60.0))

    def __post_init__(self) -> None:
        for name, least in (("max_nbytes", 1), ("redirects", 0), ("at_once", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"fetch {name}={getattr(self, name)}: expected at least {least}")

    @classmethod
    def parse(cls, texts: Sequence[str], *, private: bool) -> FetchLimits:
        """The limits of ``["size=10mb", "seconds=20", "redirects=3", "tries=2", "at-once=16"]``.

        Raises:
            ValueError: another name, or no number.
        """
        limits = cls(private=private)
        for text in texts:
            name, _, value = text.partition("=")
            try:
                limits = _set(limits, name, value)
            except ValueError as error:
                raise ValueError(f"--fetch-limit {text}: {error}") from None
        return limits


def _set(limits: FetchLimits, name: str, value: str) -> FetchLimits:
    if name == "size":
        return replace(limits, max_nbytes=parse_bytes(value, name="size"))
    if name == "seconds":
        return replace(limits, retry=replace(limits.retry, timeout_s=float(value)))
    if name == "tries":
        return replace(limits, retry=replace(limits.retry, attempts=int(value)))
    if name == "redirects":
        return replace(limits, redirects=int(value))
    if name == "at-once":
        return replace(limits, at_once=int(value))
    raise ValueError("expected size=SIZE, seconds=S, redirects=N, tries=N or at-once=N")
