"""Buckets and other remote places, through fsspec."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from streamshard.errors import BlobNotFoundError
from streamshard.storage.cancel import check_cancelled, run_bounded
from streamshard.storage.clients import Client
from streamshard.storage.failures import Failure, classify
from streamshard.storage.multipart import IN_PARTS_FROM_NBYTES, put_in_parts
from streamshard.storage.retry import RetryPolicy, call_with_retry
from streamshard.storage.sending import send_file
from streamshard.storage.store import (
    Version,
    check_key,
    check_limit,
    check_prefix,
    check_range,
    check_size,
    is_temporary,
    replacing,
)
from streamshard.storage.together import Tell, together
from streamshard.storage.windows import PART_NBYTES, Window, read_pieces, remote_size, remote_version

T = TypeVar("T")

# Uploads have as much time as they need on a link of this speed.
_SLOWEST_UPLOAD_BYTES_PER_S = 256 << 10

# Connections over which one file comes at once.
_PARTS_AT_ONCE = 4


class FsspecStore:
    """Any place that fsspec knows, with one retry policy instead of each library's own."""

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.retry = retry or RetryPolicy()
        self._client = Client(url.rstrip("/"), storage_options, self.retry)
        self.url = self._client.url

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def local_path(self, key: str) -> None:
        check_key(key, self.url)

    def size(self, key: str) -> int:
        check_key(key, self.url)
        return self._call("look at", key, lambda fs, path: remote_size(fs, path))

    def version(self, key: str) -> Version:
        check_key(key, self.url)
        return self._call("look at", key, lambda fs, path: remote_version(fs, path))

    def read(self, key: str, *, limit: int | None = None) -> bytes:
        nbytes = self.size(key)
        check_limit(nbytes, limit, f"read {self._shown(key)}")
        return self.read_range(key, 0, nbytes)

    def read_small(self, key: str, below: int, *, certain: bool = False) -> bytes | None:
        check_key(key, self.url)
        return self._retried("read", key, lambda: self._read_small(key, below, certain), self.retry)

    def _read_small(self, key: str, below: int, certain: bool) -> bytes | None:
        gets = self._client.signed_gets()
        if gets is None:
            if certain:
                return None
            found = self._bounded(
                key,
                lambda fs, path: bytes(fs.cat_file(path, start=0, end=below)),
                self.retry.attempt_timeout_s,
            )
            return found if len(found) < below else None
        try:
            # Each read from its socket has a time limit, but the line of a header may come by many.
            return run_bounded(
                lambda: gets.get(self._join(self._client.filesystem()[1], key), below, certain=certain),
                self.retry.attempt_timeout_s,
            )
        except Exception as error:
            if not gets.proven and classify(error) in (Failure.DENIED, Failure.FINAL):
                self._client.use_no_signed_gets()
            raise

    def read_range(self, key: str, begin: int, end: int) -> bytes:
        check_key(key, self.url)
        check_range(begin, end, f"read {self._shown(key)}")
        payload = bytearray()
        self._stream(key, begin, end, payload.extend)
        return bytes(payload)

    def fetch_to(
        self,
        key: str,
        path: Path,
        *,
        progress: Callable[[int], None] | None = None,
        nbytes: int | None = None,
    ) -> int:
        # Without a HEAD request where the size is known; the one byte more tells a file that has grown.
        check_key(key, self.url)
        known = nbytes is not None and nbytes > 0
        expected = nbytes if nbytes is not None and known else self.size(key)
        check_size(expected, nbytes, f"fetch {self._shown(key)}")
        begins = range(0, expected, PART_NBYTES)
        # Made when their turn comes: a size that is only said to be may be of any size.
        parts = (partial(self._part, key, begin, expected, known) for begin in begins)
        with replacing(path) as temporary, temporary.open("xb") as file:
            # A connection to a bucket is slow, so parts of one file come over several; they end in any order.
            threads = max(1, min(_PARTS_AT_ONCE, len(begins)))
            for number, pieces in together(parts, threads=threads, progress=progress):
                file.seek(begins[number])
                file.writelines(pieces)
        return expected

    def _part(self, key: str, begin: int, expected: int, known: bool, tell: Tell) -> list[bytes]:
        """Read the part of a file that begins at ``begin``, with its own tries and windows."""
        pieces: list[bytes] = []
        end = min(expected, begin + PART_NBYTES)

        def take(piece: bytes) -> None:
            pieces.append(piece)
            tell(len(piece))

        self._stream(key, begin, end, take, expected=expected, probe_end=known and end == expected)
        return pieces

    def put(self, key: str, path: Path) -> None:
        nbytes = path.stat().st_size
        if self._client.scheme in ("s3", "s3a") and nbytes >= IN_PARTS_FROM_NBYTES:
            put_in_parts(partial(self._upload, key), path, nbytes)
            return

        def put_whole(fs: Any, target: str) -> None:
            send_file(fs, target, nbytes, lambda at: fs.put_file(str(path), at))

        self._upload(key, "upload", put_whole, nbytes)

    def put_bytes(self, key: str, payload: bytes) -> None:
        def put_whole(fs: Any, target: str) -> None:
            send_file(fs, target, len(payload), lambda at: fs.pipe_file(at, payload))

        self._upload(key, "upload", put_whole, len(payload))

    def _upload(self, key: str, verb: str, operation: Callable[[Any, str], T], nbytes: int = 0) -> T:
        check_key(key, self.url)
        # It tells nothing while it runs, so its time limit grows with its size.
        limit_s = self.retry.timeout_s + nbytes / _SLOWEST_UPLOAD_BYTES_PER_S
        policy = replace(self.retry, timeout_s=limit_s)
        return self._call(verb, key, operation, policy=policy, limit_s=limit_s)

    def list(self, prefix: str = "") -> list[str]:
        folder, _, _ = check_prefix(prefix, self.url).rpartition("/")

        def find(fs: Any, top: str) -> list[str]:
            root = (top.removesuffix(self._join("", folder)) if folder else top).rstrip("/") + "/"
            try:
                found = fs.find(top, detail=True)
            except FileNotFoundError:
                return []
            return [_below(name, root) for name, info in found.items() if info.get("type") == "file"]

        keys = self._call("list", folder, find, limit_s=self.retry.timeout_s)
        return sorted(key for key in keys if key and key.startswith(prefix) and not is_temporary(key))

    def exists(self, key: str) -> bool:
        try:
            self.size(key)
        except BlobNotFoundError:
            return False
        return True

    def delete(self, key: str) -> None:
        check_key(key, self.url)

        def remove(fs: Any, path: str) -> None:
            remote_size(fs, path)  # a bucket says yes to deleting what it does not have
            try:
                fs.rm_file(path)
            except NotImplementedError:  # ocifs has only the other one
                fs.rm(path)

        self._call("delete", key, remove)

    def modified(self, key: str) -> float | None:
        check_key(key, self.url)

        def ask(fs: Any, path: str) -> float | None:
            fs.invalidate_cache(path)
            try:
                told = fs.modified(path)
            except NotImplementedError:
                remote_size(fs, path)
                return None
            return told.timestamp() if isinstance(told, datetime) else None

        return self._call("look at", key, ask)

    def _stream(
        self,
        key: str,
        begin: int,
        end: int,
        take: Callable[[bytes], Any],
        *,
        expected: int | None = None,
        probe_end: bool = False,
    ) -> None:
        """Hand bytes [begin, end) to ``take`` in order, window by window, each with its own tries.

        ``expected`` is the size that the file must have; with ``probe_end``, one byte more is asked for, to see that it
        ends at ``end``.
        """
        whole = end if expected is None else expected
        window = Window(begin, end)
        while window.position < end:
            check_cancelled()

            def attempt() -> None:
                started = time.monotonic()
                stop, have = window.stop, frozenset(window.pieces)
                probed_end = stop + (probe_end and stop == end)
                try:
                    pieces, failed = self._bounded(
                        key,
                        lambda fs, path: read_pieces(
                            fs,
                            path,
                            window.position,
                            stop,
                            probed_end,
                            have,
                            whole,
                            f"read {self._shown(key)}",
                        ),
                        self.retry.attempt_timeout_s,
                    )
                except TimeoutError:
                    window.shrink()
                    raise
                window.pieces.update(pieces)
                if failed is not None:
                    raise failed
                window.measure(time.monotonic() - started, self.retry.attempt_timeout_s)

            self._retried(f"read bytes [{begin}, {end}) of", key, attempt, self.retry)
            for offset in sorted(window.pieces):
                take(window.pieces[offset])
            window.advance()

    def _call(
        self,
        verb: str,
        key: str,
        operation: Callable[[Any, str], T],
        *,
        policy: RetryPolicy | None = None,
        limit_s: float | None = None,
    ) -> T:
        limit = limit_s or self.retry.attempt_timeout_s
        return self._retried(verb, key, lambda: self._bounded(key, operation, limit), policy or self.retry)

    def _bounded(self, key: str, operation: Callable[[Any, str], T], limit_s: float) -> T:
        return self._client.call(lambda fs, root: operation(fs, self._join(root, key)), limit_s)

    def _retried(self, verb: str, key: str, attempt: Callable[[], T], policy: RetryPolicy) -> T:
        return call_with_retry(
            attempt,
            policy,
            what=f"{verb} {self._shown(key)}",
            recover=partial(self._client.renew, self._client.renewals),
            redact=self._client.redact,
            hint=self._client.hint(),
        )

    def _join(self, root: str, key: str) -> str:
        if not key:
            return root
        check_key(key, self.url)
        return f"{root.rstrip('/')}/{quote(key) if self._client.scheme in ('http', 'https') else key}"

    def _shown(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url


def _below(name: str, root: str) -> str:
    bare_root = root.lstrip("/")
    bare = name.lstrip("/")
    return bare[len(bare_root) :] if bare.startswith(bare_root) else ""
