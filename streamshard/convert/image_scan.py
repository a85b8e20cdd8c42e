"""Images of a scan: found, sized, and where that is wanted decoded, each file once."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from streamshard.convert.files import file_type
from streamshard.convert.images import HEAD_NBYTES, ImageFacts, check_image, sniff_format
from streamshard.convert.located import digest_of
from streamshard.convert.places import Located, is_web_url
from streamshard.convert.problems import UNREADABLE_IMAGE, RecordProblem
from streamshard.convert.references import Embedded
from streamshard.convert.supply import ImageSupply, Supplied, named_problem
from streamshard.errors import ConvertError

_REMEMBERED_IMAGES = 1 << 16
_NO_MEMORY = (
    "this machine has not the memory to decode it: use fewer --workers, or have images of so many pixels refused with a"
    " smaller --max-image-pixels; the same command goes on from here"
)


class CheckedImage(NamedTuple):
    """One image as it will be stored: size, hash of its bytes (0 unread), what it is.

    ``compared_nbytes`` is the size of what it is made from; ``None`` where that is at a URL, which may change.
    """

    nbytes: int
    digest: int
    facts: ImageFacts
    compared_nbytes: int | None


class ImageScan:
    """Looks at images one by one; a file that several records name is decoded once.

    Args:
        supply: brings the images.
        root: where relative references start.
        check: decode every image.
        max_pixels: the most pixels that an image may have.
        read: take the bytes of every image, even where only its size is needed: they are made into something else.
    """

    def __init__(
        self, supply: ImageSupply, root: str, *, check: bool, max_pixels: int, read: bool = False
    ) -> None:
        self._supply = supply
        self._root = root
        self._decode = check
        self._max_pixels = max_pixels
        self._read = read
        self._known: dict[str, CheckedImage | RecordProblem] = {}
        self._known_files: dict[str, CheckedImage | RecordProblem] = {}

    def begin(self, image: Located | Embedded) -> None:
        """Say that an image will be looked at soon."""
        if isinstance(image, Located):
            known = self._known_files if image.as_is else self._known
            if image.name not in known:
                self._supply.begin(image, self._root)

    def check(self, image: Located | Embedded) -> CheckedImage | RecordProblem:
        """The finding for one image."""
        if isinstance(image, Embedded):
            return self._found(image)
        known = self._known_files if image.as_is else self._known
        found = known.get(image.name)
        if found is None:
            found = self._found(image)
            if len(known) == _REMEMBERED_IMAGES:
                known.clear()
            known[image.name] = found
        return found

    def _found(self, image: Located | Embedded) -> CheckedImage | RecordProblem:
        try:
            if (
                isinstance(image, Located)
                and (image.as_is or not (self._decode or self._read))
                and not self._supply.is_distant(image, self._root)
            ):
                nbytes, head = self._supply.head(image, self._root)
                format = file_type(image) if image.as_is else sniff_format(head)
                return CheckedImage(nbytes, 0, _facts_of_format(format), nbytes)
            try:
                return self._looked_at(image, self._supply.get(image, self._root))
            except RecordProblem:
                again = self._supply.again(image, self._root)
                if again is None:
                    raise
                return self._looked_at(image, again)
        except RecordProblem as problem:
            self._supply.drop(image, self._root)
            return named_problem(problem, image)
        except MemoryError as error:
            # It says something of this machine, not of the file, which therefore is no bad one.
            raise ConvertError(
                str(named_problem(RecordProblem(UNREADABLE_IMAGE, _NO_MEMORY), image))
            ) from error

    def _looked_at(self, image: Located | Embedded, supplied: Supplied) -> CheckedImage:
        content, source_nbytes, facts = supplied
        if image.as_is:
            facts = _facts_of_format(file_type(image))
        elif not self._decode:
            facts = _facts_of_format(sniff_format(content[:HEAD_NBYTES]))
        elif facts is None:
            facts = check_image(content, max_pixels=self._max_pixels)
        from_web = isinstance(image, Located) and is_web_url(image.name)
        return CheckedImage(len(content), digest_of(content), facts, None if from_web else source_nbytes)


@lru_cache(maxsize=64)
def _facts_of_format(format: str) -> ImageFacts:
    return ImageFacts(format)
