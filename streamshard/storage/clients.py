"""Clients of fsspec: made at first use in each process, shared where equal, and made anew when refused."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fsspec.core import url_to_fs
from fsspec.utils import tokenize

from streamshard.errors import MissingDependencyError, StorageError
from streamshard.storage.cancel import run_bounded
from streamshard.storage.connections import Connections
from streamshard.storage.providers import provider_of
from streamshard.storage.redact import Redactor, public_url
from streamshard.storage.retry import RetryPolicy
from streamshard.storage.sending import FILE_SERVERS
from streamshard.storage.signed_gets import SignedGets

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# Connections that one client may have at all: many files come at a time.
_CONNECTIONS = 64

_RENEWED_EVERY_S = 1.0

_EXTRAS = {
    "s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure",
    "adl": "azure", "hf": "hf", "http": "http", "https": "http", "sftp": "sftp", "ssh": "sftp", "oci": "oci",
}  # fmt: skip

_BUCKET_SCHEMES = frozenset({"s3", "s3a", "gs", "gcs"})

# Held for moments only: to make a client may take for ever, where a name or a program for credentials gives no answer.
_state = threading.Lock()
# Clients in use, by what they were made with: a client costs tenths of a second, and a mix has many streams.
_shared: weakref.WeakValueDictionary[tuple[str, ...], Any] = weakref.WeakValueDictionary()
# Held by who makes a client, so that it is made once; nobody waits for it but those that would get an equal one.
_locks: weakref.WeakValueDictionary[tuple[str, ...], threading.Lock] = weakref.WeakValueDictionary()
# A forked child must not drop its parent's clients: their finalizers would talk to threads that it does not
# have.
_inherited: list[Any] = []


def _renew_after_fork() -> None:
    global _state
    _state = threading.Lock()
    _locks.clear()
    _inherited.extend(_shared.values())
    _shared.clear()


os.register_at_fork(after_in_child=_renew_after_fork)


class Client:
    """What reaches one place through fsspec, in this process and in those that get a copy.

    The file system object is made at first use in each process, after any fork, and shared only with places that would
    get an equal one. For S3, ``S3_ENDPOINT_URL`` is honoured where no endpoint is given, beside the variables that
    botocore reads itself.

    Attributes:
        url: the place, without secrets.
        scheme: of the place, in lower case.
        redact: takes secrets out of a text.
        renewals: how often the client was dropped after a refusal.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, retry: RetryPolicy) -> None:
        self.url = public_url(url)
        self._attempt_s = retry.attempt_timeout_s
        # Kept from now on, so that workers use what the trainer's process was given.
        provider = provider_of(url, storage_options or {}, os.environ)
        self._root_url, self._options = provider.url, provider.options
        self._given = tuple(map(str, storage_options or {}))
        self._from_environment = provider.used
        self.scheme = self._root_url.partition(":")[0].lower()
        self._endpoint = os.environ.get("S3_ENDPOINT_URL") if self.scheme in ("s3", "s3a") else None
        self.redact = Redactor(url, self._options)
        self.renewals = 0
        self._renewed_at = -math.inf
        self._opened: tuple[int, Any, str] | None = None
        self._connected: tuple[int, Connections] | None = None
        self._signed: tuple[int, SignedGets | None] | None = None
        self._takes_signed = False

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_opened": None,
            "_connected": None,
            "_signed": None,
            "_renewed_at": -math.inf,  # by the clock of another machine
        }

    def call(self, operation: Callable[[Any, str], T], limit_s: float) -> T:
        """Call ``operation(file system, root)``; TimeoutError if it takes longer than ``limit_s`` seconds."""
        if self.scheme in FILE_SERVERS:
            return self._connections().call(operation, limit_s)
        return run_bounded(lambda: operation(*self.filesystem()), limit_s)

    def filesystem(self) -> tuple[Any, str]:
        """The file system of this process and the root's path in it."""
        opened = self._opened
        if opened is not None and opened[0] == os.getpid():
            return opened[1], opened[2]
        with self._making():
            opened = self._opened
            if opened is not None and opened[0] == os.getpid():
                return opened[1], opened[2]
            if opened is not None:
                _inherited.append(opened)
            fs, root = self._open()
            self._opened = (os.getpid(), fs, root)
            return fs, root

    def signed_gets(self) -> SignedGets | None:
        """Those of this process; None where the place is no S3, or needs more than a signed URL.

        Raises:
            TimeoutError: where credentials come from, such as a program, there was no answer in time.
        """
        if self.scheme not in ("s3", "s3a") or "session" in self._options:
            return None
        signed = self._signed
        if signed is not None and signed[0] == os.getpid():
            return signed[1]
        return run_bounded(self._sign, self._attempt_s)

    def _sign(self) -> SignedGets | None:
        fs, _ = self.filesystem()
        with self._making():
            signed = self._signed
            if signed is None or signed[0] != os.getpid():
                gets = None
                try:
                    gets = SignedGets(fs, self._attempt_s)
                    gets.proven = self._takes_signed
                except (ImportError, TypeError, ValueError) as error:
                    _logger.debug("%s: read through fsspec alone: %s", self.url, error)
                self._signed = signed = (os.getpid(), gets)
            return signed[1]

    def use_no_signed_gets(self) -> None:
        """Leave reading to the library from now on, which may know more ways into this place."""
        self._signed = (os.getpid(), None)

    def renew(self, seen: int) -> bool:
        """Drop the client after a refusal, once per call: its credentials may have expired.

        Args:
            seen: ``renewals`` when the call began.

        Returns:
            Whether another try makes sense: not after a refusal of a client that was made just now.
        """
        if self.scheme in FILE_SERVERS:
            self._connections().drop()
            return True
        with _state:
            if self.renewals != seen:
                return True  # by another call meanwhile
            # A bucket may refuse one object of many; each time a client costs 0.1 to 0.3 s of CPU.
            if time.monotonic() - self._renewed_at < _RENEWED_EVERY_S:
                return False
            self.renewals += 1
            self._renewed_at = time.monotonic()
            opened, self._opened = self._opened, None
            signed, self._signed = self._signed, None
            # That one object is refused says nothing against signed URLs where others came by them.
            self._takes_signed |= signed is not None and signed[1] is not None and signed[1].proven
            if opened is not None and _shared.get(self._client_key()) is opened[1]:
                del _shared[self._client_key()]
        return True

    def hint(self) -> str:
        """What to say after a refusal: which credentials were used."""
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

    def _connections(self) -> Connections:
        """Those of this process, where each call needs one for itself."""
        with _state:
            connected = self._connected
            if connected is None or connected[0] != os.getpid():
                if connected is not None:
                    _inherited.append(connected)
                self._connected = connected = (os.getpid(), Connections(self._connect))
            return connected[1]

    def _making(self) -> threading.Lock:
        """What is held while a client like this one's is made."""
        with _state:
            return _locks.setdefault(self._client_key(), threading.Lock())

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
        plain = self.scheme in _BUCKET_SCHEMES and "::" not in self._root_url and "@" not in self._root_url
        return (
            self.scheme if plain else self._root_url,
            tokenize(self._options, self._endpoint),
            str(self._attempt_s),
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
            extra = _EXTRAS.get(self.scheme)
            how = f"pip install 'streamshard[{extra}]'" if extra else f"install what it names: {error}"
            raise MissingDependencyError(
                f"{self.url}: {self.scheme}:// needs a package that is not installed; {how}"
            ) from error
        except ValueError as error:
            raise StorageError(f"{self.url}: cannot be opened ({self.redact(str(error))})") from None
        _tune(fs, self._attempt_s)
        return fs, str(root)


def _tune(fs: Any, attempt_s: float) -> None:
    """Leave retries and time limits to this package: s3fs and botocore would each multiply them by five."""
    cache = getattr(fs, "dircache", None)
    if cache is not None and hasattr(cache, "use_listings_cache"):
        cache.use_listings_cache = False  # another process may have written since
    if "s3" in (fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,)) and hasattr(
        fs, "config_kwargs"
    ):
        fs.retries = 1
        fs.read_timeout = attempt_s
        fs.connect_timeout = min(10.0, attempt_s)
        own = {"retries": {"max_attempts": 0}, "max_pool_connections": _CONNECTIONS}
        fs.config_kwargs = {**own, **fs.config_kwargs}
