"""Work in threads whose results one caller takes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from streamshard.storage.cancel import Cancellation, FetchCancelled, pause, use_cancellation
from streamshard.storage.together import together


def work(result: Any) -> Callable[[Any], Any]:
    return lambda tell: result


def test_all_results_come_once_with_their_number() -> None:
    assert sorted(together([work(number * 2) for number in range(100)], threads=7)) == [
        (number, number * 2) for number in range(100)
    ]
    assert list(together([], threads=3)) == []


def test_no_more_than_so_many_run_at_once_and_few_results_wait() -> None:
    lock = threading.Lock()
    running = begun = most = 0

    def one(tell: Any) -> int:
        nonlocal running, begun, most
        with lock:
            running += 1
            begun += 1
            most = max(most, running)
        pause(0.001)
        with lock:
            running -= 1
        return 1

    taken = 0
    for _ in together([one] * 60, threads=3):
        taken += 1
        with lock:
            assert begun <= taken + 2 * 3 + 3
    assert taken == 60
    assert most == 3


def test_what_is_told_reaches_the_caller_in_its_own_thread() -> None:
    told: list[int] = []
    here = threading.current_thread()

    def progress(nbytes: int) -> None:
        assert threading.current_thread() is here
        told.append(nbytes)

    def one(tell: Callable[[int], None]) -> None:
        tell(3)
        tell(4)

    list(together([one] * 5, threads=2, progress=progress))
    assert sum(told) == 35


def test_the_first_error_comes_and_the_rest_is_cancelled() -> None:
    ended = threading.Event()

    def waits(tell: Any) -> None:
        try:
            pause(60)
        finally:
            ended.set()

    def fails(tell: Any) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        list(together([waits, fails], threads=2))
    assert ended.wait(5)


def test_a_caller_that_stops_taking_cancels_the_rest() -> None:
    begun = []

    def one(tell: Any) -> int:
        begun.append(1)
        return 1

    results = together([one] * 1000, threads=2)
    next(results)
    results.close()
    names = [thread for thread in threading.enumerate() if thread.name == "streamshard-part"]
    for thread in names:
        thread.join(5)
        assert not thread.is_alive()
    assert len(begun) < 20


def test_time_limit_and_cancellation_of_the_caller() -> None:
    with pytest.raises(TimeoutError, match="not done within"):
        list(together([lambda tell: pause(60)], threads=1, limit_s=0.05))
    cancellation = Cancellation()
    timer = threading.Timer(0.05, cancellation.cancel)
    timer.start()
    with use_cancellation(cancellation), pytest.raises(FetchCancelled):
        list(together([lambda tell: pause(60)], threads=1))
    timer.join()
