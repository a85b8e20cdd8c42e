"""Spark DataFrames as MDS datasets, on a local Spark: types, exact counts, attempts that fail."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamshard import LocalDataset
from streamshard.spark import dataframe_to_mds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        shutil.which("java") is None, reason="needs a Java runtime, such as default-jre-headless"
    ),
]

_TYPES = (
    "n int, big long, small byte, text string, raw binary, share float, exact double, price decimal(10,2),"
    " numbers array<float>, flag boolean, day date, counts map<string,int>, pair struct<a:int,b:string>"
)


def _row(number: int) -> tuple[Any, ...]:
    return (
        number,
        number << 33,
        number - 50,
        f"text {number} é",
        bytes([number]),
        number / 2,
        number / 3,
        Decimal(number) / 4,
        [float(number), 1.5],
        number % 2 == 0,
        datetime.date(2020, 1, 1) + datetime.timedelta(number),
        {"n": number},
        (number, "b"),
    )


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    sql = pytest.importorskip("pyspark.sql", reason="needs PySpark: pip install 'streamshard[spark]'")
    root = str(Path(__file__).resolve().parents[2])
    given = {
        "PYSPARK_PYTHON": sys.executable,
        # Quick to start, since it does little.
        "PYSPARK_SUBMIT_ARGS": "--driver-memory 512m --driver-java-options"
        " '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell",
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        session = (
            sql.SparkSession.builder.master("local[2,3]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.log.level", "OFF")
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    return spark.createDataFrame([_row(number) for number in range(100)], _TYPES).repartition(2)


def test_every_row_with_its_type(frame: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "A")
    assert dataframe_to_mds(frame, out=out, sample_hash="xxh64") == (out, "")
    dataset = LocalDataset(out, validate_samples=True)
    assert dataset.columns == {
        "n": "int32", "big": "int64", "small": "int8", "text": "str", "raw": "bytes", "share": "float32",
        "exact": "float64", "price": "str_decimal", "numbers": "ndarray:float32", "flag": "json", "day": "json",
        "counts": "json", "pair": "json",
    }  # fmt: skip
    for number, sample in enumerate(sorted(dataset, key=lambda sample: sample["n"])):
        given = dict(zip(frame.columns, _row(number), strict=True))
        np.testing.assert_array_equal(sample.pop("numbers"), np.array(given.pop("numbers"), np.float32))
        assert sample.pop("day") == given.pop("day").isoformat()
        assert sample.pop("pair") == {"a": number, "b": "b"}
        given.pop("pair")
        assert sample == given
    assert number == 99
    assert len(list((tmp_path / "A").glob("part-*/shard.*.mds.zstd"))) == 2


def test_the_call_of_mosaicml_streaming_works_as_it_is(frame: Any, tmp_path: Path) -> None:
    def doubled(batch: Any, factor: int) -> Iterator[dict[str, Any]]:
        for number in batch["n"]:
            yield {"m": int(number) * factor}
            yield {"m": -int(number)}

    out = tmp_path / "B"
    given = {"out": (str(tmp_path / "local"), str(out)), "columns": {"m": "int"}, "keep_local": True}
    dataframe_to_mds(frame, True, given, doubled, {"factor": 3})
    wanted = sorted([3 * number for number in range(100)] + [-number for number in range(100)])
    assert sorted(sample["m"] for sample in LocalDataset(str(out))) == wanted
    dataframe_to_mds(frame.limit(4), merge_index=False, out=out, columns={"n": "int"}, exist_ok=True)
    assert not (out / "index.json").exists()
    assert sum(len(LocalDataset(str(part))) for part in out.glob("part-*")) == 4


def test_an_attempt_that_is_killed_is_not_counted(frame: Any, tmp_path: Path) -> None:
    met = str(tmp_path / "met")

    def die_once(batch: Any) -> Iterator[dict[str, Any]]:
        for place, number in enumerate(batch["n"]):
            if place == 20:
                try:
                    os.close(os.open(met, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield {"n": int(number)}

    out = tmp_path / "A"
    columns = {"n": "int"}
    dataframe_to_mds(frame, out=out, columns=columns, udf_iterable=die_once, samples_per_shard=8)
    assert Path(met).exists()
    assert sorted(sample["n"] for sample in LocalDataset(str(out))) == list(range(100))
    assert len(list(out.glob("part-*"))) == 2


def test_a_failure_names_the_column_and_leaves_nothing(frame: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"column 'text'.*expected str, found NoneType"):
        dataframe_to_mds(frame.selectExpr("n", "nullif(text, 'text 7 é') as text"), out=tmp_path / "A")
    assert not [path for path in (tmp_path / "A").rglob("*") if path.is_file()]


def test_what_makes_no_sense_is_refused_at_once(frame: Any, tmp_path: Path) -> None:
    for given, words in (
        ({}, "out=None: expected a directory or URL"),
        ({"out": tmp_path, "compresion": "zstd"}, "compresion=: no such option"),
        ({"out": tmp_path, "columns": {"no": "str"}}, "'no' is no column"),
        ({"out": tmp_path, "udf_iterable": list}, "must be given with udf_iterable"),
        ({"out": tmp_path, "columns": {"n": "strange"}}, "unknown encoding 'strange'"),
    ):
        with pytest.raises(ValueError, match=words):
            dataframe_to_mds(frame, **given)
    assert not list(tmp_path.iterdir())
