"""Fetching images by their URLs: many at once, each within limits, only from where it is allowed.

One event loop in a thread of its own serves all requests of a task. Every hop of a redirect is judged like the first.
Nothing is sent but the request itself: no cookies, no proxy of the environment, no credentials of this machine.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any

import aiohttp
import yarl

from streamshard import __version__
from streamshard.convert.addresses import PublicResolver, refuse_private_literal
from streamshard.convert.fetch_limits import FetchLimits
from streamshard.convert.images import HEAD_NBYTES, UNKNOWN, sniff_format
from streamshard.convert.problems import (
    BAD_REFERENCE,
    EMPTY_IMAGE,
    REFUSED_URL,
    TOO_LARGE,
    UNFETCHED_IMAGE,
    RecordProblem,
)
from streamshard.storage.redact import Redactor, public_url

_logger = logging.getLogger(__name__)

_BLOCK = 1 << 16
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_WORTH_ANOTHER_TRY = frozenset((408, 425, 429, 500, 502, 503, 504))
# A server that asks for more patience than this is not waited for.
_LONGEST_WAIT_S = 120.0
# Above this, only a few answers are read at a time, so that memory is bounded whatever servers send.
_LARGE_NBYTES = 4 << 20
_LARGE_AT_ONCE = 4
_SHOWN = 300


class Fetcher:
    """Fetches URLs in a thread of its own, ``at_once`` at the same time; a context manager."""

    def __init__(self, limits: FetchLimits, at_once: int) -> None:
        self._limits = limits
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Semaphore(at_once)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._not_before: dict[str, float] = {}
        self._session: aiohttp.ClientSession | None = None
        self._at_once = at_once
        self._tasks: set[asyncio.Task[bytes]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="streamshard-fetch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Fetcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def fetch(self, url: str) -> Future[bytes]:
        """Begin to fetch a URL; the result is its bytes, or a RecordProblem that names URL and cause."""
        return self._run(self._fetch(url))

    def close(self) -> None:
        """End all requests, and the thread."""
        self._run(self._end()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _end(self) -> None:
        me = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not me]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
        await self._loop.shutdown_default_executor()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=self._at_once, resolver=None if self._limits.private else PublicResolver()
            )
            timeout_s = self._limits.retry.timeout_s
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                headers={"User-Agent": f"streamshard/{__version__}", "Accept-Encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(timeout_s, 20.0)),
                trust_env=False,
            )
        return self._session

    async def _fetch(self, url: str) -> bytes:
        target = _parsed(url)
        tell = Redactor(url, {})
        policy = self._limits.retry
        for attempt in range(1, policy.attempts + 1):
            try:
                async with self._gate:
                    return await self._through_redirects(target)
            except _TryAgainError as trouble:
                cause, asked_s = str(trouble), trouble.wait_s
            except RecordProblem as problem:
                raise RecordProblem(problem.reason, f"{_named(url)}: {tell(problem.message)}") from None
            wait_s = max(asked_s, policy.wait_s(attempt, random.random()))  # noqa: S311 jitter
            if attempt == policy.attempts or asked_s > _LONGEST_WAIT_S:
                break
            _logger.info("%s: %s; attempt %d of %d", _named(url), tell(cause), attempt, policy.attempts)
            await asyncio.sleep(wait_s)
        if asked_s > _LONGEST_WAIT_S:
            cause = f"{cause}, and asks to wait {asked_s:.0f} s"
        raise RecordProblem(
            UNFETCHED_IMAGE,
            f"{_named(url)}: {tell(cause)} (attempt {attempt} of {policy.attempts}); run again later: what was"
            " fetched is kept",
        )

    async def _through_redirects(self, target: yarl.URL) -> bytes:
        for hop in range(self._limits.redirects + 1):
            if not self._limits.private:
                refuse_private_literal(target.raw_host or "")
            await self._patience(target)
            found = await self._answer(target)
            if isinstance(found, bytes):
                return found
            if hop and found == target:
                break
            target = found
        raise RecordProblem(
            UNFETCHED_IMAGE,
            f"more than {self._limits.redirects} redirects, the last to {public_url(str(target))[:_SHOWN]}",
        )

    async def _patience(self, target: yarl.URL) -> None:
        """Wait until the host wants to be asked again."""
        wait_s = self._not_before.get(target.raw_authority, 0.0) - self._loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _answer(self, target: yarl.URL) -> bytes | yarl.URL:
        """The body of the answer, or where it sends us.

        Raises:
            RecordProblem: an answer that no other try will better.
            _TryAgainError: any other trouble.
        """
        try:
            async with self._opened().get(target, allow_redirects=False) as response:
                if response.status in _REDIRECTS:
                    return _redirected(target, response.headers.get("Location"))
                if response.status != 200:
                    raise self._refused(target, response)
                return await self._body(response)
        except aiohttp.ClientConnectorDNSError as error:
            if isinstance(error.os_error, socket.gaierror) and error.os_error.errno == socket.EAI_NONAME:
                raise RecordProblem(
                    UNFETCHED_IMAGE, f"there is no host {target.raw_host!r} (name resolution)"
                ) from None
            raise _TryAgainError(f"name resolution failed: {error.os_error}") from None
        except aiohttp.InvalidURL as error:
            raise RecordProblem(BAD_REFERENCE, f"not a URL that can be fetched ({error})") from None
        except (asyncio.TimeoutError, TimeoutError):
            raise _TryAgainError(f"no complete answer within {self._limits.retry.timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _TryAgainError(f"{type(error).__name__}: {str(error)[:_SHOWN]}") from None

    def _refused(self, target: yarl.URL, response: aiohttp.ClientResponse) -> Exception:
        said = f"HTTP {response.status} {response.reason or ''}".rstrip()
        if response.status not in _WORTH_ANOTHER_TRY:
            return RecordProblem(UNFETCHED_IMAGE, said)
        wait_s = retry_after_s(response.headers.get("Retry-After"), time.time())
        if 0 < wait_s <= _LONGEST_WAIT_S:
            self._not_before[target.raw_authority] = self._loop.time() + wait_s
        return _TryAgainError(said, wait_s)

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        packing = response.headers.get("Content-Encoding", "identity").strip().lower()
        if packing not in ("", "identity"):
            raise RecordProblem(
                UNFETCHED_IMAGE, f"the answer is packed ({packing[:40]}), which was not asked for"
            )
        limit = self._limits.max_nbytes
        announced = response.content_length
        if announced is not None and announced > limit:
            raise _too_large(f"{announced} bytes", limit)
        body = bytearray()
        await self._read(response, body, min(limit, _LARGE_NBYTES))
        if len(body) >= _LARGE_NBYTES and not response.content.at_eof():
            async with self._large:
                await self._read(response, body, limit)
        if len(body) > limit:
            raise _too_large(f"more than {limit} bytes", limit)
        if announced is not None and len(body) != announced:
            raise _TryAgainError(f"the answer ended after {len(body)} of {announced} bytes")
        if not body:
            raise RecordProblem(EMPTY_IMAGE, "the answer is empty (0 bytes)")
        content = bytes(body)
        if response.content_type == "text/html" and sniff_format(content[:HEAD_NBYTES]) == UNKNOWN:
            raise RecordProblem(UNFETCHED_IMAGE, "the answer is a web page (text/html), not an image")
        return content

    async def _read(self, response: aiohttp.ClientResponse, body: bytearray, limit: int) -> None:
        """Read on until the end, or until there are more than ``limit`` bytes."""
        while len(body) <= limit and (block := await response.content.read(_BLOCK)):
            body += block


class _TryAgainError(Exception):
    """A failure that may pass; ``wait_s`` is what the server asks for."""

    def __init__(self, cause: str, wait_s: float = 0.0) -> None:
        super().__init__(cause)
        self.wait_s = wait_s


def retry_after_s(value: str | None, now: float) -> float:
    """The seconds that a ``Retry-After`` header asks for, a number or a date; 0 where it says nothing sensible.

    Args:
        value: the header, or ``None``.
        now: seconds since 1970.
    """
    if value is None:
        return 0.0
    try:
        return max(0.0, float(int(value)))
    except (ValueError, OverflowError):
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now)
        except (ValueError, TypeError, OverflowError):
            return 0.0


def _named(url: str) -> str:
    return f"image {public_url(url)[:_SHOWN]!r}"


def _parsed(url: str) -> yarl.URL:
    try:
        # What is encoded already is sent as it is, since a signature may be of just that text.
        target = yarl.URL(url, encoded=url.isascii() and url.isprintable() and " " not in url)
        port = target.port
    except ValueError as error:
        raise RecordProblem(BAD_REFERENCE, f"{_named(url)} is not a URL ({str(error)[:100]})") from None
    if target.scheme not in ("http", "https") or not target.raw_host or not port:
        raise RecordProblem(BAD_REFERENCE, f"{_named(url)} is not a URL of http or https with a host")
    return target.with_fragment(None)


def _redirected(target: yarl.URL, location: str | None) -> yarl.URL:
    if not location:
        raise RecordProblem(UNFETCHED_IMAGE, "a redirect that does not say where to")
    try:
        found = target.join(yarl.URL(location, encoded=location.isascii() and " " not in location))
    except ValueError:
        raise RecordProblem(
            UNFETCHED_IMAGE, f"redirected to what is no URL: {public_url(location)[:_SHOWN]!r}"
        ) from None
    if found.scheme not in ("http", "https") or not found.raw_host:
        raise RecordProblem(
            REFUSED_URL,
            f"redirected to {public_url(str(found))[:_SHOWN]!r}; only http and https are fetched",
        )
    return found.with_fragment(None)


def _too_large(found: str, limit: int) -> RecordProblem:
    return RecordProblem(
        TOO_LARGE, f"{found}, more than the limit of {limit}; raise it with --fetch-limit size=SIZE"
    )
