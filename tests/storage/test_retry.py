"""When to try again, how long to wait, and what to say in the end."""

from __future__ import annotations

import errno
import heapq
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    ChecksumError,
    FormatError,
    StorageError,
)
from streamshard.storage.cancel import FetchCancelled
from streamshard.storage.failures import Failure, classify, disk_error
from streamshard.storage.retry import RetryPolicy, call_with_retry, chance_of


class Clock:
    """Time that passes only when somebody sleeps, or each try takes ``per_try`` seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def __call__(self) -> float:
        return self.now


def run(operation: Callable[[], Any], clock: Clock, policy: RetryPolicy, **more: Any) -> Any:
    return call_with_retry(
        operation,
        policy,
        what="read place/a",
        clock=clock,
        sleep=clock.sleep,
        chance=more.pop("chance", lambda: 0.0),
        **more,
    )


def failing(
    times: int, error: Exception, clock: Clock | None = None, seconds: float = 0.0
) -> Callable[[], int]:
    """Fails ``times`` times, then returns how often it was called."""
    calls = [0]

    def operation() -> int:
        calls[0] += 1
        if clock is not None:
            clock.now += seconds
        if calls[0] <= times:
            raise error
        return calls[0]

    return operation


def test_the_waits_double_up_to_the_longest() -> None:
    clock = Clock()
    policy = RetryPolicy(attempts=8, timeout_s=1000, backoff_s=1, max_backoff_s=10)
    assert run(failing(7, TimeoutError()), clock, policy) == 8
    assert clock.slept == [1, 2, 4, 8, 10, 10, 10]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
def test_jitter_only_shortens_a_wait_and_never_below_its_share(
    attempt: int, chance: float, jitter: float
) -> None:
    policy = RetryPolicy(backoff_s=0.5, max_backoff_s=30, jitter=jitter)
    full = policy.wait_s(attempt, 0.0)
    assert full == min(30, 0.5 * 2.0 ** min(attempt - 1, 60))
    assert (1 - jitter) * full <= policy.wait_s(attempt, chance) <= full


def test_no_try_begins_after_the_time_limit() -> None:
    clock = Clock()
    policy = RetryPolicy(attempts=99, timeout_s=10, backoff_s=1)
    with pytest.raises(
        StorageError, match=r"read place/a: failed after 4 attempts in 7.0 s \(TimeoutError\)"
    ):
        run(failing(99, TimeoutError()), clock, policy)
    assert clock.slept == [1, 2, 4]


def test_wrong_checksums_are_counted_not_timed() -> None:
    clock = Clock()
    policy = RetryPolicy(attempts=3, timeout_s=10, backoff_s=1)
    error = ChecksumError("shard 'a': sha1 is x, expected y")
    assert run(failing(2, error, clock, seconds=60), clock, policy) == 3
    with pytest.raises(
        ChecksumError, match=r"sha1 is x, expected y \(the same after 3 attempts; read place/a\)"
    ):
        run(failing(3, error, clock, seconds=60), clock, policy)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FileNotFoundError("a"), BlobNotFoundError),
        (PermissionError("a"), AccessDeniedError),
        (ValueError("a"), StorageError),
        (OSError(errno.ENOSPC, "No space left on device"), StorageError),
        (FormatError("as it is"), FormatError),
        (StorageError("as it is"), StorageError),
    ],
)
def test_what_no_retry_can_help_is_raised_at_once(error: Exception, raised: type[Exception]) -> None:
    clock = Clock()
    with pytest.raises(raised):
        run(failing(1, error), clock, RetryPolicy())
    assert clock.slept == []


def test_a_refusal_is_tried_once_more_where_credentials_could_be_renewed() -> None:
    clock = Clock()
    renewed: list[int] = []

    def renew() -> bool:
        renewed.append(1)
        return True

    assert run(failing(1, PermissionError()), clock, RetryPolicy(attempts=1), recover=renew) == 2
    with pytest.raises(AccessDeniedError, match="after 2 attempts"):
        run(failing(9, PermissionError()), clock, RetryPolicy(attempts=1), recover=renew)
    assert renewed == [1, 1]
    assert clock.slept == []


def test_cancelling_passes_through() -> None:
    with pytest.raises(FetchCancelled):
        run(failing(1, FetchCancelled()), Clock(), RetryPolicy())


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": True},
        {"attempts": 1.5},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"backoff_s": -1},
        {"max_backoff_s": -1},
        {"jitter": 1.1},
    ],
)
def test_b151_a_policy_that_makes_no_sense_names_the_value(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        RetryPolicy(**wrong)


def boto(code: str, status: int) -> Exception:
    """What botocore raises, as s3fs passes it on."""
    inner = Exception("An error occurred")
    inner.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    outer = OSError(errno.EINVAL, "in s3fs's words")
    outer.__cause__ = inner
    return outer


def http(**fields: Any) -> Exception:
    error = Exception("http")
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def named(name: str, *parents: type[BaseException]) -> Exception:
    made = type(name, parents or (Exception,), {})()
    assert isinstance(made, Exception)
    return made


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (boto("SlowDown", 503), Failure.TRANSIENT),
        (boto("InternalError", 500), Failure.TRANSIENT),
        (boto("RequestTimeout", 400), Failure.TRANSIENT),
        (boto("BadDigest", 400), Failure.TRANSIENT),
        (boto("NoSuchKey", 404), Failure.MISSING),
        (boto("NoSuchBucket", 404), Failure.MISSING),
        (boto("AccessDenied", 403), Failure.DENIED),
        (boto("ExpiredToken", 400), Failure.DENIED),
        (boto("400", 400), Failure.DENIED),
        (boto("InvalidRange", 416), Failure.FINAL),
        (http(status=429), Failure.TRANSIENT),
        (http(status=503), Failure.TRANSIENT),
        (http(status_code=404), Failure.MISSING),
        (http(code=401), Failure.DENIED),
        (http(code="403"), Failure.DENIED),
        (http(status=501), Failure.FINAL),
        (http(code=7), Failure.FINAL),
        (named("ClientPayloadError"), Failure.TRANSIENT),
        (named("IncompleteRead"), Failure.TRANSIENT),
        (named("EndpointConnectionError", type("ConnectionError", (Exception,), {})), Failure.TRANSIENT),
        (named("NoCredentialsError"), Failure.DENIED),
        (TimeoutError(), Failure.TRANSIENT),
        (ConnectionResetError(), Failure.TRANSIENT),
        (OSError(errno.EIO, "EIO"), Failure.TRANSIENT),
        (OSError("no number"), Failure.TRANSIENT),
        (OSError(errno.EINVAL, "EINVAL"), Failure.FINAL),
        (OSError(errno.ENOSPC, "ENOSPC"), Failure.FINAL),
        (FileNotFoundError(), Failure.MISSING),
        (IsADirectoryError(), Failure.MISSING),
        (PermissionError(), Failure.DENIED),
        (KeyError("x"), Failure.FINAL),
        (ChecksumError("x"), Failure.TRANSIENT),
        (FormatError("x"), Failure.FINAL),
        (BlobNotFoundError("x"), Failure.MISSING),
        (AccessDeniedError("x"), Failure.DENIED),
        (StorageError("x"), Failure.FINAL),
    ],
    ids=repr,
)
def test_an_error_is_what_its_answer_number_or_class_says(error: Exception, failure: Failure) -> None:
    assert classify(error) is failure


def test_a_made_up_status_beneath_a_cut_answer_does_not_make_it_final() -> None:
    error = named("ClientPayloadError")
    error.__cause__ = http(code=400)
    assert classify(error) is Failure.TRANSIENT


def test_an_error_that_is_its_own_cause_is_looked_at_once() -> None:
    error = StorageError("raised from itself")
    error.__cause__ = error
    assert disk_error(error) is None


def test_b147_many_ranks_that_begin_at_once_do_not_knock_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 ranks ask at one moment a place that serves 35 in each tenth of a second and throttles the others."""
    policy = RetryPolicy(timeout_s=60)

    def crowd(chance: Callable[[int, int], float]) -> tuple[int, int, int]:
        """How many are left in the end, requests, and the most in one tenth of a second after the first."""
        asking = [(0.0, rank, 1) for rank in range(2_000)]
        served: dict[int, int] = {}
        asked: dict[int, int] = {}
        lost = requests = 0
        while asking:
            moment, rank, attempt = heapq.heappop(asking)
            tenth = int(moment * 10)
            requests += 1
            asked[tenth] = asked.get(tenth, 0) + 1
            if served.get(tenth, 0) < 35:
                served[tenth] = served.get(tenth, 0) + 1
            elif attempt < policy.attempts:
                wait_s = policy.wait_s(attempt, chance(rank, attempt))
                heapq.heappush(asking, (moment + wait_s, rank, attempt + 1))
            else:
                lost += 1
        return lost, requests, max(count for tenth, count in asked.items() if tenth > 0)

    def own(rank: int, attempt: int) -> float:
        monkeypatch.setenv("RANK", str(rank))
        return chance_of("read s3://bucket/index.json", attempt)

    lost, requests, most = crowd(own)
    lost_in_step, requests_in_step, most_in_step = crowd(lambda rank, attempt: 0.5)
    assert (lost, lost_in_step > 1_500) == (0, True)
    assert requests < requests_in_step
    assert most < 0.5 * most_in_step


def test_the_jitter_is_the_ranks_own_and_touches_no_random_numbers_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    random.seed(1)
    before = random.getstate()
    found = {(what, attempt): chance_of(what, attempt) for what in "ab" for attempt in (1, 2)}
    assert random.getstate() == before
    assert {key: chance_of(*key) for key in found} == found
    monkeypatch.setenv("RANK", "4")
    assert len({*found.values(), chance_of("a", 1)}) == 5
    assert all(0 <= chance < 1 for chance in found.values())
    monkeypatch.delenv("RANK")
    here = chance_of("a", 1)
    pid = os.fork()
    if not pid:
        os._exit(0 if chance_of("a", 1) != here else 1)
    assert os.waitpid(pid, 0)[1] == 0
