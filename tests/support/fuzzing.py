"""Malformed bytes for everything that reads bytes of others: each input gives a value or the named error, soon.

    python -m tests.support.fuzzing --inputs 1000000 [--seed 1] [--target shard]

runs in a process that may have little memory beyond its imports, and prints how many inputs each target took, how many
of them were refused, and the slowest. Exit 1 at the first input that does anything else, which is printed with how to
repeat it.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamshard.convert.journal import Journal
from streamshard.errors import FormatError, StateError, StreamshardError
from streamshard.format.compression import LEVELS, decompress_file, parse_compression
from streamshard.format.encodings import known_encodings, parse_encoding
from streamshard.format.index import index_text, is_safe_path, parse_index, side_basenames
from streamshard.format.schema import Schema
from streamshard.format.shard import config_text, pack_shard, parse_header
from streamshard.format.table_bytes import pack_table, unpack_table
from tests.support.mutations import Mutator

GOLDEN = Path(__file__).parents[1] / "compat" / "data"
MOST_NBYTES = 300 << 20
"""Address space beyond that of the imports."""
SLOWEST_S = 5.0
_LIMIT = 1 << 20  # most that a decompressor may be asked for

COLUMNS = {
    "i": "int", "u": "uint8", "f": "float32", "s": "str", "b": "bytes", "j": "json", "sd": "str_decimal",
    "a": "ndarray", "ad": "ndarray:uint16", "as": "ndarray:int8:2,3",
}  # fmt: skip


@dataclass(slots=True)
class Target:
    """One reader of bytes.

    ``weight``: share of the inputs. ``run`` takes an input and raises ``refusals`` for a malformed one; a value that
    no such input may give is an AssertionError.
    """

    name: str
    seeds: list[bytes]
    run: Callable[[bytes], None]
    refusals: tuple[type[Exception], ...] = (FormatError,)
    weight: float = 1.0
    inputs: int = 0
    refused: int = 0
    slowest: float = 0.0
    seconds: float = 0.0


@dataclass(slots=True)
class Finding(Exception):
    """An input that did what none may do."""

    target: str
    content: bytes
    error: BaseException | None
    seconds: float = 0.0
    note: str = field(default="")

    def __str__(self) -> str:
        what = (
            f"{self.seconds:.1f} s"
            if self.error is None
            else f"{type(self.error).__name__}: {self.error!s:.500}"
        )
        return (
            f"{self.target}: {what}\ninput ({len(self.content)} bytes): {self.content[:2000]!r}\n{self.note}"
        )


def fuzz(targets: list[Target], inputs: int, seed: int) -> None:
    """Give each target its share of malformed inputs. Raises Finding."""
    whole = sum(target.weight for target in targets)
    for number, target in enumerate(targets):
        share = max(1, round(inputs * target.weight / whole))
        mutator = Mutator(seed * 1_000_003 + number)
        begun = time.perf_counter()
        for count in range(share):
            content = mutator.mutate(target.seeds)
            before = time.perf_counter()
            try:
                target.run(content)
            except target.refusals:
                target.refused += 1
            except BaseException as error:
                note = f"to repeat: --target {target.name} --seed {seed}, input {count}"
                raise Finding(target.name, content, error, note=note) from error
            seconds = time.perf_counter() - before
            target.slowest = max(target.slowest, seconds)
            if seconds > SLOWEST_S:
                raise Finding(target.name, content, None, seconds)
        target.inputs += share
        target.seconds += time.perf_counter() - begun


def targets(scratch: Path) -> list[Target]:
    """All readers, with sound inputs to begin from; ``scratch`` is for those that read files."""
    shard, expected = _shard()
    return [
        Target("index", _indexes(), _parse_index, weight=10),
        Target("shard header", [_small_shard(), shard], lambda content: _header(content, None), weight=6),
        Target("shard", [shard], lambda content: _samples(content, expected), weight=10),
        Target("table of shards", [_table()], _unpack_table, weight=5),
        Target("state", [_state()], _load_state, (StateError,), weight=6),
        Target(
            "journal",
            [_journal_record(), b'["shard.00000.mds", "shard.00001.mds"]', b"5"],
            lambda content: _journal(scratch, content),
            weight=0.3,
        ),
        Target("cache marker", [_marker()], lambda content: _read_marker(scratch, content), weight=0.3),
        *_encodings(),
        *_compressions(),
    ]


def _indexes() -> list[bytes]:
    found = [parse_index(path.read_bytes(), source="x") for path in sorted(GOLDEN.glob("*/index.json"))]
    texts = [index_text(index.shards[:3], index.extra) for index in found]
    shards = found[0].shards[:2]
    digests = ["0123456789abcdef"] * len(shards)
    costs = {"tokens": {"shards": [3] * len(shards), "total": 3 * len(shards)}}
    extra = {"sample_hashes": {"algorithm": "xxh64", "digests": digests}, "costs": costs}
    return [*texts, index_text(shards, extra)]


def _parse_index(content: bytes) -> None:
    index = parse_index(content, source="x")
    for info in index.shards:
        assert is_safe_path(info.raw.basename), info
        assert info.compressed is None or is_safe_path(info.compressed.basename), info
        assert 8 + 4 * info.num_samples <= info.raw.nbytes < 2**32, info
    assert index.num_samples == sum(index.samples_per_shard.tolist())
    assert all(map(is_safe_path, side_basenames(index)))
    parse_index(index_text(index.shards, index.extra), source="written again")


def _shard() -> tuple[bytes, Any]:
    from decimal import Decimal

    schema = Schema.from_columns(COLUMNS)
    rows = [
        {
            "i": n, "u": n, "f": n / 2, "s": "text" * n, "b": b"\0\1" * n, "j": {"k": [n, None]}, "sd": Decimal(n),
            "a": np.arange(n), "ad": np.ones((n, 2), np.uint16), "as": np.zeros((2, 3), np.int8),
        }
        for n in range(6)
    ]  # fmt: skip
    encoded = [schema.encode_sample(row) for row in rows]
    config = config_text(schema, compression=None, hashes=[], size_limit=None)
    return b"".join(pack_shard(encoded, config)), schema


def _small_shard() -> bytes:
    config = config_text(Schema.from_columns({"b": "bytes"}), compression=None, hashes=[], size_limit=None)
    return b"".join(pack_shard([b"\1\0\0\0x", b"\0\0\0\0"], config))


def _header(content: bytes, expected: Any) -> np.ndarray:
    def read(begin: int, end: int) -> bytes:
        assert 0 <= begin <= end <= len(content), (begin, end)
        return content[begin:end]

    header = parse_header(read, len(content), shard="x", expected=expected)
    offsets = header.offsets.astype(np.int64)
    assert len(offsets) == header.num_samples + 1
    assert (np.diff(offsets) >= 0).all()
    assert offsets[-1] == len(content)
    return offsets


def _samples(content: bytes, schema: Schema) -> None:
    offsets = _header(content, None)
    decoder = schema.decoder()
    view = memoryview(content)
    many = decoder.many(view, offsets[:-1], offsets[1:])
    assert len(many) == len(offsets) - 1
    decoder.columns_of(view, offsets[:-1], offsets[1:])


_DIGEST = bytes(range(16))


def _table() -> bytes:
    shards = parse_index(_indexes()[-1], source="x")
    return b"".join(pack_table(shards, _DIGEST))


def _unpack_table(content: bytes) -> None:
    import xxhash

    # With the right checksum, as who forges a table would give it.
    content = content[:32] + xxhash.xxh3_128(content[48:]).digest() + content[48:]
    table = unpack_table(memoryview(content), _DIGEST).table
    for shard in range(min(table.num_shards, 50)):
        assert table.info(shard).num_samples >= 0


def _state() -> bytes:
    from streamshard.order.epoch import Order
    from streamshard.order.position import State
    from streamshard.order.timeline import Quotas
    from streamshard.order.walk import Walk

    sizes = ((4, 3), (9, 9, 9), (1,))
    walks = [Walk(np.array(each), seed=5, stream=number) for number, each in enumerate(sizes)]
    order = Order(walks, Quotas(tuple(walk.num_samples for walk in walks)))
    plan = order.plan(0, 0, global_batch_size=4)
    prints = [{"layout": "0123456789abcdef"} for _ in sizes]
    state = State.of(order, plan, 0, 8, settings={"k": None}, names=["a", "b", "c"], fingerprints=prints)
    return json.dumps(state.to_dict()).encode()


def _load_state(content: bytes) -> None:
    from streamshard.order.position import State

    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StateError(str(error)) from error
    state = State.from_dict(document)
    State.from_dict(json.loads(json.dumps(state.to_dict())))


def _journal_record() -> bytes:
    info = parse_index(_indexes()[0], source="x").shards[0]
    entry = json.loads(index_text([info]))["shards"][0]
    return json.dumps({"stamp": [5, 6], "shard": entry, "costs": [3], "side_digest": None}).encode()


def _journal(scratch: Path, content: bytes) -> None:
    (scratch / "done").mkdir(exist_ok=True)
    (scratch / "done" / "00007.json").write_bytes(content)
    (scratch / "replaced.json").write_bytes(content)
    for done in Journal(scratch).done().values():
        assert is_safe_path(done.info.stored.basename)
    Journal(scratch).replaced()


def _marker() -> bytes:
    from streamshard.storage.cache_directory import CacheDirectory, Marker

    with tempfile.TemporaryDirectory() as folder:
        directory = CacheDirectory(Path(folder))
        directory.write_marker("x", Marker("0" * 32, 5, 7), written=True)
        return (directory.hidden / "written" / "x.json").read_bytes()


def _read_marker(scratch: Path, content: bytes) -> None:
    from streamshard.storage.cache_directory import CacheDirectory

    directory = CacheDirectory(scratch / "cache")
    path = directory.hidden / "written" / "x.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    directory.read_marker("x")


def _encodings() -> list[Target]:
    found = []
    png, jpeg = _pictures()
    examples: dict[str, list[bytes]] = {
        "int": [bytes(8)], "str": ["größer".encode()], "bytes": [b"abc"],
        "json": [b'{"a": [1, 2.5, null, "x"]}', b'"' + b"x" * 50 + b'"', b"[[[1]]]"],
        "str_int": [b"12345"], "str_float": [b"1.5e10"], "str_decimal": [b"1.50"],
        "ndarray": [parse_encoding("ndarray").encode(np.ones((3, 4), np.float32))],
        "ndarray:uint8": [parse_encoding("ndarray:uint8").encode(np.ones((2, 3), np.uint8))],
        "ndarray:uint16:2,3": [bytes(12)],
        "jpeg": [jpeg, png], "png": [png], "pil": [b"\2\0\0\0\2\0\0\0\3\0\0\0RGB" + bytes(12)],
        "jpeg_array": [parse_encoding("jpeg_array").encode([jpeg, jpeg])],
        "jpegarray": [parse_encoding("jpegarray").encode([png])],
        "list[jpeg]": [parse_encoding("list[jpeg]").encode([jpeg, png])],
        "list[pil]": [b"\0\0\0\0\1\0\0\0\x1b\0\0\0\2\0\0\0\2\0\0\0\3\0\0\0RGB" + bytes(12), bytes(8)],
        "list[png]": [parse_encoding("list[png]").encode([png])],
        "list[bytes]": [parse_encoding("list[bytes]").encode([b"abc", b""])],
    }  # fmt: skip
    for name in [*known_encodings(), "ndarray:uint8", "ndarray:uint16:2,3"]:
        try:
            encoding = parse_encoding(name)
        except FormatError:
            continue  # a name that stands for many, such as ndarray[:dtype[:shape]]
        if encoding.unsafe:
            continue
        seeds = examples.get(name, [bytes(encoding.size or 9)])
        is_picture = "png" in name or "jpeg" in name
        weight = 0.25 if is_picture else 1.0
        found.append(Target(f"encoding {name}", seeds, lambda c, e=encoding: _decode(e, c), weight=weight))
    names = [name.encode() for name in (*known_encodings(), "ndarray:uint16:2,3", "ndarray:float64:7")]
    found.append(Target("name of an encoding", names, _parse_encoding, weight=1))
    return found


def _decode(encoding: Any, content: bytes) -> None:
    encoding.decode(content)
    encoding.stored(memoryview(content))


def _parse_encoding(content: bytes) -> None:
    encoding = parse_encoding(content.decode("utf-8", "surrogateescape"))
    assert encoding.size is None or 0 < encoding.size < 2**32


def _pictures() -> tuple[bytes, bytes]:
    from PIL import Image

    out = []
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        Image.new("RGB", (9, 7), (200, 30, 60)).save(file, kind)
        out.append(file.getvalue())
    return out[0], out[1]


def _compressions() -> list[Target]:
    raw = b"".join(b"line %d of a text that repeats\n" % (n % 17) for n in range(300))
    found = []
    for name in LEVELS:
        how = parse_compression(name)
        seeds = [how.compress(raw), how.compress(raw[::-1])]

        def run(content: bytes, algorithm: str = name) -> None:
            for nbytes in (None, len(raw)):
                out = _Bounded()
                try:
                    decompress_file(io.BytesIO(content), out, algorithm, raw_nbytes=nbytes)
                finally:
                    assert nbytes is None or out.tell() <= nbytes

        found.append(Target(f"compression {name}", seeds, run, (FormatError, _TooMuch), weight=1.0))
    return found


class _TooMuch(StreamshardError):
    """More than a test wants to hold."""


class _Bounded(io.BytesIO):
    def write(self, piece: Any) -> int:
        if self.tell() + len(piece) > _LIMIT:
            raise _TooMuch
        return super().write(piece)


def quiet() -> None:
    """Pillow warns of large pictures, which is not what is looked for; it refuses twice that size."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = 1 << 20
    warnings.simplefilter("ignore")


def bounded_memory() -> None:
    """Give this process little more address space than it has now."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_NBYTES,) * 2)


def main() -> int:
    parser = argparse.ArgumentParser(description="Feed malformed bytes to all readers.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", help="only those whose name begins so")
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="streamshard-fuzz-"))
    quiet()
    chosen = [each for each in targets(scratch) if each.name.startswith(arguments.target or "")]
    for each in chosen:  # loads what loads late
        for sound in each.seeds:
            each.run(sound)
    bounded_memory()
    try:
        fuzz(chosen, arguments.inputs, arguments.seed)
    except Finding as finding:
        print(finding, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch)
    for each in chosen:
        print(
            f"{each.name:28} {each.inputs:9,} inputs {each.refused:9,} refused  "
            f"{each.inputs / each.seconds:9,.0f}/s  slowest {each.slowest * 1000:.0f} ms"
        )
    seconds = sum(each.seconds for each in chosen)
    inputs = sum(each.inputs for each in chosen)
    print(f"{inputs:,} inputs, {sum(each.refused for each in chosen):,} refused, {seconds:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
