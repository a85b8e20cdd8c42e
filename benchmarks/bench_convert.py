"""Converting JSONL with images: the command, scripts with the peers' writers, ``tar`` of the same files, decoding."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.bench_read import LITDATA, MOSAIC, WEBDATASET, ZEPHON
from benchmarks.contest import OURS, Contest, Party, Setting
from benchmarks.digest import digest_of_samples
from benchmarks.generate import photo_tree
from benchmarks.machine import ROOT, memory_directory

WORKERS = 2
_RECORDS = 20_000
# Where the emoji are, if not the few that the documentation has.
_EMOJI_VARIABLE = "STREAMSHARD_EMOJI"
_PHOTO_COLUMNS = {"conversations": "json", "id": "str", "image": "jpeg", "image_path": "str"}
_EMOJI_COLUMNS = {
    **dict.fromkeys(("added_in", "category", "id", "image_path", "subcategory"), "str"),
    **dict.fromkeys(("conversations", "short_names", "tone"), "json"),
    "image": "bytes",
}
_MODULE = "benchmarks.bench_convert"
# What its column type asks for, and what its own converter of ImageNet does.
_PICTURES = f"script with Image.open and the MDSWriter of {MOSAIC}"
# The command is timed with its start, so this is what stands beside it: the same script as a process of its own.
_STARTED = f"{_PICTURES}, with its start"
# Quicker, for those who know that it passes bytes through unlooked at.
_BYTES = f"script with read_bytes and the MDSWriter of {MOSAIC}"


def convert(setting: Setting) -> Iterator[Contest]:
    """Photographs without decoding (``--no-check``), then with it, as is the default; real emoji; on tmpfs."""
    records = setting.count(_RECORDS)
    with tempfile.TemporaryDirectory(dir=memory_directory(setting.directory)) as place:
        source = photo_tree(Path(place), records)
        options = {"source": str(source), "directory": place}
        yield Contest(
            f"convert, images not decoded: JSONL with {records:,} JPEG files of 5 to 150 kB",
            _MODULE,
            [
                _ours(f"{OURS} --no-check --workers {WORKERS}", decode=False, workers=WORKERS),
                _ours(f"{OURS} --no-check --workers 1", decode=False, workers=1),
                Party(_STARTED, "convert_mosaic_started", MOSAIC),
                Party(_PICTURES, "convert_mosaic", MOSAIC, {"opened": True}),
                Party(_BYTES, "convert_mosaic", MOSAIC, {"opened": False}),
                Party(f"{LITDATA}, optimize with {WORKERS} workers", "convert_litdata", LITDATA),
                Party(f"script with the ShardWriter of {WEBDATASET}", "convert_webdataset", WEBDATASET),
                Party("tar", "convert_tar"),
            ],
            "records_per_s",
            True,
            options,
            cache="none: tmpfs",
            work="convert, --no-check",
            goals={
                _STARTED: 4,
                f"{LITDATA}, optimize with {WORKERS} workers": 2,
                "tar": 0.6,
            },
            unable={ZEPHON: "has no writer"},
        )
        yield Contest(
            f"convert by the work alone, imports not counted: JSONL with {records:,} JPEG files of 5 to 150 kB",
            _MODULE,
            [
                Party(f"{OURS}, {WORKERS} workers, not decoded", "convert_here"),
                Party(_PICTURES, "convert_mosaic", MOSAIC, {"opened": True}),
                Party(_BYTES, "convert_mosaic", MOSAIC, {"opened": False}),
            ],
            "records_per_s",
            True,
            options,
            cache="none: tmpfs",
            work="convert, by the work alone",
            goals={_PICTURES: 4},
            unable=dict.fromkeys((LITDATA, WEBDATASET), "is timed so above") | {ZEPHON: "has no writer"},
        )
        yield Contest(
            f"convert, every image decoded: JSONL with {records:,} JPEG files of 5 to 150 kB",
            _MODULE,
            [
                _ours(f"{OURS} --workers {WORKERS}", decode=True, workers=WORKERS),
                _ours(f"{OURS} --workers 1", decode=True, workers=1),
                Party(f"bare decode loop, {WORKERS} processes", "decode_all"),
            ],
            "records_per_s",
            True,
            options,
            cache="none: tmpfs",
            work="convert, with the default check",
            goals={f"bare decode loop, {WORKERS} processes": 0.85},
            unable=dict.fromkeys((MOSAIC, LITDATA, WEBDATASET, ZEPHON), "does not check images"),
        )

    emoji = Path(os.environ.get(_EMOJI_VARIABLE, ROOT / "docs/tutorial/emoji"))
    lines = (emoji / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    lines = lines[: setting.count(len(lines))]
    with tempfile.TemporaryDirectory(dir=memory_directory(setting.directory)) as place:
        source = _copied(emoji, lines, Path(place) / "emoji")
        yield Contest(
            f"convert, real pictures: JSONL with {len(lines):,} emoji, PNG files of 64 x 64 pixels",
            _MODULE,
            [
                _ours(f"{OURS} --workers {WORKERS}", decode=True, workers=WORKERS),
                _ours(f"{OURS} --no-check --workers {WORKERS}", decode=False, workers=WORKERS),
                Party(_BYTES, "convert_mosaic", MOSAIC, {"opened": False, "columns": _EMOJI_COLUMNS}),
                Party("tar", "convert_tar"),
            ],
            "records_per_s",
            True,
            {"source": str(source), "directory": place},
            cache="none: tmpfs",
            work="convert, emoji",
        )


def _copied(source: Path, lines: list[str], place: Path) -> Path:
    """Copy some records and their images."""
    for line in lines:
        image = json.loads(line)["image"]
        (place / image).parent.mkdir(parents=True, exist_ok=True)
        (place / image).write_bytes((source / image).read_bytes())
    (place / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    return place


def _ours(name: str, *, decode: bool, workers: int) -> Party:
    return Party(name, "convert_streamshard", options={"workers": workers, "decode": decode})


def convert_streamshard(
    source: str, directory: str, workers: int, decode: bool, *, check: bool
) -> dict[str, Any]:
    """Run the command as users do; its time is that of the whole process."""

    def run(out: Path) -> None:
        command = [
            *(str(Path(sys.executable).parent / "streamshard"), "convert", f"{source}/train.jsonl"),
            *("--out", str(out), "--workers", str(workers), "--check" if decode else "--no-check", "--quiet"),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)

    # Installed packages are compiled; a tree that may not be is compiled by the run that checks the results.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = f"{directory}/compiled"
    return _timed(source, directory, run, _stored_mds, check=check)


def convert_here(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """The same as a call, timed as the peers' scripts are: starting Python and importing are not counted."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
    from streamshard.convert.job import convert
    from streamshard.convert.options import ConvertOptions

    def run(out: Path) -> None:
        convert(
            ConvertOptions(sources=(f"{source}/train.jsonl",), out=str(out), workers=WORKERS, check=False)
        )

    return _timed(source, directory, run, _stored_mds, check=check)


def convert_mosaic(
    source: str, directory: str, opened: bool, columns: Mapping[str, str] = _PHOTO_COLUMNS, *, check: bool
) -> dict[str, Any]:
    """Read a record, open its image with Pillow or read its bytes, write. Starting Python is not counted.

    Of a JPEG file that Pillow has opened and nobody has changed, its writer stores the bytes of the file.
    """
    import PIL.Image  # noqa: F401
    from streaming import MDSWriter  # type: ignore[import-not-found]

    def run(out: Path) -> None:
        if opened:
            write_opened(source, str(out))
            return
        with MDSWriter(out=str(out), columns=dict(columns), hashes=["xxh64"]) as writer:
            for record in _records(source):
                writer.write(record)

    return _timed(source, directory, run, _stored_mds, check=check)


def convert_mosaic_started(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """The script that opens images with Pillow, timed as ``streamshard convert`` is: as a whole process."""

    def run(out: Path) -> None:
        script = "import sys; from benchmarks.bench_convert import write_opened; write_opened(*sys.argv[1:])"
        subprocess.run([sys.executable, "-c", script, source, str(out)], check=True, cwd=ROOT)

    return _timed(source, directory, run, _stored_mds, check=check)


def write_opened(source: str, out: str) -> None:
    """Read each record, open its image with Pillow, and give both to mosaicml-streaming's writer."""
    from PIL import Image
    from streaming import MDSWriter

    with (
        MDSWriter(out=out, columns=dict(_PHOTO_COLUMNS), hashes=["xxh64"]) as writer,
        Path(source, "train.jsonl").open(encoding="utf-8") as lines,
    ):
        for line in lines:
            record = json.loads(line)
            record["image_path"] = record["image"]
            with Image.open(Path(source, record["image"])) as record["image"]:
                writer.write(record)


def convert_litdata(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """``optimize`` a function that reads one record's image; its workers start by fork, which is quickest."""
    import litdata  # type: ignore[import-not-found]

    def run(out: Path) -> None:
        lines = Path(source, "train.jsonl").read_text(encoding="utf-8").splitlines()
        litdata.optimize(
            functools.partial(_record, source),
            lines,
            str(out),
            chunk_bytes="64MB",
            num_workers=WORKERS,
            start_method="fork",
            verbose=False,
        )

    return _timed(source, directory, run, lambda out: litdata.StreamingDataset(str(out)), check=check)


def convert_webdataset(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """Read a record, read its image, write both as two files of a tar."""
    import webdataset  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def run(out: Path) -> None:
        out.mkdir()
        with webdataset.ShardWriter(f"{out}/%06d.tar", maxsize=64 << 20, verbose=0) as writer:
            for record in _records(source):
                image = record.pop("image")
                writer.write({"__key__": record["id"], "jpg": image, "json": record})

    def stored(out: Path) -> Iterable[dict[str, Any]]:
        for sample in webdataset.WebDataset(sorted(map(str, out.glob("*.tar"))), shardshuffle=False):
            yield {**json.loads(sample["json"]), "image": sample["jpg"]}

    return _timed(source, directory, run, stored, check=check)


def convert_tar(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """Put the JSONL file and all images into one tar file."""

    def run(out: Path) -> None:
        subprocess.run(["tar", "-cf", str(out), "-C", source, "."], check=True)

    return _timed(source, directory, run, lambda out: _records(source), check=check)


def decode_all(source: str, directory: str, *, check: bool) -> dict[str, Any]:
    """Decode every image with Pillow by as many processes, and do nothing else."""
    import multiprocessing

    def run(out: Path) -> None:
        paths = sorted(map(str, Path(source, "images").rglob("*.jpg")))
        with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
            for _ in pool.imap_unordered(_decode, paths, chunksize=64):
                pass

    return _timed(source, directory, run, lambda out: _records(source), check=check)


def _decode(path: str) -> None:
    from PIL import Image

    with Image.open(path) as image:
        image.load()


def _timed(
    source: str,
    directory: str,
    run: Callable[[Path], None],
    stored: Callable[[Path], Iterable[Mapping[str, Any]]],
    *,
    check: bool,
) -> dict[str, Any]:
    from benchmarks.timing import cpu_s

    with tempfile.TemporaryDirectory(dir=directory) as place:
        out = Path(place) / "out"
        os.sync()
        cpu, begin = cpu_s(), time.perf_counter()
        run(out)
        seconds = time.perf_counter() - begin
        used = cpu_s() - cpu
        if check:
            return {"digest": digest_of_samples(stored(out))}
        stored_nbytes = sum(path.stat().st_size for path in [out, *out.rglob("*")] if path.is_file())
    records = Path(source, "train.jsonl").read_bytes().count(b"\n")
    return {
        "samples": records,
        "bytes": stored_nbytes,
        "records_per_s": records / seconds,
        "seconds": seconds,
        "cpu_s_per_million": used / records * 1e6,
    }


def _records(source: str) -> Iterator[dict[str, Any]]:
    with Path(source, "train.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            yield _record(source, line)


def _record(source: str, line: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(line)
    record["image_path"] = record["image"]
    record["image"] = Path(source, record["image"]).read_bytes()
    return record


def _stored_mds(place: Path) -> Iterable[Mapping[str, Any]]:
    """Read with the streamshard of this tree, whoever has written: stored bytes of images, values of the rest."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from streamshard import LocalDataset

    return LocalDataset(place, decode_images=False)
