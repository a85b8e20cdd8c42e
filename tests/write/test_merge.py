"""merge_index: one index over datasets below a root, at any depth, in a fixed order."""

from __future__ import annotations

import json

import pytest

from streamshard import MDSWriter, merge_index
from streamshard.errors import BlobNotFoundError, FormatError
from streamshard.format.index import index_text, parse_index
from streamshard.storage import open_store
from streamshard.write.merge import merge_extras
from tests.support.stored_datasets import files_of, load_index, load_samples


def part(out, numbers, **options):
    with MDSWriter(out=out, columns={"n": "int"}, samples_per_shard=2, **options) as writer:
        for n in numbers:
            writer.write({"n": n})


def numbers(directory):
    return [sample["n"] for sample in load_samples(directory)]


def basenames(directory):
    return [shard.stored.basename for shard in load_index(directory).shards]


def test_a_root_is_merged_in_the_order_of_its_paths_at_any_depth(tmp_path):
    for folder, first in [("b", 10), ("a/x", 30), ("a/x/y", 20), ("a-b", 40), ("c/x", 50)]:
        part(tmp_path / folder, range(first, first + 3))
    merge_index(str(tmp_path))
    assert numbers(tmp_path) == [30, 31, 32, 20, 21, 22, 40, 41, 42, 10, 11, 12, 50, 51, 52]
    assert basenames(tmp_path)[:4] == [
        "a/x/shard.00000.mds",
        "a/x/shard.00001.mds",
        "a/x/y/shard.00000.mds",
        "a/x/y/shard.00001.mds",
    ]


def test_a_list_is_merged_in_its_own_order_and_equal_last_names_stay_apart(tmp_path):
    for folder, first in [("one/train", 0), ("two/train", 10)]:
        part(tmp_path / folder, range(first, first + 2))
    urls = [str(tmp_path / "two/train/index.json"), str(tmp_path / "one/train/index.json")]
    merge_index(urls, str(tmp_path))
    assert numbers(tmp_path) == [10, 11, 0, 1]
    assert basenames(tmp_path) == ["two/train/shard.00000.mds", "one/train/shard.00000.mds"]


def test_compressed_parts_and_hashes_are_kept(tmp_path):
    part(tmp_path / "a", range(2), compression="zstd")
    before = load_index(tmp_path / "a").shards[0]
    merge_index(str(tmp_path))
    shard = load_index(tmp_path).shards[0]
    assert shard.compressed.basename == "a/shard.00000.mds.zstd"
    assert shard.raw.basename == "a/shard.00000.mds"
    assert shard.compressed.hashes == before.compressed.hashes
    assert numbers(tmp_path) == [0, 1]


def test_merging_again_gives_the_same_index_and_takes_in_new_parts(tmp_path):
    part(tmp_path / "a", range(2))
    merge_index(str(tmp_path))
    first = (tmp_path / "index.json").read_bytes()
    merge_index(str(tmp_path))
    assert (tmp_path / "index.json").read_bytes() == first
    part(tmp_path / "b", range(5, 7))
    merge_index(out=str(tmp_path), keep_local=True, download_timeout=30)
    assert numbers(tmp_path) == [0, 1, 5, 6]


@pytest.mark.parametrize(
    "call",
    [
        lambda urls, out: merge_index(urls, out),
        lambda urls, out: merge_index(urls, out, True, 60),
        lambda urls, out: merge_index(urls, out=out, keep_local=True),
        lambda urls, out: merge_index(index_file_urls=urls, out=out, download_timeout=60),
        lambda urls, out: merge_index(out),
        lambda urls, out: merge_index(out, True),
        lambda urls, out: merge_index(out=out),
    ],
)
def test_every_way_in_which_mosaicmls_function_can_be_called(call, tmp_path):
    part(tmp_path / "a", range(2))
    call([str(tmp_path / "a" / "index.json")], str(tmp_path))
    assert numbers(tmp_path) == [0, 1]


def test_a_url_is_merged_where_it_is():
    for folder in ("x/0", "x/1"):
        part(f"memory://merge/{folder}", range(3))
    merge_index("memory://merge")
    store = open_store("memory://merge")
    index = parse_index(store.read("index.json"), source="x")
    assert [s.stored.basename for s in index.shards][:3] == [
        "x/0/shard.00000.mds",
        "x/0/shard.00001.mds",
        "x/1/shard.00000.mds",
    ]
    urls = ["memory://merge/x/1/index.json"]
    store.delete("index.json")
    merge_index(urls, "memory://merge/x")
    assert (
        parse_index(store.read("x/index.json"), source="x").shards[0].stored.basename == "1/shard.00000.mds"
    )


@pytest.mark.parametrize("keep", [True, False])
def test_a_pair_gets_the_index_in_both_places_unless_told_otherwise(keep, tmp_path):
    url = f"memory://merge-pair-{keep}"
    part(f"{url}/a", range(2))
    merge_index((str(tmp_path), url), keep_local=keep)
    assert open_store(url).exists("index.json")
    assert (tmp_path / "index.json").exists() is keep


def test_a_listed_pair_is_read_here_if_it_is_here_and_there_if_not(tmp_path):
    url = "memory://merge-list-pair"
    part((tmp_path / "a", f"{url}/a"), range(2), keep_local=True)
    part(f"{url}/b", range(5, 7))
    open_store(f"{url}/a").delete("index.json")
    pairs = [(str(tmp_path / f / "index.json"), f"{url}/{f}/index.json") for f in ("a", "b")]
    merge_index(pairs, (str(tmp_path), url))
    assert basenames(tmp_path) == ["a/shard.00000.mds", "b/shard.00000.mds"]
    assert open_store(url).read("index.json") == (tmp_path / "index.json").read_bytes()


def test_an_index_outside_of_the_root_is_refused(tmp_path):
    part(tmp_path / "a", range(2))
    part(tmp_path / "ab", range(2))
    for url, out in [
        (str(tmp_path / "ab" / "index.json"), str(tmp_path / "a")),
        (str(tmp_path / "a" / ".." / "ab" / "index.json"), str(tmp_path / "a")),
        ("memory://q/ab/index.json", "memory://q/a"),
        ("memory://q/a/../ab/index.json", "memory://q/a"),
        ("memory://q/a/index.json", str(tmp_path)),
    ]:
        with pytest.raises(ValueError, match="is outside of"):
            merge_index([url], out)
    assert not (tmp_path / "a" / "index.json").read_bytes().count(b"ab/")


def test_the_same_dataset_twice_is_refused(tmp_path):
    part(tmp_path / "a", range(2))
    url = str(tmp_path / "a" / "index.json")
    with pytest.raises(ValueError, match=r"named by two indexes, in 'a' and in 'a'"):
        merge_index([url, url], str(tmp_path))
    assert not (tmp_path / "index.json").exists()


def test_an_inner_merged_index_and_its_own_parts_overlap_and_are_refused(tmp_path):
    part(tmp_path / "a" / "x", range(2))
    merge_index(str(tmp_path / "a"))
    with pytest.raises(ValueError, match=r"named by two indexes, in 'a' and in 'a/x'"):
        merge_index(str(tmp_path))
    merge_index([str(tmp_path / "a" / "index.json")], str(tmp_path))
    assert basenames(tmp_path) == ["a/x/shard.00000.mds"]


def test_an_index_in_the_root_that_names_other_shards_is_not_lost(tmp_path):
    part(tmp_path, range(2))
    part(tmp_path / "a", range(2))
    before = files_of(tmp_path)
    with pytest.raises(
        FileExistsError, match=r"names 'shard.00000.mds', which the merged index would leave out"
    ):
        merge_index(str(tmp_path))
    assert files_of(tmp_path) == before
    merge_index([str(tmp_path / "index.json"), str(tmp_path / "a" / "index.json")], str(tmp_path))
    assert basenames(tmp_path) == ["shard.00000.mds", "a/shard.00000.mds"]


def test_a_shard_that_is_missing_is_named_before_anything_is_written(tmp_path):
    part(tmp_path / "a", range(4))
    (tmp_path / "a" / "shard.00001.mds").unlink()
    with pytest.raises(
        BlobNotFoundError, match=r"a/shard.00001.mds is not there, although a/index.json names it"
    ):
        merge_index(str(tmp_path))
    assert not (tmp_path / "index.json").exists()


@pytest.mark.parametrize("argument", ["", None, 5, (), ("a", "b", "c")])
def test_places_that_are_none_are_refused(argument):
    with pytest.raises(ValueError, match="expected a path, a URL, or a pair"):
        merge_index(argument)


def test_nothing_to_merge_is_said(tmp_path):
    for call in (lambda: merge_index(str(tmp_path)), lambda: merge_index([], str(tmp_path))):
        with pytest.raises(ValueError, match="nothing to merge"):
            call()


def test_a_part_that_is_no_index_is_named(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.json").write_text("{")
    with pytest.raises(FormatError, match=r"a/index.json: not JSON"):
        merge_index(str(tmp_path))
    with pytest.raises(BlobNotFoundError):
        merge_index([str(tmp_path / "b" / "index.json")], str(tmp_path))


def test_facts_of_the_parts_are_added_kept_or_set_apart(tmp_path):
    extras = [
        ("a", {"images": {"i": {"png": 2, "gif": 1}}, "skip_counts": {"x": 1}, "version": 1, "source": "p"}),
        (
            "b/c",
            {"images": {"i": {"png": 3}, "j": {"jpeg": 1}}, "skip_counts": {}, "version": 1, "source": "q"},
        ),
    ]
    wanted = {
        "images": {"i": {"gif": 1, "png": 5}, "j": {"jpeg": 1}},
        "skip_counts": {"x": 1},
        "version": 1,
        "parts": {"a": {"source": "p"}, "b/c": {"source": "q"}},
    }
    assert merge_extras(extras) == wanted
    for folder, extra in extras:
        part(tmp_path / folder, range(2))
        index = load_index(tmp_path / folder)
        (tmp_path / folder / "index.json").write_bytes(index_text(index.shards, extra))
    merge_index(str(tmp_path))
    assert json.loads((tmp_path / "index.json").read_bytes())["streamshard"] == wanted


def test_facts_of_merged_parts_keep_their_folders():
    inner = {"version": 1, "parts": {"x": {"source": "p"}}}
    merged = merge_extras([("a", inner), ("b", {"version": 1})])
    assert merged == {"version": 1, "parts": {"a/x": {"source": "p"}}}
    assert merge_extras([("a", {}), ("b", {})]) == {}
    with pytest.raises(FormatError, match="counts that cannot be added"):
        merge_extras([("a", {"images": 1}), ("b", {"images": "x"})])
