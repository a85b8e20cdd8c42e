"""The options of one conversion, checked before anything is read or written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamshard.convert.conditions import Condition
from streamshard.convert.fetch_limits import FetchLimits
from streamshard.convert.resizing import Resizing
from streamshard.convert.splits import Part
from streamshard.convert.tokenizing import token_columns

DEFAULT_SIZE_LIMIT = 1 << 26
# Pillow's own limit, above which it refuses to decode: 1 GiB of memory at three bytes a pixel, twice.
DEFAULT_MAX_IMAGE_PIXELS = 178_956_970
END_OF_OFFSETS = 1 << 32


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What ``streamshard convert`` is asked to do.

    Args:
        sources: JSONL files (also JSON arrays, ``.gz``, ``.bz2``, ``.zst``), local paths or URLs, in this order.
        out: directory or URL of the new dataset.
        image_root: where relative image references start; ``None``: the folder of the JSONL file that names them.
        image_keys: keys that hold images; empty: found among ``image``, ``images``, ``image_path``, ….
            ``("none",)``: no key holds images.
        file_keys: keys that hold files, audio or video, that are stored as they are, or chats that name such files;
            ``("none",)``: no key does, and names of such files are not pointed out.
        size_limit: target bytes of a shard, below 4 GiB; ``None``: cut only before 4 GiB.
        samples_per_shard: most samples in a shard, or ``None``.
        compression: ``"zstd:3"`` and the like, or ``None``.
        hashes: hash algorithms whose digests go into the index.
        workers: processes; ``None``: one for each CPU this process may use. With ``engine="ray"``: most tasks at a
            time; ``None``: as many as the cluster runs.
        engine: ``"local"``, or ``"ray"``: tasks on the nodes of a Ray cluster, for the same bytes.
        address: of the Ray cluster; ``None``: the one that this machine is a node of (``"auto"``), ``"local"``: a new
            one on this machine.
        task_cpus: CPUs that Ray reserves for a task.
        task_memory: bytes of memory that Ray reserves for a task; ``None``: none.
        shuffle: seed of one global permutation of the records, or ``None`` for the order of the input.
        check: decode every image once.
        on_error: ``"raise"``, or ``"skip"``: leave out records that cannot be converted, and count them.
        max_errors: most records that may be skipped, a number or a share of all records (``0.01``); ``None``: any.
        overwrite: replace a finished dataset in ``out``.
        append: add to the dataset in ``out``, which must have the same columns, or begin one where there is none.
        resume: go on with what an interrupted run has left in ``out``.
        kind: what the sources are, see :data:`streamshard.convert.kinds.KINDS`; ``None``: told by what they hold.
        columns: pairs of a column and its encoding, for columns whose encoding is not to be found.
        drop: keys of the input that are left out.
        rename: pairs of a key of the input and its name in the dataset; all other options mean the new names.
        costs: pairs of a cost's name and the key of the records that tells it, for the index: whole numbers count for
            themselves, lists for their elements, null and a missing key for 0.
        sample_hash: hash of every single sample, in a small file beside each shard; ``None``: none.
        records: where in the one JSON object of each source its records are: a key, keys with ``/`` between them, or
            ``"."`` for the members of the object itself; ``""``: the sources are no such objects.
        recipe_options: pairs of an option of a recipe and its value, see :mod:`streamshard.convert.recipe`.
        like: pairs of column and encoding of the dataset that is added to; found by the conversion itself.
        part: the part of the records that is wanted, see :func:`streamshard.convert.job.convert_splits`.
        fetch: limits within which images at URLs are fetched; ``None``: such images are refused.
        tokenize: pairs of a tokenizer and the text column that it turns into tokens, in a column ``<name>_tokens``.
        where: conditions on the records that are wanted, by the keys of the input.
        max_side: most pixels of the longer side of an image, larger ones are scaled down; ``None``: any.
        quality: JPEG and lossy WebP are encoded anew with this quality, see
            :class:`~streamshard.convert.resizing.Resizing`; ``None``: they are not.
        json_rest: column that takes the rarest keys as one JSON object where there are more than 256 columns.
        allow_outside_root: let image references leave the image root.
        max_image_pixels: largest width x height that is decoded.
        work_dir: where the plan of an output that is a URL is kept; ``None``: a private cache folder.
        storage_options: passed to fsspec for every URL.

    Raises:
        ValueError: an option that cannot be, naming it and its value.
    """

    sources: tuple[str, ...]
    out: str
    image_root: str | None = None
    image_keys: tuple[str, ...] = ()
    file_keys: tuple[str, ...] = ()
    size_limit: int | None = DEFAULT_SIZE_LIMIT
    samples_per_shard: int | None = None
    compression: str | None = None
    hashes: tuple[str, ...] = ("xxh64",)
    workers: int | None = None
    engine: str = "local"
    address: str | None = None
    task_cpus: float = 1
    task_memory: int | None = None
    shuffle: int | None = None
    check: bool = True
    on_error: str = "raise"
    max_errors: int | float | None = None
    overwrite: bool = False
    append: bool = False
    resume: bool = True
    kind: str | None = None
    records: str = ""
    columns: tuple[tuple[str, str], ...] = ()
    drop: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    costs: tuple[tuple[str, str], ...] = ()
    recipe_options: tuple[tuple[str, str], ...] = ()
    part: Part | None = None
    like: tuple[tuple[str, str], ...] = ()
    fetch: FetchLimits | None = None
    tokenize: tuple[tuple[str, str], ...] = ()
    where: tuple[Condition, ...] = ()
    max_side: int | None = None
    quality: int | None = None
    json_rest: str | None = None
    sample_hash: str | None = None
    allow_outside_root: bool = False
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS
    work_dir: str | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        from streamshard.format.compression import parse_compression
        from streamshard.format.costs import check_cost_name
        from streamshard.format.hashing import check_hash_name
        from streamshard.storage.opening import is_local

        if not self.sources:
            raise ValueError("sources=(): expected at least one JSONL file")
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error={self.on_error!r}: expected 'raise' or 'skip'")
        if self.max_errors is not None and self.on_error != "skip":
            raise ValueError(f"max_errors={self.max_errors!r}: errors are skipped with on_error='skip' alone")
        if self.max_errors is not None and (
            self.max_errors < 0 or (isinstance(self.max_errors, float) and not self.max_errors <= 1)
        ):
            raise ValueError(
                f"max_errors={self.max_errors!r}: expected a number from 0, or a share up to 1.0"
            )
        if self.append and (self.overwrite or self.part is not None):
            raise ValueError(
                "append: not together with overwrite, which replaces the dataset, nor with a split: add to each of"
                " the datasets in turn"
            )
        for name, keys in (("image_keys", self.image_keys), ("file_keys", self.file_keys)):
            if "none" in keys and len(set(keys)) > 1:
                raise ValueError(f"{name}={keys!r}: 'none' stands alone, or not at all")
            if "" in keys:
                raise ValueError(f"{name}: expected the name of a key, found an empty string")
        both = set(self.image_keys) & set(self.file_keys) - {"none"}
        if both:
            raise ValueError(f"file_keys: {min(both)!r} is also an image key; choose one")
        if self.work_dir is not None and is_local(self.out):
            raise ValueError(
                f"work_dir={self.work_dir!r}: out {self.out!r} is a directory, which keeps its plan in itself until"
                " it is finished; work_dir is for an out that is a URL"
            )
        if self.size_limit is not None and not 0 < self.size_limit < END_OF_OFFSETS:
            raise ValueError(
                f"size_limit={self.size_limit}: expected more than 0 and less than {END_OF_OFFSETS} bytes (4 GiB, the"
                " end of MDS's offsets), or none for shards as large as that allows"
            )
        for name, value in (("samples_per_shard", self.samples_per_shard), ("workers", self.workers)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        if self.max_image_pixels < 1:
            raise ValueError(f"max_image_pixels={self.max_image_pixels}: expected at least 1")
        if self.shuffle is not None and not 0 <= self.shuffle < 1 << 64:
            raise ValueError(f"shuffle={self.shuffle}: expected a seed from 0 to 2**64 - 1")
        fields = [name for _, name in self.tokenize]
        for name in fields:
            if fields.count(name) > 1:
                raise ValueError(f"tokenize {name!r}: given twice, and its tokens have one column")
        Resizing(self.max_side, self.quality)
        self._check_engine()
        parse_compression(self.compression)
        for name in (*self.hashes, *(() if self.sample_hash is None else (self.sample_hash,))):
            check_hash_name(name)
        self._check_columns()
        names = [check_cost_name(name) for name, _ in self.costs]
        for name, key in self.costs:
            if not key or names.count(name) > 1:
                raise ValueError(
                    f"cost {name!r}: expected one key of the records, found {_keys_of(self.costs, name)}"
                )
        object.__setattr__(self, "costs", tuple(sorted(self.costs)))
        object.__setattr__(self, "file_keys", tuple(sorted(set(self.file_keys))))
        object.__setattr__(self, "hashes", tuple(sorted(set(self.hashes))))

    def _check_engine(self) -> None:
        if self.engine not in ("local", "ray"):
            raise ValueError(f"engine={self.engine!r}: expected 'local' or 'ray'")
        if self.engine == "local":
            for name, value, default in (
                ("address", self.address, None),
                ("task_cpus", self.task_cpus, 1),
                ("task_memory", self.task_memory, None),
            ):
                if value != default:
                    raise ValueError(f"{name}={value!r}: is for engine='ray' alone")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                f"address={self.address!r}: a driver outside of the cluster has no files that nodes could be given; run"
                " this on a node (with 'ray job submit', for example) and leave the address out"
            )
        if self.engine == "ray" and self.allow_outside_root and self.on_error == "skip":
            raise ValueError(
                "allow_outside_root: with engine='ray' and on_error='skip', images that some nodes do not see would be"
                " left out as missing; put all below one image_root, or let on_error be 'raise'"
            )
        if not self.task_cpus > 0:
            raise ValueError(f"task_cpus={self.task_cpus!r}: expected more than 0")
        if self.task_memory is not None and self.task_memory < 1:
            raise ValueError(f"task_memory={self.task_memory!r}: expected at least 1 byte")

    def _check_columns(self) -> None:
        from streamshard.convert.kinds import KINDS, ROWS
        from streamshard.format.encodings import parse_encoding

        if self.kind is not None and self.kind not in (*KINDS, ROWS):
            raise ValueError(f"kind={self.kind!r}: expected one of {', '.join(KINDS)}")
        for option, pairs in (
            ("column", self.columns),
            ("rename", self.rename),
            ("option", self.recipe_options),
        ):
            for name, value in pairs:
                if not name or not value or [first for first, _ in pairs].count(name) > 1:
                    raise ValueError(
                        f"{option} {name!r}: expected one NAME=VALUE for each name, found {value!r}"
                    )
        news = [new for _, new in self.rename]
        for old, new in self.rename:
            if news.count(new) > 1:
                raise ValueError(f"rename {old!r}: two keys cannot both become {new!r}")
        for name, encoding in self.columns:
            try:
                unsafe = parse_encoding(encoding).unsafe
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from error
            if unsafe:
                raise ValueError(
                    f"column {name!r}: {encoding} would run code when it is read; choose another encoding"
                )
            if name in self.file_keys:
                raise ValueError(f"column {name!r}: also a file key, whose encoding follows from the files")
            if name in self.image_keys:
                raise ValueError(
                    f"column {name!r}: also an image key, whose encoding follows from the images"
                )
        both = {name for name, _ in self.rename} & set(self.drop)
        if both:
            raise ValueError(f"drop {min(both)!r}: also to be renamed; choose one")
        for name in ("columns", "rename"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name))))
        object.__setattr__(self, "drop", tuple(sorted(set(self.drop))))

    @property
    def resizing(self) -> Resizing | None:
        """What is to be made of images; ``None``: they are stored as they are."""
        if self.max_side is None and self.quality is None:
            return None
        return Resizing(self.max_side, self.quality)

    @property
    def num_workers(self) -> int:
        """The number of processes wanted."""
        return self.workers if self.workers is not None else usable_cpus()

    def error_limit(self, num_records: int) -> int | None:
        """The most records of ``num_records`` that may be skipped; ``None``: any number."""
        if isinstance(self.max_errors, float):
            return int(self.max_errors * num_records)
        return self.max_errors

    def scan_key(self) -> dict[str, Any]:
        """The options that decide what a scan of the input finds (with the input itself)."""
        key = {
            "image_root": self.image_root,
            "image_keys": sorted(self.image_keys),
            "check": self.check,
            "on_error": self.on_error,
            "allow_outside_root": self.allow_outside_root,
            "max_image_pixels": self.max_image_pixels,
        }
        # Only where there are some: a job without any is the same as it was before there were these options.
        more = {
            "kind": self.kind,
            "records": self.records,
            "file_keys": list(self.file_keys),
            "columns": [list(pair) for pair in self.columns],
            "drop": list(self.drop),
            "rename": [list(pair) for pair in self.rename],
            "costs": [list(cost) for cost in self.costs],
            "fetch": "any host"
            if self.fetch and self.fetch.private
            else "public hosts"
            if self.fetch
            else "",
            "tokenize": [column.to_json() for column in token_columns(self.tokenize)],
            "like": [list(pair) for pair in self.like],
            "where": [str(condition) for condition in self.where],
            "max_side": self.max_side,
            "quality": self.quality,
        }
        return {**key, **{name: value for name, value in more.items() if value}}

    def write_key(self) -> dict[str, Any]:
        """The options that decide how the records found become shards."""
        key: dict[str, Any] = {
            "size_limit": self.size_limit,
            "samples_per_shard": self.samples_per_shard,
            "compression": self.compression,
            "hashes": list(self.hashes),
            "shuffle": self.shuffle,
            "json_rest": self.json_rest,
        }
        if self.part is not None:
            key["part"] = [self.part.begin, self.part.end, self.part.seed]
        return {**key, "sample_hash": self.sample_hash} if self.sample_hash is not None else key

    def portable_digest(self) -> str:
        """A digest of the options that shape the output and that are the same on every machine (no paths)."""
        key = {**self.scan_key(), **self.write_key()}
        del key["image_root"]
        # The first of several runs that append finds nothing to be like.
        key.pop("like", None)
        return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]


def _keys_of(costs: Sequence[tuple[str, str]], name: str) -> str:
    return " and ".join(repr(key) for cost, key in costs if cost == name)


def usable_cpus() -> int:
    """The number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
