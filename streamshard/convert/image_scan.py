"""Images of a scan: found, sized, and where that is wanted decoded, each file once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import NamedTuple

from streamshard.convert.images import HEAD_NBYTES, ImageFacts, check_image, sniff_format
from streamshard.convert.located import digest_of, locate_reference
from streamshard.convert.places import ImagePlace, Located, check_image_nbytes
from streamshard.convert.problems import RecordProblem, shorten
from streamshard.convert.references import DATA_URI_REFERENCE, Embedded, Reference

_REMOTE_THREADS = 16
_REMEMBERED_IMAGES = 1 << 16


class CheckedImage(NamedTuple):
    """One image as it will be stored: size, hash of its bytes (0 unread), what it is."""

    nbytes: int
    digest: int
    facts: ImageFacts


class ImageScan:
    """Looks at images in batches; a file that several records name is decoded once.

    Args:
        open_images: opens the place of image files, when one is needed.
        check: decode every image.
        max_pixels: the most pixels that an image may have.
    """

    def __init__(self, open_images: Callable[[], ImagePlace], *, check: bool, max_pixels: int) -> None:
        self._open_images = open_images
        self._decode = check
        self._max_pixels = max_pixels
        self._place: ImagePlace | None = None
        self._known: dict[str, CheckedImage | RecordProblem] = {}

    def locate(self, reference: Reference) -> Located | Embedded:
        """See :func:`~streamshard.convert.located.locate_reference`."""
        return locate_reference(reference, self._opened)

    def _opened(self) -> ImagePlace:
        if self._place is None:
            self._place = self._open_images()
        return self._place

    def check_all(self, wanted: list[Located | Embedded]) -> Iterator[CheckedImage | RecordProblem]:
        """The findings, in the order of ``wanted``."""
        missing = {place.name: place for place in wanted if isinstance(place, Located)}
        missing = {name: place for name, place in missing.items() if name not in self._known}
        if len(self._known) + len(missing) > _REMEMBERED_IMAGES:
            self._known = {
                place.name: self._known[place.name]
                for place in wanted
                if isinstance(place, Located) and place.name in self._known
            }
        if self._place is not None and self._place.remote and len(missing) > 1:
            with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
                found = list(threads.map(self._check, missing.values()))
        else:
            found = [self._check(place) for place in missing.values()]
        self._known.update(zip(missing, found, strict=True))
        for place in wanted:
            yield self._known[place.name] if isinstance(place, Located) else self._check(place)

    def _check(self, image: Located | Embedded) -> CheckedImage | RecordProblem:
        try:
            if isinstance(image, Embedded):
                content = image.content
                check_image_nbytes(Located("", image.kept or "bytes"), len(content))
                return self._facts(len(content), content, content)
            place = self._place
            if place is None:
                raise RuntimeError("an image was located before its place was opened")
            if self._decode:
                content = place.read(image)
                return self._facts(len(content), content, content)
            nbytes, head = place.head(image, HEAD_NBYTES)
            return self._facts(nbytes, head, None)
        except RecordProblem as problem:
            if isinstance(image, Located) and not problem.message.startswith("image "):
                return RecordProblem(problem.reason, f"image {shorten(image.reference)}: {problem.message}")
            if isinstance(image, Embedded) and not problem.message.startswith(("image ", "data URI")):
                held = (
                    "in a data URI"
                    if image.kept == DATA_URI_REFERENCE
                    else f"in the record {image.kept}".rstrip()
                )
                return RecordProblem(problem.reason, f"image {held}: {problem.message}")
            return problem

    def _facts(self, nbytes: int, head: bytes, content: bytes | None) -> CheckedImage:
        if content is None or not self._decode:
            return CheckedImage(nbytes, 0, _facts_of_format(sniff_format(head[:HEAD_NBYTES])))
        facts = check_image(content, max_pixels=self._max_pixels)
        return CheckedImage(nbytes, digest_of(content), facts)


@lru_cache(maxsize=64)
def _facts_of_format(format: str) -> ImageFacts:
    return ImageFacts(format)
