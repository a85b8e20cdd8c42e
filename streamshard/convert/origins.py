"""Inputs as the user names them: files, folders, patterns and URLs, told apart by what they hold.

A folder may be a dataset of its own (MDS, LitData, Hugging Face, a tree of images) or hold files of one kind. Nothing
is read here but small index files and the first bytes of local files.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard.convert.braces import expanded
from streamshard.convert.kinds import (
    IMAGE_SUFFIXES,
    RECIPE,
    SUFFIXES,
    bare_name,
    kind_by_content,
    kind_by_index,
    kind_by_name,
    unread_by_name,
)
from streamshard.convert.listing import Place
from streamshard.convert.places import local_path
from streamshard.errors import BlobNotFoundError, ConvertError
from streamshard.storage.opening import is_local, open_store
from streamshard.storage.redact import public_url
from streamshard.storage.store import check_key

_METADATA = {"metadata.jsonl", "metadata.csv", "metadata.parquet"}
_SPLIT = re.compile(r"(?:data/)?(train|test|validation|valid|val|dev|eval)(?:[-_.\d/]|$)", re.IGNORECASE)
_PARTITION = re.compile(r"\w+=[^/]*")
_READ_AGAIN = (
    "what is converted is read twice, and parts of it again after a kill, so that it cannot be standard input or"
    " another pipe: write it into a file, and name that"
)
_PATTERN = re.compile(r"[*?\[]")
_RECIPE_SUFFIX = ".py"


class Beside(NamedTuple):
    """What lies in a folder beside its files of records, or in their paths, and is in no record by itself.

    Attributes:
        images: how many image files.
        partition: the first part of a path that says a value (``"lang=de"``).
        links: links to folders, which are not followed.
        unread: the endings of files that are pictures of kinds that are not read.
        left: ending → how many files of a folder of images have it and are in no record, where there are many.
    """

    images: int = 0
    partition: str = ""
    links: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    left: Mapping[str, int] = {}


class Origin(NamedTuple):
    """One input: its size, and where relative image references in it start.

    ``detail`` is what staging has to know beside the file itself (JSON text), ``beside`` what lies around it.
    """

    name: str
    location: str
    image_folder: str
    nbytes: int
    mtime_ns: int | None
    kind: str = "jsonl"
    detail: str = ""
    beside: Beside = Beside()

    def fingerprint(self) -> list[Any]:
        """What must be equal for the work of an interrupted run to be still good."""
        return [self.location, self.nbytes, self.mtime_ns, self.kind, self.detail]


def find_origins(
    sources: Sequence[str],
    storage_options: Mapping[str, Any] | None,
    kind: str | None = None,
    recipe_options: Sequence[tuple[str, str]] = (),
    records: str = "",
    *,
    follow_links: bool = False,
) -> list[Origin]:
    """Look all inputs up; where two files have one name, their names are as much of their paths as tells them apart.

    Args:
        kind: one of :data:`KINDS` for all of them; ``None``: told by what they are.
        recipe_options: pairs of an option of a recipe and its value.
        records: where in the JSON object of a file its records are, see :mod:`streamshard.convert.json_members`.
        follow_links: look into the folders that links inside a folder lead to.

    Raises:
        ConvertError: one does not exist, is of no known kind, or holds nothing; options without a recipe; ``records``
            of something else than JSON.
        StorageError: a URL that cannot be reached.
    """
    origins = [
        origin
        for source in sources
        for origin in _Lookup(
            source, storage_options, kind, recipe_options, follow_links=follow_links
        ).origins(source)
    ]
    if recipe_options and all(origin.kind != RECIPE for origin in origins):
        raise ConvertError(
            f"--option {recipe_options[0][0]}: no source is a recipe, so nothing takes options"
        )
    if records:
        for origin in origins:
            if origin.kind != "jsonl":
                raise ConvertError(
                    f"--records {records}: source {origin.name!r} is {origin.kind}, and only JSON has records inside"
                )
        origins = [origin._replace(detail=records) for origin in origins]
    names = _short_names({public_url(origin.location) for origin in origins})
    return [
        origin if origin.kind == RECIPE else origin._replace(name=names[public_url(origin.location)])
        for origin in origins
    ]


def _short_names(places: Iterable[str]) -> dict[str, str]:
    """For each path or URL, the least number of its last parts that no other one ends with."""
    names: dict[str, str] = {}
    left = list(places)
    num_parts = 0
    while left:
        num_parts += 1
        tails = {place: "/".join(place.split("/")[-num_parts:]) for place in left}
        shared = Counter(tails.values())
        # A path that is the end of another one cannot get longer.
        names.update((place, tail) for place, tail in tails.items() if shared[tail] == 1 or tail == place)
        left = [place for place in left if place not in names]
    return names


class _Lookup:
    """Looks one argument up; ``source`` is what the user wrote, for messages."""

    def __init__(
        self,
        source: str,
        storage_options: Mapping[str, Any] | None,
        kind: str | None,
        recipe_options: Sequence[tuple[str, str]],
        *,
        follow_links: bool,
    ) -> None:
        self._shown = public_url(source)
        self._follow_links = follow_links
        self._options = storage_options
        self._kind = kind
        self._recipe_options = recipe_options

    def origins(self, source: str) -> list[Origin]:
        if source == "-":
            raise ConvertError(f"source '-': {_READ_AGAIN}")
        names = expanded(source)
        is_file = is_local(source) and os.path.exists(local_path(source))  # noqa: PTH110 no error of a long text
        if len(names) > 1 and not is_file:
            return [each for name in names for each in self._with(name).origins(name)]
        if not is_local(source):
            if self._kind == RECIPE or source.lower().endswith(_RECIPE_SUFFIX):
                raise ConvertError(f"source {self._shown!r}: a recipe is code; only local ones are run")
            return self._remote(source)
        path = local_path(source)
        if self._kind == RECIPE and not path.is_file():
            raise ConvertError(f"source {self._shown!r}: no such recipe ({path})")
        if self._kind == RECIPE or (self._kind is None and path.suffix == _RECIPE_SUFFIX and path.is_file()):
            from streamshard.convert.recipe import recipe_origins

            return recipe_origins(path, self._recipe_options)
        return self._local(path, source)

    def _with(self, source: str) -> _Lookup:
        """As this, for one of the names that an argument stands for."""
        return _Lookup(
            source, self._options, self._kind, self._recipe_options, follow_links=self._follow_links
        )

    def _local(self, path: Path, source: str) -> list[Origin]:
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return self._local_pattern(path, source)
        if path.is_dir():
            return self._folder(self._place(str(path)), str(path))
        if not path.is_file():
            raise ConvertError(f"source {self._shown!r}: not a regular file; {_READ_AGAIN}")
        kind = self._kind or kind_by_content(path) or kind_by_name(path.name) or "jsonl"
        self._refuse_folder_kind(kind)
        if self._kind is None and path.suffix == _RECIPE_SUFFIX:
            raise ConvertError(
                f"source {self._shown!r}: matches {path.name}; a recipe is code, run only when it is named itself"
            )
        return [Origin(path.name, str(path), str(path.parent), found.st_size, found.st_mtime_ns, kind)]

    def _local_pattern(self, path: Path, source: str) -> list[Origin]:
        if not _PATTERN.search(str(path)):
            raise ConvertError(f"source {self._shown!r}: no such file ({path})")
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 "**" as in a shell, hidden files left out
        if not matches:
            raise ConvertError(f"source {self._shown!r}: no file matches the pattern ({path})")
        # "**" also matches folders, whose files it matches as well.
        parents = {str(parent) for match in matches for parent in Path(match).parents}
        paths = [path for path in map(Path, matches) if str(path) not in parents]
        return [origin for path in paths for origin in self._local(path, source)]

    def _remote(self, source: str) -> list[Origin]:
        folder, _, name = source.rpartition("/")
        web = source.lower().startswith(("http://", "https://"))
        if "?" in source and web:
            raise ConvertError(
                f"source {self._shown!r}: a URL with a query ('?') is not fetched; download it, and name the file"
            )
        if folder.endswith(":/"):
            raise ConvertError(
                f"source {self._shown!r}: names no file; name a file or a folder in the bucket"
            )
        if not name:
            return self._remote_folder(folder)
        if _PATTERN.search(source) and not web:
            return self._remote_pattern(source)
        kind = self._kind or kind_by_name(name)
        try:
            nbytes = open_store(folder, storage_options=self._options).size(name)
        except BlobNotFoundError:
            if web or not Place(source, self._options).names():
                raise
            return self._remote_folder(source)
        self._refuse_folder_kind(kind or "jsonl")
        return [Origin(self._shown.rpartition("/")[2], source, folder, nbytes, None, kind or "jsonl")]

    def _remote_pattern(self, source: str) -> list[Origin]:
        parts = source.split("/")
        fixed = next(place for place, part in enumerate(parts) if _PATTERN.search(part))
        root, pattern = "/".join(parts[:fixed]), _regex("/".join(parts[fixed:]))
        keys = [key for key in Place(root, self._options).names() if pattern.fullmatch(key)]
        if not keys:
            raise ConvertError(f"source {self._shown!r}: no file matches the pattern")
        return [origin for key in keys for origin in self._remote(f"{root}/{key}")]

    def _remote_folder(self, url: str) -> list[Origin]:
        return self._folder(self._place(url), url)

    def _place(self, location: str) -> Place:
        return Place(location, self._options, follow_links=self._follow_links)

    def _folder(self, place: Place, location: str) -> list[Origin]:
        described = () if self._kind else _described_folders(place.names())
        if described:
            if len({match[1].lower() for folder in described if (match := _SPLIT.match(folder))}) > 1:
                shown = self._shown.rstrip("/")
                raise ConvertError(
                    f"source {self._shown!r}: its folders {', '.join(described)} are splits; convert each by itself,"
                    f" such as {shown}/{described[0]}, or name all of them one after another"
                )
            places = [f"{location.rstrip('/')}/{folder}" for folder in described]
            return [each for one in places for each in self._folder(self._place(one), one)]
        kind = self._kind or self._kind_of_folder(place)
        if kind == "mds":
            from streamshard.convert.forms.mds_stage import shard_origins

            return shard_origins(place, self._options)
        if kind == "litdata":
            from streamshard.convert.forms.litdata import chunk_origins

            return chunk_origins(place)
        if kind == "imagefolder":
            from streamshard.convert.forms.folder import folder_origin

            return [folder_origin(place, self._shown)]
        if kind == "hf" and "state.json" in place.top():
            return self._saved_dataset(place)
        return self._files(place, kind)

    def _saved_dataset(self, place: Place) -> list[Origin]:
        """The files of a dataset that Hugging Face ``datasets`` saved; others beside them are its caches."""
        try:
            state = json.loads(place.read("state.json"))
            names = [file["filename"] for file in state["_data_files"]]
            if state.get("_indices_data_files"):
                raise ConvertError(
                    f"source {self._shown!r}: a selection of rows beside the rows themselves; save it again after"
                    " dataset.flatten_indices()"
                )
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            if isinstance(error, ConvertError):
                raise
            raise ConvertError(f"{place.name}/state.json: not what `datasets` writes: {error}") from None
        return [place.origin(check_key(name, place.name), "hf") for name in names]

    def _kind_of_folder(self, place: Place) -> str:
        top = place.top()
        if "index.json" in top:
            return kind_by_index(place)
        if "dataset_dict.json" in top:
            raise ConvertError(
                f"source {self._shown!r}: holds several splits; name one, such as {self._shown.rstrip('/')}/train"
            )
        if "state.json" in top and "dataset_info.json" in top:
            return "hf"
        names = place.names()
        counts = Counter(filter(None, map(kind_by_name, names)))
        images = sum(name.lower().endswith(IMAGE_SUFFIXES) for name in names)
        if images and (_METADATA & top or not counts or _describe_images(names)):
            return "imagefolder"
        if not counts:
            unread = f"; {found}" if (found := unread_by_name(names)) else ""
            raise ConvertError(
                f"source {self._shown!r}: a folder without files of a known kind ({', '.join(sorted(SUFFIXES))},"
                f" images); name the files themselves, or their kind with --from{_links_text(place)}{unread}"
            )
        if counts["webdataset"]:
            return "webdataset"  # the others describe them (img2dataset)
        # A .json beside others describes them.
        lines = Counter(kind_by_name(name) for name in names if not bare_name(name).endswith(".json"))
        counts = Counter({kind: count for kind, count in lines.items() if kind}) or counts
        if len(counts) > 1:
            raise ConvertError(
                f"source {self._shown!r}: a folder with files of several kinds"
                f" ({', '.join(f'{count} {kind}' for kind, count in sorted(counts.items()))}); say which with --from"
            )
        return next(iter(counts))

    def _refuse_splits(self, names: Sequence[str]) -> None:
        """Refuse files that are called training and test data: nobody wants them in one dataset without saying so."""
        found = {match[1].lower(): (name, match.end(1)) for name in names if (match := _SPLIT.match(name))}
        if len(found) > 1:
            shown = ", ".join(name for name, _ in sorted(found.values()))
            folder = self._shown.rstrip("/")
            endings = sorted({os.path.splitext(bare_name(name))[1] for name in names})  # noqa: PTH122
            every = " ".join(f"'{folder}/**/*{ending}*'" for ending in endings)
            raise ConvertError(
                f"source {self._shown!r}: its files are of several splits ({shown}); convert each by itself, such as"
                f" '{folder}/{_pattern_of_split(*min(found.values()))}', or name all of them with {every}"
            )

    def _files(self, place: Place, kind: str) -> list[Origin]:
        names = [name for name in place.names() if kind_by_name(name) == kind]
        # A .json beside .jsonl files, or beside Arrow files, describes them.
        lines = [name for name in names if not bare_name(name).endswith(".json")]
        names = lines or names
        if not names:
            raise ConvertError(f"source {self._shown!r}: a folder without files of kind {kind!r}")
        self._refuse_splits(names)
        origins = [place.origin(name, kind) for name in names]
        images = sum(name.lower().endswith(IMAGE_SUFFIXES) for name in place.names())
        parts = (part for name in names for part in name.split("/")[:-1] if _PARTITION.fullmatch(part))
        return [
            origins[0]._replace(beside=Beside(images, next(parts, ""), tuple(place.unfollowed))),
            *origins[1:],
        ]

    def _refuse_folder_kind(self, kind: str) -> None:
        if kind in ("mds", "litdata", "imagefolder"):
            raise ConvertError(f"source {self._shown!r}: a file; --from {kind} takes a folder")


def _links_text(place: Place) -> str:
    links = place.unfollowed
    return (
        f"; links to folders ({', '.join(links[:3])}) are followed with --allow-outside-root" if links else ""
    )


def _pattern_of_split(name: str, end: int) -> str:
    """What names the files of a split, of which this is one, whose name for it ends at ``end``."""
    following = name[end : end + 1]
    return name[:end] + {"/": "/", ".": ".*"}.get(following, "*" if following.isdigit() else f"{following}*")


def _described_folders(names: Sequence[str]) -> Sequence[str]:
    """The sub-folders that hold the description of their images, where no file of records is anything else."""
    records = [name for name in names if kind_by_name(name) is not None]
    if any("/" not in name or name.rpartition("/")[2] not in _METADATA for name in records):
        return ()
    folders = sorted({name.rpartition("/")[0] for name in records})
    holds = tuple(f"{folder}/" for folder in folders)
    return (
        folders
        if any(name.startswith(holds) and name.lower().endswith(IMAGE_SUFFIXES) for name in names)
        else ()
    )


def _describe_images(names: Sequence[str]) -> bool:
    """Whether all files of records are .json that stand beside an image of the same name."""
    stems = {name.rpartition(".")[0] for name in names if name.lower().endswith(IMAGE_SUFFIXES)}
    return all(
        name.lower().endswith(".json") and name.rpartition(".")[0] in stems
        for name in names
        if kind_by_name(name) is not None
    )


def _regex(pattern: str) -> re.Pattern[str]:
    parts = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]]*\]|[^*?\[]+|\[", pattern):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token)
        if known is None:
            is_set = len(token) > 2 and token[0] == "["
            inside = token[1:-1].replace("\\", "\\\\")
            known = f"[{'^' + inside[1:] if inside[0] == '!' else inside}]" if is_set else re.escape(token)
        parts.append(known)
    return re.compile("".join(parts))
