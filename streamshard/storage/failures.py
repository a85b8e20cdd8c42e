"""What a foreign error means: missing, denied, worth another try, or final. Pure; imports no cloud library.

Cloud libraries raise hundreds of classes. They are told apart by built-in parents, by ``errno``, by the HTTP
status or error code that they carry, and last by class name, so that none of these libraries has to be
imported here.
"""

from __future__ import annotations

import enum
import errno
import sys
from collections.abc import Iterator

from streamshard.errors import AccessDeniedError, BlobNotFoundError, ChecksumError, StreamshardError


class Failure(enum.Enum):
    """The four ways in which a read or write can fail."""

    MISSING = "missing"
    DENIED = "denied"
    TRANSIENT = "transient"
    FINAL = "final"


_MISSING_CODES = frozenset({"404", "NoSuchBucket", "NoSuchKey", "NoSuchVersion", "NotFound", "BlobNotFound"})
# "400" without a body is how S3 answers a HEAD request whose token has expired.
_DENIED_CODES = frozenset(
    {
        "400", "401", "403", "AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthFailure",
        "AuthenticationFailed", "AuthorizationFailure", "ExpiredToken", "ExpiredTokenException", "Forbidden",
        "InvalidAccessKeyId", "InvalidPayer", "InvalidSecurity", "InvalidToken", "RequestExpired",
        "SignatureDoesNotMatch", "TokenRefreshRequired", "Unauthorized",
    }
)  # fmt: skip
_TRANSIENT_CODES = frozenset(
    {
        "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestLimitExceeded",
        "RequestTimeout", "ServerBusy", "ServiceUnavailable", "SlowDown", "Throttling", "ThrottlingException",
        "TooManyRequests", "XAmzContentSHA256Mismatch",
    }
)  # fmt: skip
_DENIED_CLASSES = frozenset(
    {
        "ClientAuthenticationError", "CredentialRetrievalError", "DefaultCredentialsError",
        "NoAuthTokenError", "NoCredentialsError", "PartialCredentialsError", "RefreshError",
        "TokenRetrievalError",
    }
)  # fmt: skip
# paramiko's, whose parent stands for all that can go wrong with a connection.
_REFUSED_BY_SSH = frozenset({"AuthenticationException", "BadHostKeyException"})
_TRANSIENT_CLASSES = frozenset(
    {
        "ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPClientError", "HTTPException",
        "IncompleteRead",
        "IncompleteReadError", "ProtocolError", "ResponseParserError", "ResponseStreamingError",
        "SSHException", "ServerDisconnectedError", "ServiceRequestError", "ServiceResponseError", "TransportError",
    }
)  # fmt: skip
_MOST_LINKS = 20
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 509, 520, 521, 522, 523, 524, 529})
_FINAL_ERRNO = frozenset(
    {
        errno.EDQUOT, errno.EFBIG, errno.EINVAL, errno.ELOOP, errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE,
        errno.ENOSPC, errno.ENOSYS, errno.EROFS,
    }
)  # fmt: skip

_DISK_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


def classify(error: BaseException) -> Failure:
    """Say what ``error`` means for the caller: look elsewhere, get permission, try again, or give up."""
    if isinstance(error, StreamshardError):
        return _classify_ours(error)
    for link in _chain(error):
        if _names(link) & _REFUSED_BY_SSH:
            return Failure.DENIED
        # Next, because aiohttp puts a made-up status 400 beneath an answer that was cut.
        if _names(link) & _TRANSIENT_CLASSES:
            return Failure.TRANSIENT
        verdict = _from_answer(link)
        if verdict is not None:
            return verdict
    for link in _chain(error):
        verdict = _from_class(link)
        if verdict is not None:
            return verdict
    return Failure.FINAL


def _classify_ours(error: StreamshardError) -> Failure:
    if isinstance(error, ChecksumError):
        return Failure.TRANSIENT
    if isinstance(error, BlobNotFoundError):
        return Failure.MISSING
    return Failure.DENIED if isinstance(error, AccessDeniedError) else Failure.FINAL


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(6):
        if link is None:
            return
        yield link
        link = link.__cause__


def _from_answer(error: BaseException) -> Failure | None:
    """Judge by what the server said, where the error carries it."""
    code, status = _server_answer(error)
    if code in _DENIED_CODES or status in (401, 403):
        return Failure.DENIED
    if code in _MISSING_CODES or status in (404, 410):
        return Failure.MISSING
    if code in _TRANSIENT_CODES or status in _TRANSIENT_STATUS:
        return Failure.TRANSIENT
    return Failure.FINAL if status is not None and status >= 400 else None


def http_status(error: BaseException) -> int | None:
    """The HTTP status that ``error`` or one of its causes carries, if any."""
    return next((status for link in _chain(error) if (status := _server_answer(link)[1]) is not None), None)


def _server_answer(error: BaseException) -> tuple[str | None, int | None]:
    response = getattr(error, "response", None)
    code: object = None
    status: object = None
    if isinstance(response, dict):  # botocore
        said = response.get("Error")
        code = said.get("Code") if isinstance(said, dict) else None
        metadata = response.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None
    for holder, name in (
        (error, "status"),
        (error, "status_code"),
        (error, "code"),
        (response, "status_code"),
    ):
        if status is None:
            status = getattr(holder, name, None)
    if isinstance(status, str) and status.isdigit():  # gcsfs keeps the status as text now and then
        status = int(status)
    known = isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600
    return (code if isinstance(code, str) else None), (int(str(status)) if known else None)


def _from_class(error: BaseException) -> Failure | None:
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return Failure.MISSING
    if isinstance(error, PermissionError):
        return Failure.DENIED
    if isinstance(error, (TimeoutError, ConnectionError, EOFError, *_timeouts_of_asyncio())):
        return Failure.TRANSIENT
    if _names(error) & _DENIED_CLASSES:
        return Failure.DENIED
    if isinstance(error, OSError):
        return Failure.FINAL if error.errno in _FINAL_ERRNO else Failure.TRANSIENT
    return None


def _timeouts_of_asyncio() -> tuple[type[BaseException], ...]:
    """Its timeout, a class of its own before Python 3.11. Whoever has raised one has loaded asyncio."""
    loaded = sys.modules.get("asyncio")
    return () if loaded is None else (loaded.TimeoutError,)


def _names(error: BaseException) -> set[str]:
    return {base.__name__ for base in type(error).__mro__}


def told_by(error: BaseException) -> Iterator[str]:
    """Give all that an error, and those that it came from, show to whoever looks at them."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting and len(seen) < _MOST_LINKS:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield str(link)
        yield repr(link)
        yield repr(link.args)
        waiting += [link.__cause__, link.__context__]


def describe(error: BaseException) -> str:
    """Put ``error`` into one line: its class, and its text where it has one."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def disk_error(error: BaseException) -> OSError | None:
    """The error of the local disk behind ``error``, if there is one."""
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in _DISK_ERRNO:
            return link
    return None
