"""Real shards with bytes changed, cut and joined at random: samples or a named error, nothing else."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from streamshard.errors import FormatError
from streamshard.format.compression import decompress_file, parse_compression
from streamshard.format.index import parse_index
from streamshard.format.shard import parse_header
from tests.support.stored_datasets import load_index

GOLDEN = Path(__file__).parents[1] / "compat" / "data"
SETS = sorted(path.parent.name for path in GOLDEN.glob("*/index.json") if path.parent.name != "pickles")


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    memory = bytearray(content)
    kind = rng.integers(5)
    at = int(rng.integers(len(memory)))
    if kind == 0:
        memory[at] = rng.integers(256)
    elif kind == 1:
        memory[at : at + 4] = rng.choice([0, 1, 2**31, 2**32 - 1]).astype("<u4").tobytes()
    elif kind == 2:
        del memory[at:]
    elif kind == 3:
        del memory[at : at + int(rng.integers(1, 9))]
    else:
        memory[at:at] = rng.bytes(int(rng.integers(1, 9)))
    return bytes(memory)


def read_all(content: bytes, expected) -> int:
    def read(begin, end):
        assert 0 <= begin <= end <= len(content)
        return content[begin:end]

    header = parse_header(read, len(content), shard="x", expected=expected)
    offsets = header.offsets.astype(np.int64)
    decoder = expected.schema.decoder()
    return len(decoder.many(memoryview(content), offsets[:-1], offsets[1:]))


@pytest.mark.parametrize("name", [name for name in SETS if not name.startswith("text-")])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
def test_a_damaged_shard_gives_all_its_samples_or_a_format_error(name):
    from dataclasses import replace

    rng = np.random.default_rng(7)
    shard = load_index(GOLDEN / name).shards[-1]
    content = (GOLDEN / name / shard.raw.basename).read_bytes()
    errors = 0
    tracemalloc.start()
    for _ in range(150):
        bad = damaged(content, rng)
        # As a hostile index would: its size goes with the file.
        expected = replace(shard, raw=replace(shard.raw, nbytes=len(bad)))
        try:
            assert read_all(bad, expected) == shard.num_samples
        except FormatError:
            errors += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert errors > 20
    assert peak < 64 << 20


@pytest.mark.parametrize("name", [name for name in SETS if name.startswith("text-")])
def test_a_damaged_compressed_file_gives_its_bytes_or_a_format_error(name):
    rng = np.random.default_rng(7)
    shard = load_index(GOLDEN / name).shards[0]
    content = (GOLDEN / name / shard.stored.basename).read_bytes()
    algorithm = parse_compression(shard.compression).algorithm
    errors = 0
    for _ in range(150):
        out = io.BytesIO()
        try:
            decompress_file(io.BytesIO(damaged(content, rng)), out, algorithm, raw_nbytes=shard.raw.nbytes)
            assert len(out.getvalue()) == shard.raw.nbytes
        except FormatError:
            errors += 1
        assert len(out.getvalue()) <= shard.raw.nbytes
    assert errors > 20


@pytest.mark.parametrize("name", SETS)
def test_a_damaged_index_parses_to_an_index_or_a_format_error(name):
    rng = np.random.default_rng(7)
    text = (GOLDEN / name / "index.json").read_bytes()
    errors = 0
    for _ in range(150):
        try:
            parse_index(damaged(text, rng), source="x")
        except FormatError:
            errors += 1
    assert errors > 50
