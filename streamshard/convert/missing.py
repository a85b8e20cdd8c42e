"""An image file that is not there: which one the writer of a reference may have meant."""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from bisect import bisect_left
from functools import lru_cache
from urllib.parse import unquote

from streamshard.convert.problems import shorten

_IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".heic", ".avif")
_SPACED = re.compile(r"\s*/\s*")
_PART = re.compile(r"[^/\\]+")
_MOST_PARTS = 32
_LISTED_ENTRIES = 200_000
_OTHER_ROOTS = 64
# Comparing spelling takes some 5 µs a name, for each of perhaps a million files that are missing.
_COMPARED_NAMES = 400


class MissingImages:
    """Says what is there in place of files that are not; remembers the folders that it has looked through."""

    def __init__(self) -> None:
        self._entries = lru_cache(maxsize=16)(_entries)
        self._stems = lru_cache(maxsize=16)(self._stems_of)

    def hint(self, path: str, root: str, reference: str) -> str:
        """What to do about a file that is not there: ``path``, by a ``reference`` below ``root``."""
        folder, base = os.path.split(path)
        names = self._entries(folder)
        meant = _meant_path(path)
        several = [f"{folder}/{name.strip()}" for name in re.split(r"[;|,]", base)]
        if meant:
            return f"{shorten(meant)} does: mend the reference"
        if len(several) > 1 and all(map(os.path.isfile, several)):
            return f'these are {len(several)} files that do: several images of a record are a list, ["a.jpg", "b.jpg"]'
        other = self._other_root(root, reference)
        if other:
            return f"{shorten(f'{other}/{reference}')} does: --image-root {shorten(other)}"
        front = front_too_many(root, reference)
        if front:
            return f"without {shorten(front)} in front it does: cut that off the references"
        if names is None:
            return f"the folder {shorten(folder)} does not exist either{self._meant_folder(folder)}"
        near = self._nearby_names(base.rpartition("\\")[2], folder)
        return f"nearby: {', '.join(map(repr, near))}" if near else "nothing of a similar name is there"

    def _other_root(self, root: str, reference: str) -> str | None:
        """The folder above the root, or one in it, below which the file is there."""
        above, last = os.path.split(root.rstrip("/"))
        others = [above] if reference.partition("/")[0] == last else []
        others += [f"{root.rstrip('/')}/{name}" for name in (self._entries(root) or ())[:_OTHER_ROOTS]]
        return next((other for other in others if os.path.isfile(f"{other}/{reference}")), None)  # noqa: PTH113

    def _meant_folder(self, folder: str) -> str:
        """What to say of folders with a similar name, where the first part of a path that is missing should be."""
        above, base = os.path.split(folder)
        while self._entries(above) is None and above != os.path.dirname(above):  # noqa: PTH120
            above, base = os.path.split(above)
        near = self._nearby_names(base, above)
        return f"; nearby: {', '.join(map(repr, near))}" if near else ""

    def _nearby_names(self, wanted: str, folder: str) -> list[str]:
        """Up to three names that the writer may have meant: another ending or case first, then similar spelling."""
        same = self._stems(folder).get(_comparable(wanted))
        if same:
            return sorted(same, key=lambda name: (not name.lower().endswith(_IMAGE_ENDINGS), name))[:3]
        names = self._entries(folder) or ()
        begin = max(0, min(bisect_left(names, wanted) - _COMPARED_NAMES // 2, len(names) - _COMPARED_NAMES))
        return difflib.get_close_matches(wanted, names[begin : begin + _COMPARED_NAMES], n=3, cutoff=0.75)

    def _stems_of(self, folder: str) -> dict[str, list[str]]:
        stems: dict[str, list[str]] = {}
        for name in self._entries(folder) or ():
            stems.setdefault(_comparable(name), []).append(name)
        return stems


def front_too_many(root: str, reference: str) -> str:
    """What to cut off a reference, folders of another machine or root, for a file that is there; or nothing."""
    parts = list(_PART.finditer(reference))
    if any(part.group() == ".." for part in parts):
        return ""
    for place, part in enumerate(parts[1:_MOST_PARTS], 1):
        if os.path.isfile(f"{root}/{'/'.join(each.group() for each in parts[place:])}"):  # noqa: PTH113
            return reference[: part.start()]
    return ""


def _meant_path(path: str) -> str | None:
    """A file that is there under the path as other systems write it."""
    for other in (
        _SPACED.sub("/", path.strip()),
        path.replace("\\", "/"),
        unquote(path),
        unquote(path.replace("+", " ")),
    ):
        if other != path and os.path.isfile(other):  # noqa: PTH113
            return other
    return None


def _comparable(name: str) -> str:
    """A name without its ending, case, and the two ways of writing accented letters."""
    return unicodedata.normalize("NFC", name.rpartition(".")[0] or name).casefold().strip()


def _entries(folder: str) -> tuple[str, ...] | None:
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if len(names) == _LISTED_ENTRIES:
                    break
    except OSError:
        return None
    return tuple(sorted(names))
