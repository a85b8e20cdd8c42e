"""The bytes of images as they are to be stored, wherever they come from: for the scan, and again for the shards.

What comes over a network is asked for ahead, many images at once, and kept in the work directory (see
:mod:`~streamshard.convert.kept`), so that it comes once. So is what is made from another image.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamshard.convert.fetch_limits import FetchLimits
from streamshard.convert.images import HEAD_NBYTES, ImageFacts
from streamshard.convert.kept import KeptImages
from streamshard.convert.located import digest_of, locate_reference
from streamshard.convert.opened import OpenedImage
from streamshard.convert.places import (
    ImagePlace,
    LocalImages,
    Located,
    check_image_nbytes,
    is_web_url,
    open_place,
)
from streamshard.convert.problems import RecordProblem, shorten
from streamshard.convert.references import DATA_URI_REFERENCE, Embedded, Reference
from streamshard.convert.resizing import Resizing
from streamshard.storage.redact import public_url

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from streamshard.convert.fetching import Fetcher

# Images asked for before they are needed, for each request that may run at a time: records are closed in their order,
# and one image that is late by some requests must not leave the line idle.
_AHEAD = 16
# Of what has come ahead, no more than this waits in memory.
_WAITING_NBYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """How images are brought in, the same for all tasks of a conversion.

    Args:
        kept: folder for copies.
        max_pixels: most pixels of an image that is decoded.
        allow_outside_root: let references leave the image root.
        at_once: requests at the same time in one process.
        quick: images are decoded, so that one that was cut on its way is noticed; it is read with care then.
        leave_free_nbytes: see :class:`~streamshard.convert.kept.KeptImages`; samples that are made ready leave as much.
        fetch: limits, where URLs are fetched; ``None``: they are not.
        resizing: what is made of images; ``None``: nothing.
        storage_options: passed to fsspec for every URL.
    """

    kept: str
    max_pixels: int
    allow_outside_root: bool = False
    at_once: int = 16
    quick: bool = False
    leave_free_nbytes: int = 0
    fetch: FetchLimits | None = None
    resizing: Resizing | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


class Supplied(NamedTuple):
    """An image as it is to be stored.

    ``source_nbytes`` is the size of what it was made from, and ``facts`` what it is, where that came to light.
    """

    content: bytes
    source_nbytes: int
    facts: ImageFacts | None = None


class ImageSupply:
    """Images of one task, from any number of roots; a context manager.

    With ``resizing``, use it inside :func:`~streamshard.convert.images.own_pixel_limit`.
    """

    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._places: dict[str, ImagePlace] = {}
        # The places of files of this machine, when nothing comes over a network.
        self._near: dict[str, LocalImages] = {}
        self._kept = KeptImages(Path(settings.kept), settings.leave_free_nbytes)
        self._fetcher: Fetcher | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._coming: dict[str, Future[bytes]] = {}
        self._come_nbytes = 0
        self._lock = threading.Lock()
        self._distant = False

    def __enter__(self) -> ImageSupply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        if self._fetcher is not None:
            self._fetcher.close()

    @property
    def wants_more(self) -> int:
        """How many images it wants to know of before it is asked for the content of the first of them."""
        if not self._distant or self._come_nbytes >= _WAITING_NBYTES:
            return 0
        return _AHEAD * self._settings.at_once

    def locate(self, reference: Reference, root: str) -> Located | Embedded:
        """Find an image: a URL, a file below ``root``, or the bytes themselves.

        Raises:
            RecordProblem: a reference that cannot be used.
        """
        near = self._near.get(root)
        if near is not None and type(reference) is str and reference[:5].lower() != DATA_URI_REFERENCE:
            return near.locate(reference)
        if isinstance(reference, str) and self._settings.fetch is not None and is_web_url(reference):
            return Located(reference, public_url(reference))
        return locate_reference(reference, lambda: self._place(root))

    def is_near(self, root: str) -> bool:
        """Whether it is known that no image of a record with this root comes over a network."""
        return root in self._near

    def is_distant(self, image: Located | Embedded, root: str) -> bool:
        """Whether an image comes over a network."""
        return (
            root not in self._near
            and isinstance(image, Located)
            and (is_web_url(image.name) or self._place(root).remote)
        )

    def begin(self, image: Located | Embedded, root: str) -> None:
        """Ask for an image that comes over a network, unless it has come already."""
        if root in self._near:
            return
        if not isinstance(image, Located) or not self.is_distant(image, root):
            return
        self._distant = True
        key = self._key(image, root)
        if key in self._coming or self._kept.has(self._kept_key(image, key)):
            return
        found = self._ask(image, root)
        found.add_done_callback(self._has_come)
        self._coming[key] = found

    def get(self, image: Located | Embedded, root: str) -> Supplied:
        """The image as it is to be stored.

        Raises:
            RecordProblem: there is none.
        """
        if isinstance(image, Embedded):
            check_image_nbytes(Located("", image.kept or "in the record"), len(image.content))
            content = image.content
        elif not self.is_distant(image, root):
            content = self._place(root).read(image)
        else:
            return self._distant_image(image, root)
        resizing = None if image.as_is else self._settings.resizing
        if resizing is None:
            return Supplied(content, len(content))
        key = f"of {digest_of(content):x} {len(content)}"
        kept = self._kept.get(self._made_key(key))
        return self._made(key, content, resizing) if kept is None else Supplied(*kept)

    def again(self, image: Located | Embedded, root: str) -> Supplied | None:
        """An image that turned out to be unusable, read with care; ``None`` where it was.

        Raises:
            RecordProblem: it is not there, or is still unusable.
        """
        if not isinstance(image, Located) or is_web_url(image.name) or not self._settings.quick:
            return None
        if image.as_is:
            return None  # it was read with care
        if not self._place(root).remote:
            return None
        content = self._place(root).read(image)
        key = self._key(image, root)
        if self._settings.resizing is not None:
            return self._made(key, content, self._settings.resizing)
        self._kept.put(key, content, len(content))
        return Supplied(content, len(content))

    def open(self, image: Located | Embedded, root: str) -> OpenedImage | bytes:
        """The image as it is to be stored: an open file where it is one as it lies there, else as :meth:`get`."""
        near = self._near.get(root)
        if near is None or not isinstance(image, Located):
            return self.get(image, root).content
        if self._settings.resizing is not None and not image.as_is:
            return self.get(image, root).content
        return near.open(image)

    def drop(self, image: Located | Embedded, root: str) -> None:
        """Keep no copy of an image that turned out to be unusable: it may be mended where it comes from."""
        if isinstance(image, Located) and self.is_distant(image, root):
            self._kept.drop(self._kept_key(image, self._key(image, root)))

    def near(self, root: str) -> LocalImages | None:
        """The files below a root of this machine, where nothing comes over a network."""
        self._place(root)
        return self._near.get(root)

    def head(self, image: Located, root: str) -> tuple[int, bytes]:
        """The size and the first bytes of a local file, see :class:`~streamshard.convert.places.ImagePlace`."""
        return self._place(root).head(image, HEAD_NBYTES)

    def _distant_image(self, image: Located, root: str) -> Supplied:
        key = self._key(image, root)
        kept = self._kept.get(self._kept_key(image, key))
        coming = self._coming.pop(key, None)
        if kept is not None:
            return Supplied(*kept)
        content = (coming or self._ask(image, root)).result()
        if coming is not None:
            self._count(-len(content))
        if self._settings.resizing is not None and not image.as_is:
            return self._made(key, content, self._settings.resizing)
        self._kept.put(key, content, len(content))
        return Supplied(content, len(content))

    def _made(self, key: str, content: bytes, resizing: Resizing) -> Supplied:
        made, facts = resizing.make(content, self._settings.max_pixels)
        if made is not content or not key.startswith("of "):
            self._kept.put(self._made_key(key), made, len(content))
        return Supplied(made, len(content), facts)

    def _kept_key(self, image: Located, key: str) -> str:
        return key if image.as_is else self._made_key(key)

    def _made_key(self, key: str) -> str:
        return key if self._settings.resizing is None else f"{self._settings.resizing} {key}"

    def _key(self, image: Located, root: str) -> str:
        return image.name if is_web_url(image.name) else f"{root.rstrip('/')}/{image.name}"

    def _ask(self, image: Located, root: str) -> Future[bytes]:
        limits = self._settings.fetch
        if limits is not None and is_web_url(image.name):
            if self._fetcher is None:
                from streamshard.convert.fetching import Fetcher

                self._fetcher = Fetcher(limits, self._settings.at_once)
            return self._fetcher.fetch(image.name)
        if self._threads is None:
            from concurrent.futures import ThreadPoolExecutor

            self._threads = ThreadPoolExecutor(self._settings.at_once, "streamshard-images")
        place = self._place(root)
        quick = self._settings.quick and not image.as_is
        return self._threads.submit(place.read_quickly if quick else place.read, image)

    def _has_come(self, done: Future[bytes]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._count(len(done.result()))

    def _count(self, nbytes: int) -> None:
        with self._lock:
            self._come_nbytes += nbytes

    def _place(self, root: str) -> ImagePlace:
        place = self._places.get(root)
        if place is None:
            place = self._places[root] = open_place(
                root,
                allow_outside_root=self._settings.allow_outside_root,
                storage_options=self._settings.storage_options,
            )
            if isinstance(place, LocalImages) and self._settings.fetch is None:
                self._near[root] = place
        return place


def named_problem(problem: RecordProblem, image: Located | Embedded) -> RecordProblem:
    """The problem of an image with the image named, where it does not say that yet."""
    named = _named_problem(problem, image)
    return named.of_file() if image.as_is else named


def _named_problem(problem: RecordProblem, image: Located | Embedded) -> RecordProblem:
    if isinstance(image, Located):
        if problem.message.startswith("image "):
            return problem
        return RecordProblem(problem.reason, f"image {shorten(image.reference)}: {problem.message}")
    if problem.message.startswith(("image ", "data URI")):
        return problem
    held = (
        "in a data URI"
        if image.kept.startswith(DATA_URI_REFERENCE)
        else f"in the record {image.kept}".rstrip()
    )
    return RecordProblem(problem.reason, f"image {held}: {problem.message}")
