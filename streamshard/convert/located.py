"""Images of a record between references and columns: where they are, what is kept of their names, their hash."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from streamshard.convert.places import ImagePlace, Located
from streamshard.convert.problems import BAD_REFERENCE, RecordProblem, shorten
from streamshard.convert.references import DATA_URI_REFERENCE, Embedded, Reference, decode_data_uri


def locate_reference(reference: Reference, place: Callable[[], ImagePlace]) -> Located | Embedded:
    """A file for a path, in the place that is opened when one is needed; the bytes themselves for all else.

    Raises:
        RecordProblem: a reference that cannot be used.
    """
    if isinstance(reference, Embedded):
        return reference
    if reference[:5].lower() == DATA_URI_REFERENCE:
        content = decode_data_uri(reference)
        if not content:
            raise RecordProblem(BAD_REFERENCE, f"data URI {shorten(reference, 40)} holds no bytes")
        return Embedded(content, DATA_URI_REFERENCE)
    return place().locate(reference)


def kept_references(located: list[Located | Embedded]) -> list[str]:
    """What the path column keeps of references: relative paths, ``data:`` for data URIs, names of files in records."""
    return [place.reference if isinstance(place, Located) else place.kept for place in located]


def joined_digest(digests: list[int]) -> int:
    """One number for the bytes of all images of a record; 0 where there are none, or one was not read."""
    if not digests or not all(digests):
        return 0
    return xxhash.xxh64_intdigest(b"".join(digest.to_bytes(8, "little") for digest in digests))


def digest_of(content: bytes | memoryview) -> int:
    """The hash of an image's bytes that the plan keeps."""
    return xxhash.xxh64_intdigest(content)
