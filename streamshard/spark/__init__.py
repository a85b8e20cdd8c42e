"""Spark writes MDS datasets. Needs the extra ``spark``; Spark itself is imported by the first call.

streamshard.spark.dataframe_to_mds(frame, out="s3://bucket/train")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from streamshard.errors import MissingDependencyError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["dataframe_to_mds"]

_Place = str | os.PathLike[str]


def dataframe_to_mds(
    dataframe: DataFrame,
    merge_index: bool = True,
    mds_kwargs: Mapping[str, Any] | None = None,
    udf_iterable: Callable[..., Iterable[Mapping[str, Any]]] | None = None,
    udf_kwargs: Mapping[str, Any] | None = None,
    *,
    out: _Place | tuple[_Place, _Place] | None = None,
    columns: Mapping[str, str] | None = None,
    **options: Any,
) -> tuple[str, str]:
    """Write a Spark DataFrame as one MDS dataset, each partition on the executor that has it.

    A partition becomes a folder ``part-…`` of shards below ``out``. ``index.json``, which names the shards of every
    partition once, comes last; folders of tasks that failed, or that Spark ran twice, are removed. After a failure
    nothing is left. The order is that of the partitions.

    Without ``columns`` they follow from the DataFrame's schema: text ``str``, binary ``bytes``, integers and floats of
    their width (with sign), decimals ``str_decimal``, arrays of numbers ``ndarray``, all else ``json``. A null is
    an error but in ``json``.

    Args:
        dataframe: what to write.
        merge_index: False leaves each partition as a dataset of its own, without an index over all.
        mds_kwargs: ``out``, ``columns`` and the options, as ``mosaicml-streaming`` takes them.
        udf_iterable: called with each batch as a pandas DataFrame, gives samples; ``columns`` is needed then.
        udf_kwargs: keyword arguments for it.
        out: directory that driver and executors all see, or URL; of a pair (directory, URL) the URL.
        columns: column name → encoding.
        options: ``compression`` (default ``"zstd"``), ``hashes``, ``size_limit``, ``samples_per_shard``, ``costs``,
            ``sample_hash``, ``exist_ok``, ``storage_options``.

    Returns:
        (directory, ``""``) or (``""``, URL): where the dataset is.

    Raises:
        MissingDependencyError: PySpark or pyarrow is not installed.
        ValueError: no ``out``, an unknown option or column.
        FileExistsError: the place is not empty, and ``exist_ok`` was not given.
        Exception: Spark's, with the cause in its text, where a partition failed for good.
    """
    try:
        import pyarrow
        import pyspark.sql
    except ImportError as error:
        raise MissingDependencyError(
            f"streamshard.spark needs PySpark and pyarrow ({error}): pip install 'streamshard[spark]'"
        ) from None
    from streamshard.spark.frames import write_frame

    del pyarrow, pyspark
    given = {**(mds_kwargs or {}), **options}
    if out is not None:
        given["out"] = out
    if columns is not None:
        given["columns"] = columns
    return write_frame(dataframe, merge_index, given, udf_iterable, dict(udf_kwargs or {}))
