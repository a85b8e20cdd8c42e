"""Converting JSONL with images: the command, a plain script with a peer's writer, and ``tar`` of the same files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.digest import digest_of_samples
from benchmarks.machine import ROOT, num_cores

MOSAIC = "mosaicml-streaming"
EMOJI = ROOT / "docs" / "tutorial" / "emoji"
_RECORDS = 20_000


def convert(setting: Setting) -> Iterator[Contest]:
    """The emoji set repeated, each image a file of its own. No decoding (``--no-check``), then the default."""
    records = setting.count(_RECORDS)
    source = _repeated_emoji(setting.directory, records)
    workers = num_cores()
    yield Contest(
        f"convert: JSONL with {records:,} PNG files",
        "benchmarks.bench_convert",
        [
            Party(
                f"{OURS} --no-check --workers 1",
                "convert_streamshard",
                options={"workers": 1, "decode": False},
            ),
            Party(
                f"{OURS} --no-check --workers {workers}",
                "convert_streamshard",
                options={"workers": workers, "decode": False},
            ),
            Party(f"{OURS} --workers 1", "convert_streamshard", options={"workers": 1, "decode": True}),
            Party(
                f"{OURS} --workers {workers}",
                "convert_streamshard",
                options={"workers": workers, "decode": True},
            ),
            Party(f"script with the MDSWriter of {MOSAIC}", "convert_mosaic", MOSAIC),
            Party("tar", "convert_tar"),
        ],
        "records_per_s",
        True,
        {"source": str(source), "directory": str(setting.directory)},
    )


def convert_streamshard(
    source: str, directory: str, workers: int, decode: bool, *, check: bool
) -> dict[str, Any]:
    """Run the command as users do; ``seconds`` is the whole process."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        out = Path(place) / "out"
        command = [
            *(str(Path(sys.executable).parent / "streamshard"), "convert", str(Path(source) / "train.jsonl")),
            *("--out", str(out), "--workers", str(workers), "--check" if decode else "--no-check", "--quiet"),
        ]
        os.sync()
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        if check:
            return {"digest": _digest_of_dataset(out)}
        return _rates(source, seconds)


def convert_mosaic(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """Do what its documentation shows: read a record, read its image, write. Starting Python is not counted."""
    from streaming import MDSWriter  # type: ignore[import-not-found]

    columns = {
        "added_in": "str", "category": "str", "conversations": "json", "id": "str", "image": "png",
        "image_path": "str", "short_names": "json", "subcategory": "str", "tone": "json",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(dir=directory) as place:
        out = Path(place) / "out"
        os.sync()
        begin = time.perf_counter()
        with (
            MDSWriter(out=str(out), columns=columns, hashes=["xxh64"]) as writer,
            (Path(source) / "train.jsonl").open(encoding="utf-8") as lines,
        ):
            for line in lines:
                record = json.loads(line)
                record["image_path"] = record["image"]
                record["image"] = (Path(source) / record["image"]).read_bytes()
                writer.write(record)
        seconds = time.perf_counter() - begin
        if check:
            return {"digest": _digest_of_dataset(out)}
        return _rates(source, seconds)


def convert_tar(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """Put the JSONL file and all images into one tar file."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        os.sync()
        begin = time.perf_counter()
        subprocess.run(["tar", "-cf", str(Path(place) / "out.tar"), "-C", source, "."], check=True)
        seconds = time.perf_counter() - begin
        if check:  # the records, as the others should have stored them
            return {"digest": digest_of_samples(_records(Path(source)))}
        return _rates(source, seconds)


def _rates(source: str, seconds: float) -> dict[str, float]:
    records = sum(1 for _ in (Path(source) / "train.jsonl").open("rb"))
    return {"records_per_s": records / seconds, "seconds": seconds}


def _records(source: Path) -> Iterator[dict[str, Any]]:
    for line in (source / "train.jsonl").open(encoding="utf-8"):
        record = json.loads(line)
        record["image_path"] = record["image"]
        record["image"] = (source / record["image"]).read_bytes()
        yield record


def _digest_of_dataset(place: Path) -> str:
    """Read with the streamshard of this tree, whoever has written: stored bytes of images, values of the rest."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from streamshard import LocalDataset

    return digest_of_samples(LocalDataset(place, decode_images=False))


def _repeated_emoji(directory: Path, records: int) -> Path:
    """Make a source of that many records below ``directory``, each with an image file of its own."""
    place = directory / f"emoji-{records}"
    if (place / "train.jsonl").exists():
        return place
    lines = (EMOJI / "train.jsonl").read_text(encoding="utf-8").splitlines()
    out = []
    for number in range(records):
        record = json.loads(lines[number % len(lines)])
        image = f"images/{number // 1000:03}/{number:07}.png"
        (place / image).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(EMOJI / record["image"], place / image)
        out.append(json.dumps({**record, "image": image, "id": f"{record['id']}-{number}"}))
    (place / "train.jsonl").write_text("\n".join(out) + "\n", encoding="utf-8")
    return place
