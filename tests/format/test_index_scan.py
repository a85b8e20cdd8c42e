"""Parsing an index entry by entry, mostly by pattern, gives what parsing it as a whole does."""

from __future__ import annotations

import json
import pickle
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamshard.errors import FormatError
from streamshard.format import index_scan
from streamshard.format.entries import EntryParser
from streamshard.format.index import FileInfo, ShardInfo, index_text, parse_index, parse_indexes
from streamshard.format.index_scan import scan_indexes
from streamshard.format.schema import Schema
from streamshard.format.shard_table import Kind, ShardTable

SCHEMAS = [
    Schema.from_columns(columns) for columns in ({"n": "int", "t": "str"}, {"é ": "jpeg", "x": "float64"})
]
NAMES = st.one_of(
    st.sampled_from(["a", "a/b/c", "é", "2024-01-01T00:00/x", '"quoted"', ".hidden", "a b+c=%2e"]),
    st.text(st.characters(blacklist_characters="/\\\0:.", blacklist_categories=["Cs"]), min_size=1, max_size=5),
)  # fmt: skip
HASHES = st.dictionaries(
    st.sampled_from(["xxh64", "sha1", "later"]), st.text("0aF é\\", max_size=4), max_size=3
)
WRITERS = [
    {"sort_keys": True},
    {"sort_keys": True, "separators": (",", ":")},
    {"ensure_ascii": False},
    {"indent": 1},
    {"separators": (" , ", " : ")},
]


@st.composite
def entries(draw: st.DrawFn) -> list[ShardInfo]:
    """Runs of shards that are alike but for names, counts and hashes, some of them odd."""
    found: list[ShardInfo] = []
    for _ in range(draw(st.integers(0, 3))):
        schema = draw(st.sampled_from(SCHEMAS))
        algorithms = draw(HASHES)
        compression = draw(st.sampled_from([None, "zstd", "br:5"]))
        limit = draw(st.sampled_from([None, 1, 1 << 70]))
        odd = draw(st.sets(st.integers(0, 9), max_size=2))
        rng = random.Random(draw(st.integers(0, 999)))
        for number in range(draw(st.integers(1, 10))):
            name = f"{draw(NAMES) if number in odd else 'shard'}.{len(found):05}"
            samples = rng.choice([0, 1, rng.randrange(1 << 28)])
            values = {each: f"{rng.getrandbits(64):016x}" for each in algorithms}
            if number in odd:
                values = dict(algorithms)
            raw = FileInfo(name + ".mds", 8 + 4 * samples + rng.randrange(1 << 30), values)
            compressed = None
            if compression is not None:
                compressed = FileInfo(name + ".mds.z", rng.randrange(1 << 62), values)
            found.append(ShardInfo(schema, compression, tuple(algorithms), raw, compressed, samples, limit))
    return found


def naive(text: bytes) -> list[ShardInfo]:
    parser = EntryParser()
    return [parser.entry(entry) for entry in json.loads(text)["shards"]]


@pytest.fixture(autouse=True)
def _patterns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_scan, "_ALIKE_BEFORE_PATTERN", 2)
    monkeypatch.setattr(index_scan, "_AT_ONCE", 3)
    index_scan._REMEMBERED.clear()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shards=entries(), writer=st.sampled_from(WRITERS), after=st.booleans())
def test_the_columns_hold_what_a_plain_parser_finds(
    shards: list[ShardInfo], writer: dict[str, object], after: bool
) -> None:
    document = json.loads(index_text(shards))
    if after:
        document["zz"] = document.pop("shards")
        document["shards"] = document.pop("zz")
    text = json.dumps(document, **writer).encode("utf-8", "surrogatepass")  # type: ignore[arg-type]
    assert naive(text) == shards
    assert parse_index(text, source="x").shards == shards


def usual(count: int = 12, **changes: object) -> list[dict[str, object]]:
    raw = [FileInfo(f"shard.{i:05}.mds", 1000 + i, {"xxh64": f"{i:016x}"}) for i in range(count)]
    zipped = [FileInfo(f"shard.{i:05}.mds.zstd", 500 + i, {"xxh64": f"{i:015x}f"}) for i in range(count)]
    shards = [ShardInfo(SCHEMAS[0], "zstd", ("xxh64",), raw[i], zipped[i], i, 1 << 26) for i in range(count)]
    return json.loads(index_text(shards))["shards"]  # type: ignore[no-any-return]


def scan_one(text: bytes) -> tuple[ShardTable, dict[str, object]] | None:
    (found,) = scan_indexes([text])
    return found


def text_of(shards: list[dict[str, object]]) -> bytes:
    return json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()


def test_entries_that_are_alike_are_taken_by_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    entry = EntryParser.entry
    monkeypatch.setattr(EntryParser, "entry", lambda self, each: parsed.append(each) or entry(self, each))
    found = scan_one(text_of(usual(50)))
    assert found is not None
    assert found[0].num_shards == 50
    assert len(parsed) == 2
    found = scan_one(text_of(usual(50)))  # the next index, another process may have written it otherwise
    assert found is not None
    assert len(parsed) == 3
    for count in (6, 7):
        document = {"shards": usual(50), "version": 2}
        found = scan_one(json.dumps(document, separators=(",", ":")).encode())
        assert found is not None
        assert found[0].num_shards == 50
        assert len(parsed) == count - 1


def test_few_kinds_are_remembered() -> None:
    for number in range(70):
        entries = usual(4)
        for entry in entries:
            entry["size_limit"] = number
        assert scan_one(text_of(entries)) is not None
    assert len(index_scan._REMEMBERED._patterns) == len(index_scan._REMEMBERED._counts) == 64


def test_an_entry_of_great_length_makes_no_pattern() -> None:
    entries = usual(10)
    for entry in entries:
        entry["later"] = "x" * 70_000
    text = text_of(entries)
    assert parse_index(text, source="x").shards == naive(text)
    assert index_scan._REMEMBERED._patterns == {}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"samples": 9', b'"samples": -9', "shard 9: samples is -9"),
        (b'"samples": 9', b'"samples": 9.0', "shard 9: samples is 9.0"),
        (b'"samples": 9', b'"samples": 9e0', "shard 9: samples is 9.0"),
        (b'"samples": 9', b'"samples": 999', "shard 9: raw_data has 1009 bytes for 999 samples"),
        (b'"samples": 9', b'"samples": 999999999999999999', "shard 9: raw_data has 1009 bytes"),
        (b'"samples": 9', b'"samples": 09', "not JSON"),
        (b'"bytes": 1009', b'"bytes": 4294967296', "shard 9: raw_data has 4294967296 bytes"),
        (b'"bytes": 1009', b'"bytes": 7', "shard 9: raw_data has 7 bytes"),
        (b'"bytes": 509', b'"bytes": 9223372036854775808', "shard 9: zip_data.bytes is 9223372036854775808"),
        (b'"bytes": 509', b'"bytes": null', "shard 9: zip_data.bytes is None"),
        (b'"shard.00009.mds"', b'"../a"', "shard 9: raw_data.basename is '../a'"),
        (b'"shard.00009.mds"', b'"a/./b"', "shard 9: raw_data.basename is 'a/./b'"),
        (b'"shard.00009.mds"', b'"C:/x"', "shard 9: raw_data.basename is 'C:/x'"),
        (b'"shard.00009.mds"', b'"a//b"', "shard 9: raw_data.basename is 'a//b'"),
        (b'"shard.00009.mds"', b'"a\\u0000b"', "shard 9: raw_data.basename"),
        (b'"shard.00009.mds.zstd"', b'"/x"', "shard 9: zip_data.basename is '/x'"),
        (b'"shard.00009.mds.zstd"', b'"shard.00001.mds.zstd"', "two shards have the file 'shard.00001.mds.zstd'"),
        (b'"shard.00009.mds"', b"9", "shard 9: raw_data.basename is 9"),
        (b'"shard.00009.mds"', b'"a\nb"', "not JSON"),
    ],
)  # fmt: skip
def test_b068_what_is_wrong_amid_entries_that_are_alike_is_named(old: bytes, new: bytes, words: str) -> None:
    text = text_of(usual())
    assert text.count(old) == 1
    with pytest.raises(FormatError, match=f"^here: .*{words}"):
        parse_index(text.replace(old, new), source="here")


@pytest.mark.parametrize(
    "text",
    [
        b'{"shards": [1,], "version": 2}',
        b'{"shards": [], "version": 2',
        b'{"shards": [], "version": 2} x',
        b'{"shards": [] "version": 2}',
        b'{"shards" [], "version": 2}',
        b'{5: [], "shards": [], "version": 2}',
        b'{"version": 2}',
        b'{"shards": [], "a": ' + b"[" * 100_000,
        b'{"shards": [' + b"[" * 100_000,
        b"\xff",
        b"[]",
        b"",
    ],
)
def test_what_is_no_usual_index_is_left_to_a_whole_parser(text: bytes) -> None:
    assert scan_one(text) is None
    with pytest.raises(FormatError):
        parse_index(text, source="x")


def test_what_a_whole_parser_takes_is_taken() -> None:
    shards = usual()
    text = text_of(shards)
    expected = naive(text)
    for same in (
        text.decode().encode("utf-16"),
        b"\xef\xbb\xbf" + text,
        text.replace(b"}, {", b"}\n\t ,\r\n{"),
        b" \n" + text + b" \n",
    ):
        assert parse_index(same, source="x").shards == expected
    for doubled in (
        text[:-1] + b', "shards": ' + json.dumps(shards).encode() + b"}",
        text.replace(b'"samples": 9', b'"samples": 3, "samples": 9'),
    ):
        with pytest.raises(FormatError, match="is there twice in one object"):
            parse_index(doubled, source="x")


def test_kinds_that_take_turns_all_have_their_pattern() -> None:
    first, second = usual(40), usual(40)
    for number, entry in enumerate(second):
        entry["raw_data"]["basename"] = f"b/{number}"  # type: ignore[index]
        entry["zip_data"] = entry["compression"] = None
    mixed = [*first[:5], *second[:5]]
    for pair in zip(first[5:], second[5:], strict=True):
        mixed += pair
    text = text_of(mixed)
    index = parse_index(text, source="x")
    assert index.shards == naive(text)
    assert len(index.table.kinds) == 2
    assert [entry.stored.basename for entry in index.shards[8:12]] == [
        *["b/3", "b/4"],
        *["shard.00005.mds.zstd", "b/5"],
    ]


def test_indexes_that_are_parsed_together_are_those_that_are_parsed_alone() -> None:
    other = usual(30)
    for entry in other:
        entry["size_limit"] = 7
    broken = text_of(usual(12)).replace(b'"samples": 9', b'"samples": -9', 1)
    escaped = text_of(usual(3)).replace(b"shard", b"sh\\u0061rd")
    texts = [text_of(each) for each in (usual(40), other, usual(2), usual(20) + other[20:])]
    texts = [texts[0], text_of([]), *texts[1:], escaped, texts[0]]
    alone = [parse_index(text, source="x") for text in texts]
    index_scan._REMEMBERED.clear()
    for _ in range(2):
        together = parse_indexes(texts, ["x"] * len(texts))
        for one, found in zip(alone, together, strict=True):
            assert found.shards == one.shards
            assert found.begins.tolist() == one.begins.tolist()
            assert [kind for kind, _ in found.table.counts_of_kinds()] == list(
                dict.fromkeys(Kind.of(info) for info in one.shards)
            )
            assert pickle.loads(pickle.dumps(found)).shards == one.shards
    # One that is malformed takes nothing of the others with it, and is named by its own name.
    contradicting = text_of(usual(12)).replace(b'"samples": 9', b'"samples": 999', 1)
    for bad, words in ((broken, "samples is -9"), (contradicting, "raw_data has 1009 bytes for 999 samples")):
        scanned = scan_indexes([bad, texts[0], bad, b"{", texts[1], bad, texts[2], bad])
        tables = [
            None if each is None else [each[0].info(n) for n in range(each[0].num_shards)] for each in scanned
        ]
        first, second, third = (list(each.shards) for each in alone[:3])
        assert tables == [None, first, None, None, second, None, third, None]
        with pytest.raises(FormatError, match=f"^the second: shard 9: {words}"):
            parse_indexes([texts[0], bad, texts[1]], ["the first", "the second", "the third"])


@pytest.mark.parametrize(("at", "of"), [(1, 0), (39, 0), (39, 38), (3, 2), (2, 30)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_indexes_that_are_parsed_together_each_has_names_of_its_own(at: int, of: int, place: int) -> None:
    """Names that ascend are not compared with each other; those of the index before do not count."""
    for with_patterns in (False, True):
        texts = [text_of(usual(40))] * 3
        if not with_patterns:
            index_scan._REMEMBERED.clear()
        assert [each is not None and each.names_ascend for each in scan_indexes(texts)] == [True] * 3
        backwards = text_of(usual(40)[::-1])
        assert [each is not None and each.names_ascend for each in scan_indexes([texts[0], backwards])] == [
            True,
            False,
        ]
        parse_indexes([texts[0], backwards], ["x", "y"])
        entries = usual(40)
        entries[at]["zip_data"]["basename"] = entries[of]["zip_data"]["basename"]  # type: ignore[index]
        texts[place] = text_of(entries)
        with pytest.raises(
            FormatError, match=f"^{place}: two shards have the file 'shard.000{of:02}.mds.zstd'"
        ):
            parse_indexes(texts, ["0", "1", "2"])


def test_equal_indexes_share_their_schemas() -> None:
    first, second = parse_indexes([text_of(usual(3)), text_of(usual(4))], ["a", "b"])
    assert first.schemas[0] is second.schemas[0]
