"""Buckets and other remote places, through fsspec. The only module that imports it."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fsspec.core import url_to_fs
from fsspec.utils import tokenize

from streamshard.errors import BlobNotFoundError, MissingDependencyError, StorageError
from streamshard.storage.cancel import check_cancelled, run_bounded
from streamshard.storage.connections import Connections
from streamshard.storage.failures import Failure, classify
from streamshard.storage.providers import provider_of
from streamshard.storage.redact import Redactor, public_url
from streamshard.storage.retry import RetryPolicy, call_with_retry
from streamshard.storage.sending import FILE_SERVERS, send_file
from streamshard.storage.signed_gets import SignedGets
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

_logger = logging.getLogger(__name__)

# An upload tells nothing while it runs, so its time limit grows with its size as on a link of this speed.
_SLOWEST_UPLOAD_BYTES_PER_S = 256 << 10

# Connections over which one file comes at once, and those that one client may have at all: many files come at a time.
_PARTS_AT_ONCE = 4
_CONNECTIONS = 64

_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
    "adl": "azure", "hf": "hf", "http": "http", "https": "http", "sftp": "sftp", "ssh": "sftp", "oci": "oci",
}  # fmt: skip

_BUCKET_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs"})

_opening = threading.Lock()
# Clients in use, by what they were made with: a client costs tenths of a second, and a mix has many streams.
_shared: weakref.WeakValueDictionary[tuple[str, ...], Any] = weakref.WeakValueDictionary()
# A forked child must not drop its parent's clients: their finalizers would talk to threads that it does not
# have.
_inherited: list[Any] = []


def _renew_after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    _inherited.extend(_shared.values())
    _shared.clear()


os.register_at_fork(after_in_child=_renew_after_fork)


class FsspecStore:
    """Any place that fsspec knows, with one retry policy instead of each library's own.

    The file system object is made at first use in each process, after any fork, and shared only with stores that
    would get an equal one. For S3, ``S3_ENDPOINT_URL`` is honoured where no endpoint is given, beside the variables
    that botocore reads itself.
    """

    def __init__(
        self,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.url = public_url(url.rstrip("/"))
        self.retry = retry or RetryPolicy()
        # Kept from now on, so that workers use what the trainer's process was given.
        provider = provider_of(url, storage_options or {}, os.environ)
        self._root_url, self._options = provider.url, provider.options
        self._given = tuple(map(str, storage_options or {}))
        self._from_environment = provider.used
        self._scheme = self._root_url.partition(":")[0].lower()
        self._endpoint = os.environ.get("S3_ENDPOINT_URL") if self._scheme in ("s3", "s3a") else None
        self._redact = Redactor(url, self._options)
        self._opened: tuple[int, Any, str] | None = None
        self._connected: tuple[int, Connections] | None = None
        self._signed: tuple[int, SignedGets | None] | None = None

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_connected": None, "_signed": None}

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
        gets = self._signed_gets()
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
            return gets.get(self._join(self._filesystem()[1], key), below, certain=certain)
        except Exception as error:
            if not gets.proven and classify(error) in (Failure.DENIED, Failure.FINAL):
                self._signed = (os.getpid(), None)  # s3fs may know more ways into this place
            raise

    def _signed_gets(self) -> SignedGets | None:
        """Those of this process; None where the place is no S3, or needs more than a signed URL."""
        if self._scheme not in ("s3", "s3a") or "session" in self._options:
            return None
        signed = self._signed
        if signed is None or signed[0] != os.getpid():
            fs, _ = self._filesystem()
            with _opening:
                signed = self._signed
                if signed is None or signed[0] != os.getpid():
                    try:
                        gets = SignedGets(fs, self.retry.attempt_timeout_s)
                    except (ImportError, ValueError) as error:
                        _logger.debug("%s: read through fsspec alone: %s", self.url, error)
                        gets = None
                    self._signed = signed = (os.getpid(), gets)
        return signed[1]

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
        parts = [partial(self._part, key, begin, expected, known) for begin in begins]
        with replacing(path) as temporary, temporary.open("xb") as file:
            # A connection to a bucket is slow, so parts of one file come over several; they end in any order.
            threads = max(1, min(_PARTS_AT_ONCE, len(parts)))
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
        check_key(key, self.url)
        nbytes = path.stat().st_size

        def upload(fs: Any, target: str) -> None:
            send_file(fs, target, nbytes, lambda at: fs.put_file(str(path), at))

        self._call(
            "upload",
            key,
            upload,
            policy=self._upload_policy(nbytes),
            limit_s=self._upload_policy(nbytes).timeout_s,
        )

    def put_bytes(self, key: str, payload: bytes) -> None:
        check_key(key, self.url)

        def upload(fs: Any, target: str) -> None:
            send_file(fs, target, len(payload), lambda at: fs.pipe_file(at, payload))

        policy = self._upload_policy(len(payload))
        self._call("upload", key, upload, policy=policy, limit_s=policy.timeout_s)

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
            fs.rm_file(path)

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
        if self._scheme in FILE_SERVERS:
            return self._connections().call(lambda fs, root: operation(fs, self._join(root, key)), limit_s)

        def run() -> T:
            fs, root = self._filesystem()
            return operation(fs, self._join(root, key))

        return run_bounded(run, limit_s)

    def _retried(self, verb: str, key: str, attempt: Callable[[], T], policy: RetryPolicy) -> T:
        return call_with_retry(
            attempt,
            policy,
            what=f"{verb} {self._shown(key)}",
            recover=self._forget_client,
            redact=self._redact,
            hint=self._credentials_hint(),
        )

    def _filesystem(self) -> tuple[Any, str]:
        """The file system of this process and the root's path in it."""
        opened = self._opened
        if opened is not None and opened[0] == os.getpid():
            return opened[1], opened[2]
        with _opening:
            opened = self._opened
            if opened is not None and opened[0] == os.getpid():
                return opened[1], opened[2]
            if opened is not None:
                _inherited.append(opened)
            fs, root = self._open()
            self._opened = (os.getpid(), fs, root)
            return fs, root

    def _connections(self) -> Connections:
        """Those of this process, where each call needs one for itself."""
        with _opening:
            connected = self._connected
            if connected is None or connected[0] != os.getpid():
                if connected is not None:
                    _inherited.append(connected)
                self._connected = connected = (os.getpid(), Connections(self._connect))
            return connected[1]

    def _open(self) -> tuple[Any, str]:
        """A client for this process, shared with the other stores that would get an equal one."""
        key = self._client_key()
        shared = _shared.get(key)
        if shared is not None:
            return shared, str(shared._strip_protocol(self._root_url))
        fs, root = self._connect()
        _shared[key] = fs
        return fs, root

    def _client_key(self) -> tuple[str, ...]:
        # Only where the URL is no more than a bucket and a prefix does it say nothing about the client.
        plain = self._scheme in _BUCKET_SCHEMES and "::" not in self._root_url and "@" not in self._root_url
        return (
            self._scheme if plain else self._root_url,
            tokenize(self._options, self._endpoint),
            str(self.retry.attempt_timeout_s),
        )

    def _connect(self) -> tuple[Any, str]:
        options = dict(self._options)
        client_options = options.get("client_kwargs") or {}
        if self._endpoint and "endpoint_url" not in options and "endpoint_url" not in client_options:
            options["endpoint_url"] = self._endpoint
        try:
            # A file system of our own: the user's, which fsspec would share, must not be tuned.
            fs, root = url_to_fs(self._root_url, skip_instance_cache=True, **options)
        except ImportError as error:
            extra = _EXTRAS.get(self._scheme)
            how = f"pip install 'streamshard[{extra}]'" if extra else f"install what it names: {error}"
            raise MissingDependencyError(
                f"{self.url}: {self._scheme}:// needs a package that is not installed; {how}"
            ) from error
        except ValueError as error:
            raise StorageError(f"{self.url}: cannot be opened ({self._redact(str(error))})") from None
        _tune(fs, self.retry)
        return fs, str(root)

    def _forget_client(self) -> bool:
        """Drop the client after a refusal, once per call: its credentials may have expired."""
        if self._scheme in FILE_SERVERS:
            self._connections().drop()
            return True
        with _opening:
            opened, self._opened = self._opened, None
            self._signed = None
            if opened is not None and _shared.get(self._client_key()) is opened[1]:
                del _shared[self._client_key()]
        return True

    def _credentials_hint(self) -> str:
        names = sorted(self._given)
        used = (
            f"storage_options with {', '.join(names)}" if names else "the environment's, no storage_options"
        )
        if self._from_environment:
            used += f" ({', '.join(self._from_environment)} of the environment)"
        return (
            f"credentials used: {used}; check that they are valid, not expired, and allowed to do this "
            "(a requester-pays bucket needs storage_options={'requester_pays': True})"
        )

    def _upload_policy(self, nbytes: int) -> RetryPolicy:
        return replace(self.retry, timeout_s=self.retry.timeout_s + nbytes / _SLOWEST_UPLOAD_BYTES_PER_S)

    def _join(self, root: str, key: str) -> str:
        if not key:
            return root
        check_key(key, self.url)
        return f"{root.rstrip('/')}/{quote(key) if self._scheme in ('http', 'https') else key}"

    def _shown(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url


def _tune(fs: Any, retry: RetryPolicy) -> None:
    """Leave retries and time limits to this package: s3fs and botocore would each multiply them by five."""
    cache = getattr(fs, "dircache", None)
    if cache is not None and hasattr(cache, "use_listings_cache"):
        cache.use_listings_cache = False  # another process may have written since
    if "s3" in (fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,)) and hasattr(
        fs, "config_kwargs"
    ):
        fs.retries = 1
        fs.read_timeout = retry.attempt_timeout_s
        fs.connect_timeout = min(10.0, retry.attempt_timeout_s)
        own = {"retries": {"max_attempts": 0}, "max_pool_connections": _CONNECTIONS}
        fs.config_kwargs = {**own, **fs.config_kwargs}


def _below(name: str, root: str) -> str:
    bare_root = root.lstrip("/")
    bare = name.lstrip("/")
    return bare[len(bare_root) :] if bare.startswith(bare_root) else ""
