"""Read, stream, verify, repair, merge and overwrite each dataset of a folder in little memory; print what came of it.

    python -m tests.support.hostile_visit FOLDER

One line of JSON for each: {"name": …, "read": [error, message], "stream": …, "verify": …, …, "seconds": …}.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brotli  # noqa: F401 loaded before memory is counted, like all that follows
import snappy  # noqa: F401
import torch  # noqa: F401
import zstandard  # noqa: F401
from PIL import Image, PngImagePlugin  # noqa: F401

from streamshard import LocalDataset, StreamingDataset, merge_index
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.read.verify import verify_dataset
from streamshard.repair.job import repair_dataset
from tests.support.fuzzing import bounded_memory
from tests.support.small_datasets import text_samples, write_dataset


def outcome(operation: Callable[[], Any]) -> list[Any]:
    """Give [name of the error, its message], or ["", what was returned]."""
    try:
        return ["", operation()]
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        return [type(error).__name__, str(error)[:2000], "StreamshardError" in kinds]


def read_all(directory: Path) -> int:
    return sum(1 for _ in LocalDataset(directory))


def stream_all(directory: Path, cache: Path) -> int:
    return sum(1 for _ in StreamingDataset(remote=str(directory), local=cache, batch_size=3))


def verified(directory: Path, deep: bool) -> list[str]:
    return [problem.message for problem in verify_dataset(directory, deep=deep).problems]


def repaired(directory: Path) -> list[Any]:
    report = repair_dataset(directory)
    return [report.ok, verify_dataset(directory).ok, report.num_lost]


def merged(directory: Path) -> None:
    merge_index(str(directory))


def overwritten(source: Path, out: Path) -> int:
    return convert(ConvertOptions((str(source),), str(out), workers=1, overwrite=True)).samples


def visit(directory: Path, scratch: Path) -> dict[str, Any]:
    begun = time.perf_counter()
    found: dict[str, Any] = {"name": directory.name}
    found["read"] = outcome(lambda: read_all(directory))
    # What the index declares and the file has is fetched, be it a hole.
    is_small = sum(path.lstat().st_size for path in directory.iterdir()) < 1 << 28
    found["stream"] = outcome(lambda: stream_all(directory, scratch / "cache")) if is_small else found["read"]
    found["verify"] = outcome(lambda: verified(directory, True))
    found["headers"] = outcome(lambda: verified(directory, False))
    for way in ("repair", "overwrite"):
        shutil.copytree(directory, scratch / way / "d", symlinks=True, copy_function=_copied)
        (scratch / way / "x.mds").write_bytes(b"somebody's")
    source, out = scratch / "in.jsonl", scratch / "overwrite" / "d"
    found["repair"] = outcome(lambda: repaired(scratch / "repair" / "d"))
    found["merge"] = outcome(lambda: merged(scratch / "overwrite"))
    found["convert"] = outcome(lambda: convert(ConvertOptions((str(source),), str(out), workers=1)).samples)
    found["overwrite"] = outcome(lambda: overwritten(source, out))
    found["outside"] = [
        (scratch / way / "x.mds").read_bytes() == b"somebody's" for way in ("repair", "overwrite")
    ]
    found["seconds"] = time.perf_counter() - begun
    return found


def _copied(source: str, target: str, **_: Any) -> str:
    """Copy a file as it is, holes and all; a pipe stays in the corpus."""
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file, Path(target).open("wb") as copy:
            copy.write(file.read(1 << 24))
            copy.truncate(path.stat().st_size)
    return target


def main() -> None:
    folder = Path(sys.argv[1])
    scratch = folder.parent / "scratch"
    warnings.simplefilter("ignore")
    good = folder.parent / "good"
    write_dataset(good, text_samples(30))
    (folder.parent / "in.jsonl").write_text('{"a": 1}\n')
    for directory in (good, *sorted(folder.iterdir())):
        scratch.mkdir()
        shutil.copy(folder.parent / "in.jsonl", scratch)
        print(json.dumps(visit(directory, scratch)), flush=True)
        if directory == good:
            bounded_memory()
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
