"""Where image references lead: from a reference to a file below the image root, and to its bytes.

A relative reference starts at ``--image-root``, or where that is not given, at the folder of the JSONL file
that holds it; never at the current directory. Only regular files inside the root are read: an absolute path, ``..``
or a link that leaves it is refused unless the user allows it.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections import deque
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import unquote

from streamshard.convert.jsonl import read_span
from streamshard.convert.opened import OpenedImage, changed_problem, unread_problem
from streamshard.convert.problems import (
    BAD_REFERENCE,
    EMPTY_IMAGE,
    MISSING_IMAGE,
    OUTSIDE_ROOT,
    TOO_LARGE,
    URL_IMAGE,
    RecordProblem,
    shorten,
)
from streamshard.errors import (
    AccessDeniedError,
    BlobNotFoundError,
    ConvertError,
    StorageError,
    WrongSizeError,
)
from streamshard.storage.opening import is_local, local_directory, open_store
from streamshard.storage.redact import public_url
from streamshard.storage.store import Store

if TYPE_CHECKING:
    from streamshard.convert.missing import MissingImages

_LARGEST_IMAGE = (1 << 32) - 1
# Images below this come with one request.
_SMALL_IMAGE = 1 << 22
_REMEMBERED_FOLDERS = 1 << 16
# One for each image root of a conversion, with what it was opened with.
_stores: deque[tuple[str, Any, Store]] = deque(maxlen=16)
# O_NOFOLLOW: a link is resolved, and where it leads is checked, before it is opened. O_NONBLOCK: a FIFO must be
# refused, not waited for.
_OPEN_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW


class Located(NamedTuple):
    """An image file that a reference names: ``name`` finds it, ``reference`` is what the path column keeps.

    ``as_is``: a file that nobody looks into, see :mod:`~streamshard.convert.files`.
    """

    name: str
    reference: str
    as_is: bool = False


class ImagePlace(Protocol):
    """A root of image references."""

    remote: bool

    def locate(self, reference: str) -> Located:
        """Find the file (its existence is not checked here); RecordProblem for one that may not be read."""

    def read(self, located: Located) -> bytes:
        """All bytes; RecordProblem where there are none."""

    def read_quickly(self, located: Located) -> bytes:
        """As ``read``, with as few requests as can be: what is cut on its way is perhaps not noticed."""

    def head(self, located: Located, nbytes: int) -> tuple[int, bytes]:
        """The size of the file and its first bytes; RecordProblem as for ``read``."""


def open_place(root: str, *, allow_outside_root: bool, storage_options: Any = None) -> ImagePlace:
    """Open an image root, a directory or a URL.

    Raises:
        ConvertError: a local root that is not a directory.
    """
    if not is_local(root):
        return RemoteImages(_store(root, storage_options))
    path = local_path(root)
    if not path.is_dir():
        raise ConvertError(f"image root {root!r}: no such directory ({path})")
    return LocalImages(path, allow_outside_root=allow_outside_root)


def _store(root: str, storage_options: Any) -> Store:
    """The store of a URL, the same for all tasks that a process does: its client costs tenths of a second."""
    for url, options, store in _stores:
        if url == root and options == storage_options:
            return store
    store = open_store(root, storage_options=storage_options)
    _stores.append((root, storage_options, store))
    return store


def forget_stores() -> None:
    """At the end of a conversion: another one may have other variables in its environment."""
    _stores.clear()


def local_path(text: str) -> Path:
    """A local path or ``file://`` URL as an absolute path; ``~`` expanded."""
    return Path(os.path.abspath(local_directory(text)))  # noqa: PTH100 ".." as written, links kept


class LocalImages:
    """Image files below a directory."""

    remote = False

    def __init__(self, root: Path, *, allow_outside_root: bool) -> None:
        # Bytes, so that names mean the same under every locale.
        self._named_root = os.fsencode(root)
        self._root = os.path.realpath(self._named_root)
        self._inside = self._root if self._root.endswith(b"/") else self._root + b"/"
        self._allow_outside = allow_outside_root
        self._real_folder = lru_cache(maxsize=_REMEMBERED_FOLDERS)(os.path.realpath)
        # What relative references begin with, up to their last "/", where that leads into the root -> its real path.
        self._plain_folders: dict[str, str] = {}
        self._missing: MissingImages | None = None

    def locate(self, reference: str) -> Located:
        """See :class:`ImagePlace`. A link in the last part of the path is met, and checked, when the file is read."""
        base_at = reference.rfind("/") + 1
        begin = self._plain_folders.get(reference[:base_at])
        base = reference[base_at:]
        if begin is None or not base.isascii() or base in ("", ".", "..") or "\0" in base:
            return self._locate_with_care(reference)
        return Located(begin + base, reference)

    def _locate_with_care(self, reference: str) -> Located:
        path = self._path_of(reference)
        folder, base = os.path.split(path)
        real = os.path.join(self._real_folder(folder), base)  # noqa: PTH118 bytes
        if base in (b"", b".", b".."):
            real = os.path.realpath(path)
        else:
            try:
                if stat.S_ISLNK(os.lstat(real).st_mode):
                    real = os.path.realpath(real)
            except OSError:
                pass  # reading it will tell what is wrong
        self._check_inside(real, reference)
        kept = self._kept_reference(reference, path)
        begin, _, base = real.rpartition(b"/")
        if kept is reference and begin == self._real_folder(folder):
            if len(self._plain_folders) == _REMEMBERED_FOLDERS:
                self._plain_folders.clear()
            self._plain_folders[reference[: reference.rfind("/") + 1]] = os.fsdecode(begin + b"/")
        return Located(os.fsdecode(real), kept)

    def _check_inside(self, real: bytes, reference: str) -> None:
        if not real.startswith(self._inside) and not self._allow_outside:
            below = os.path.join(self._root, os.fsencode(reference.lstrip("/")))  # noqa: PTH118 bytes
            meant = reference.startswith("/") and b"\0" not in below and os.path.isfile(below)  # noqa: PTH113
            front = "/" if meant else ""
            if not meant and not os.path.isfile(real):  # noqa: PTH113 bytes
                from streamshard.convert.missing import front_too_many

                front = front_too_many(os.fsdecode(self._root), reference)
            hint = f" (without {shorten(front)} in front it is a file there: leave that out)" if front else ""
            raise RecordProblem(
                OUTSIDE_ROOT,
                f"image {shorten(reference)} is {shorten(os.fsdecode(real))}, outside the image root"
                f" {os.fsdecode(self._root)!r}{hint}; choose another --image-root or allow it with"
                " --allow-outside-root",
            )

    def _path_of(self, reference: str) -> bytes:
        check_reference(reference)
        local = _path_of_url(reference) if reference[:7].lower() == "file://" else reference
        if "://" in local[:32]:
            raise RecordProblem(
                URL_IMAGE,
                f"image {shorten(public_url(reference))} is a URL; such URL images are not fetched by themselves:"
                f" --image-root {shorten(public_url(reference).rpartition('/')[0], 80)} reads those below it",
            )
        try:
            path = local.encode("utf-8")
        except UnicodeEncodeError:
            raise RecordProblem(
                BAD_REFERENCE, f"image {shorten(reference)} is not valid Unicode; rename the file"
            ) from None
        if path.startswith(b"~/"):
            path = os.path.expanduser(path)  # noqa: PTH111 bytes
        return os.path.join(self._named_root, path)  # noqa: PTH118 bytes

    def _kept_reference(self, reference: str, path: bytes) -> str:
        if not reference.startswith(("/", "~/")) and reference[:7].lower() != "file://":
            return reference
        # An absolute path says where this machine keeps its files; the dataset must not.
        for root in (self._named_root, self._root):
            relative = os.path.relpath(path, root)
            if not relative.startswith(b"../"):
                break
        return relative.decode("utf-8")

    def read(self, located: Located) -> bytes:
        nbytes, content = self._read(located, None)
        if len(content) != nbytes:
            raise changed_problem(located.name)
        return content

    read_quickly = read

    def head(self, located: Located, nbytes: int) -> tuple[int, bytes]:
        return self._read(located, nbytes)

    def open(self, located: Located) -> OpenedImage:
        """Open a file, to read it later; RecordProblem as for ``read``."""
        file = self._open(located)
        try:
            return OpenedImage(file, _checked_nbytes(file, located), located.name)
        except BaseException:
            os.close(file)
            raise

    def _read(self, located: Located, limit: int | None) -> tuple[int, bytes]:
        file = self._open(located)
        try:
            nbytes = _checked_nbytes(file, located)
            wanted = nbytes if limit is None or limit > nbytes else limit
            content = os.read(file, wanted)
            if len(content) != wanted:
                content += read_span(file, len(content), wanted - len(content))
        except OSError as error:
            raise unread_problem(located.name, error) from None
        else:
            return nbytes, content
        finally:
            os.close(file)

    def _open(self, located: Located) -> int:
        try:
            return os.open(located.name, _OPEN_FLAGS)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise self._unopened(located, error) from None
        real = os.path.realpath(os.fsencode(located.name))
        self._check_inside(real, located.reference)
        target = Located(os.fsdecode(real), located.reference)
        try:
            return os.open(real, _OPEN_FLAGS)
        except OSError as error:
            raise self._unopened(target, error) from None

    def _unopened(self, located: Located, error: OSError) -> RecordProblem:
        if isinstance(error, FileNotFoundError):
            from streamshard.convert.missing import MissingImages

            self._missing = self._missing or MissingImages()
            hint = self._missing.hint(located.name, os.fsdecode(self._named_root), located.reference)
            return RecordProblem(
                MISSING_IMAGE,
                f"image {shorten(located.reference)} does not exist ({shorten(located.name)}); {hint}",
            )
        hint = ""
        if error.errno == errno.ENAMETOOLONG:
            hint = "; the content of an image? in text it is a data URI, data:image/png;base64,…"
        return RecordProblem(
            MISSING_IMAGE, f"image {shorten(located.name, 80)} cannot be opened: {error.strerror}{hint}"
        )


def _checked_nbytes(file: int, located: Located) -> int:
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        raise RecordProblem(MISSING_IMAGE, f"image {shorten(located.name)} is not a regular file")
    if not 0 < found.st_size <= _LARGEST_IMAGE:
        check_image_nbytes(located, found.st_size)
    return found.st_size


class RemoteImages:
    """Image objects below a URL."""

    remote = True

    def __init__(self, store: Store) -> None:
        self._store = store
        # Whether the store has hashes that tell a whole image; not known before it was tried.
        self._has_hashes: bool | None = None

    def locate(self, reference: str) -> Located:
        check_reference(reference)
        below = self._store.url.rstrip("/") + "/"
        key = reference.removeprefix(below)
        if "://" in key[:32]:
            raise RecordProblem(
                URL_IMAGE, f"image {shorten(public_url(reference))} is not below the image root {below}"
            )
        normal = posixpath.normpath(key)
        if key.startswith("/") or normal == ".." or normal.startswith("../"):
            raise RecordProblem(OUTSIDE_ROOT, f"image {shorten(reference)} is outside the image root {below}")
        return Located(normal, key)

    def read(self, located: Located) -> bytes:
        if self._has_hashes is not False:
            content = self._read_small(located, certain=True)
            if content:
                self._has_hashes = True
                return content
            if content is None and self._has_hashes is None:
                self._has_hashes = False
        return self._read_with_care(located)

    def read_quickly(self, located: Located) -> bytes:
        return self._read_small(located, certain=False) or self._read_with_care(located)

    def _read_small(self, located: Located, *, certain: bool) -> bytes | None:
        """See :meth:`Store.read_small`; nothing where that fails, since reading with care tells what is wrong."""
        try:
            return self._store.read_small(located.name, _SMALL_IMAGE, certain=certain)
        except StorageError:
            return b""

    def _read_with_care(self, located: Located) -> bytes:
        try:
            content = self._store.read(located.name, limit=_LARGEST_IMAGE)
        except (BlobNotFoundError, AccessDeniedError) as error:
            raise RecordProblem(MISSING_IMAGE, f"image {shorten(located.reference)}: {error}") from None
        except WrongSizeError as error:
            raise RecordProblem(TOO_LARGE, f"image {shorten(located.reference)}: {error}") from None
        check_image_nbytes(located, len(content))
        return content

    def head(self, located: Located, nbytes: int) -> tuple[int, bytes]:
        try:
            size = self._store.size(located.name)
            check_image_nbytes(located, size)
            return size, bytes(self._store.read_range(located.name, 0, min(size, nbytes)))
        except (BlobNotFoundError, AccessDeniedError) as error:
            raise RecordProblem(MISSING_IMAGE, f"image {shorten(located.reference)}: {error}") from None


def _path_of_url(reference: str) -> str:
    """The path of a ``file://`` URL, whose host may be named and whose characters may be escaped (RFC 8089)."""
    path = reference[7:]
    if path.startswith("localhost/"):
        path = path.removeprefix("localhost")
    # Some write such URLs without escaping: then a file may have a "%" in its name.
    return path if "%" not in path or os.path.exists(path) else unquote(path)  # noqa: PTH110


def check_reference(reference: str) -> None:
    """Refuse what is no path on any place.

    Raises:
        RecordProblem: an ``http`` URL, or a NUL byte.
    """
    if is_web_url(reference):
        raise RecordProblem(
            URL_IMAGE,
            f"image {shorten(public_url(reference))} is a URL; URL images are not fetched without --fetch",
        )
    if "\0" in reference:
        raise RecordProblem(BAD_REFERENCE, f"image {shorten(reference)} holds a NUL byte")


def is_web_url(reference: str) -> bool:
    """Whether a reference is a URL of http or https."""
    return reference[:8].lower().startswith(("http://", "https://"))


def check_image_nbytes(located: Located, nbytes: int) -> None:
    """Refuse an image of no bytes, or of more than a shard can hold.

    Raises:
        RecordProblem: as said.
    """
    if nbytes == 0:
        raise RecordProblem(EMPTY_IMAGE, f"image {shorten(located.reference)} is an empty file (0 bytes)")
    if nbytes > _LARGEST_IMAGE:
        raise RecordProblem(
            TOO_LARGE,
            f"image {shorten(located.reference)} has {nbytes} bytes, more than a shard can hold (4 GiB)",
        )
