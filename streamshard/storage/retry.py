"""How often and how long to try: a policy, its waiting times, and one runner."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from streamshard.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    ChecksumError,
    StorageError,
    StreamshardError,
)
from streamshard.storage.cancel import FetchCancelled, pause
from streamshard.storage.failures import Failure, classify, describe, http_status, told_by

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of one operation, such as reading one window of a file.

    Args:
        attempts: tries in all, at least 1.
        timeout_s: seconds after which an operation that made no progress fails for good, > 0.
        backoff_s: seconds before the second try; doubled for each further one.
        max_backoff_s: longest wait between two tries, in seconds.
        jitter: share of each wait that differs from process to process, in [0, 1], so that many do not knock in step.
    """

    attempts: int = 6
    timeout_s: float = 60.0
    backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise ValueError(
                f"attempts={self.attempts!r}: expected an integer of at least 1 (1 means no retry)"
            )
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s={self.timeout_s!r}: expected more than 0 seconds")
        if not (self.backoff_s >= 0 and self.max_backoff_s >= 0):
            raise ValueError(
                f"backoff_s={self.backoff_s!r}, max_backoff_s={self.max_backoff_s!r}: must not be negative"
            )
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter!r}: expected a share between 0 and 1")

    @property
    def attempt_timeout_s(self) -> float:
        """Seconds that one silent attempt may take, so that a dead connection leaves time for a new one."""
        return self.timeout_s if self.attempts == 1 else self.timeout_s / min(self.attempts, 3)

    def wait_s(self, attempt: int, chance: float) -> float:
        """Seconds to wait after failed attempt ``attempt`` >= 1; ``chance`` in [0, 1) is the jitter."""
        grown = self.backoff_s * 2.0 ** min(attempt - 1, 60)
        return min(self.max_backoff_s, grown) * (1 - self.jitter * chance)


def call_with_retry(
    operation: Callable[[], T],
    policy: RetryPolicy,
    *,
    what: str,
    recover: Callable[[], bool] | None = None,
    redact: Callable[[str], str] = str,
    hint: str = "",
    sleep: Callable[[float], None] = pause,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] | None = None,
) -> T:
    """Call ``operation`` until it succeeds, fails for good, or the policy's tries or seconds are used up.

    Args:
        what: what is done to which place, for the message, such as ``"read s3://bucket/a.mds"``.
        recover: called once when access is denied; True if something was renewed and one more try makes
            sense.
        redact: takes secrets out of the text of foreign errors.
        hint: said after an access error, such as which credentials were used.
        chance: the jitter of a wait, in [0, 1); default: ``chance_of``.

    Raises:
        BlobNotFoundError, AccessDeniedError: at once.
        ChecksumError: the last one, with the number of attempts, once all are used up.
        StorageError: everything else, naming ``what``, attempts, seconds and cause. Other errors of this
            package pass through.
    """
    begin = clock()
    attempt = 0
    recovered = recover is None
    while True:
        attempt += 1
        try:
            return operation()
        except FetchCancelled:
            raise
        except Exception as error:  # noqa: BLE001 sorted below, raised or tried again
            failure = classify(error)
            if failure is Failure.DENIED and not recovered and recover is not None:
                recovered = True
                if recover():
                    continue
            seconds = clock() - begin
            if failure is Failure.TRANSIENT and attempt < policy.attempts:
                wait = policy.wait_s(attempt, chance_of(what, attempt) if chance is None else chance())
                # A bad checksum is no sign of a dead place, and its file may have taken long to arrive.
                if isinstance(error, ChecksumError) or seconds + wait < policy.timeout_s:
                    sleep(wait)
                    continue
            _fail(error, failure, what=what, attempt=attempt, seconds=seconds, redact=redact, hint=hint)


def chance_of(what: str, attempt: int) -> float:
    """Say how much of the jitter a process takes after failed attempt ``attempt`` at ``what``, in [0, 1).

    The same for a rank in each run, different for other ranks, machines, files and attempts. Not Python's ``random``:
    its state is the user's, who often seeds all ranks alike, and forked processes share it.
    """
    who = os.environ.get("RANK") or f"{os.getppid()}/{os.getpid()}"
    text = f"{os.uname().nodename}\0{who}\0{what}\0{attempt}"
    return (
        int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).digest(), "big")
        / 2**48
    )


def _fail(
    error: Exception,
    failure: Failure,
    *,
    what: str,
    attempt: int,
    seconds: float,
    redact: Callable[[str], str],
    hint: str,
) -> NoReturn:
    times = "1 attempt" if attempt == 1 else f"{attempt} attempts"
    if isinstance(error, ChecksumError):
        raise ChecksumError(f"{error} (the same after {times}; {what})") from error
    if isinstance(error, StreamshardError):
        raise error
    raw = describe(error)
    cause = redact(raw)
    # A foreign error that quotes a secret must not be shown in the traceback either, nor one that carries some.
    shown = error if all(redact(text) == text for text in told_by(error)) else None
    if failure is Failure.MISSING:
        raise BlobNotFoundError(f"{what}: not found ({cause})") from shown
    if failure is Failure.DENIED:
        tail = f"; {hint}" if hint else ""
        status = http_status(error)
        code = f"HTTP {status}, " if status is not None else ""
        raise AccessDeniedError(f"{what}: permission denied after {times} ({code}{cause}){tail}") from shown
    raise StorageError(f"{what}: failed after {times} in {seconds:.1f} s ({cause})") from shown
