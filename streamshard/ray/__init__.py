"""Ray Data reads and writes MDS datasets. Needs the extra ``ray``; Ray itself is imported by the first call.

dataset = streamshard.ray.read_mds("s3://bucket/train", columns=["text"])
streamshard.ray.write_mds(dataset, "s3://bucket/clean", columns={"text": "str"})
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from streamshard.errors import MissingDependencyError

if TYPE_CHECKING:
    from ray.data import Dataset

__all__ = ["read_mds", "write_mds"]


def read_mds(
    url: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    split: str | None = None,
    decode_images: bool = False,
    allow_unsafe_types: bool = False,
    validate_hash: str | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read an MDS dataset as a Ray Dataset, one or several shards a task.

    Rows and bytes are known from the index: ``count()`` and ``schema()`` read no shard. Text is ``string``, binary and
    image files are ``binary``, numbers keep their type, ndarrays are Ray's tensors, JSON and the rest are Python
    objects. A shard is fetched to a temporary file, checked by its hash and unpacked on the node that reads it, or read
    in place where ``url`` is a directory that the node sees. The order is the dataset's where Ray keeps order
    (``DataContext.execution_options.preserve_order``).

    Args:
        url: directory that all nodes see, or URL.
        columns: the columns wanted; others are not decoded.
        split: sub-directory to use instead.
        decode_images: give images as uint8 arrays (height, width, 3) instead of the bytes of their files.
        allow_unsafe_types: read ``pkl`` columns, which can run any code that a dataset's author likes.
        validate_hash: a hash name, None or True for the quickest one of the index, False for none; in place, only a
            name or True has files hashed.
        storage_options: passed to the file system of a URL. Credentials in the environment must be on every node.
        concurrency: most read tasks at a time.
        override_num_blocks: number of read tasks, at most one for each shard.
        ray_remote_args: of the read tasks, such as ``{"num_cpus": 2, "memory": 2**30}``.

    Raises:
        MissingDependencyError: Ray is not installed.
        BlobNotFoundError, FormatError: no index, or not a sound one.
        UnsafeEncodingError: a ``pkl`` column among those wanted, not allowed.
        ValueError: no such column.
    """
    data = _ray_data()
    from streamshard.ray.source import MDSDatasource

    source = MDSDatasource(
        url,
        columns=columns,
        split=split,
        decode_images=decode_images,
        allow_unsafe_types=allow_unsafe_types,
        validate_hash=validate_hash,
        storage_options=storage_options,
    )
    return data.read_datasource(
        source,
        concurrency=concurrency,
        override_num_blocks=override_num_blocks,
        ray_remote_args=dict(ray_remote_args or {}),
    )


def write_mds(
    dataset: Dataset,
    url: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    exist_ok: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    min_rows_per_file: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> int:
    """Write a Ray Dataset as one MDS dataset; gives the number of its samples.

    Each write task makes a folder ``part-…`` of shards. ``index.json``, which names the shards of every task once,
    comes last: until then there is no dataset, and afterwards folders of tasks that were tried again are removed.

    Args:
        dataset: the rows. Their order is kept where Ray keeps order.
        url: directory that all nodes see, or URL.
        columns: column name → encoding, as for ``MDSWriter``; None: from the types of the dataset's columns.
        exist_ok: replace a dataset that is there. False: a place that is not empty is refused.
        storage_options: passed to the file system of a URL. Credentials in the environment must be on every node.
        min_rows_per_file: rows that Ray should bring together for one write task, so that shards are not small.
        concurrency: most write tasks at a time.
        ray_remote_args: of the write tasks, such as ``{"num_cpus": 2, "memory": 2**30}``.
        options: of ``MDSWriter``: ``compression``, ``hashes``, ``size_limit``, ``samples_per_shard``, ``costs``,
            ``sample_hash``.

    Raises:
        MissingDependencyError: Ray is not installed.
        FileExistsError: the place is not empty.
        ValueError: an option that there is not, or columns of no known type.
        Exception: Ray's, with the cause in its text, where a task failed for good; nothing is left then.
    """
    _ray_data()
    from streamshard.ray.sink import MDSDatasink, columns_of_dataset

    sink = MDSDatasink(
        url,
        columns=columns_of_dataset(dataset) if columns is None else columns,
        exist_ok=exist_ok,
        storage_options=storage_options,
        min_rows_per_file=min_rows_per_file,
        options=options,
    )
    dataset.write_datasink(sink, concurrency=concurrency, ray_remote_args=dict(ray_remote_args or {}))
    return sink.finished()


def _ray_data() -> Any:
    try:
        import ray.data
    except ImportError as error:
        raise MissingDependencyError(
            f"streamshard.ray needs Ray Data ({error}): pip install 'streamshard[ray]'"
        ) from None
    return ray.data
