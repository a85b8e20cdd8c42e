"""Records tallied together say what each of them says alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamshard.convert import record_tally
from streamshard.convert.image_scan import CheckedImage
from streamshard.convert.images import ImageFacts
from streamshard.convert.places import Located
from streamshard.convert.record_tally import Pending, RecordTally
from streamshard.convert.shaping import Shaping
from streamshard.convert.tally import ChunkTally

VALUES = st.one_of(
    st.text(max_size=4),
    st.integers(-(2**70), 2**70),
    st.none(),
    st.floats(allow_nan=False),
    st.lists(st.integers(), max_size=2),
    st.just("\ud800"),
    st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": st.just("<image>")}), max_size=2),
)
PATHS = st.sampled_from(["a.jpg", "é/b.png"])
RECORDS = st.dictionaries(st.sampled_from(["id", "text", "n"]), VALUES, max_size=3)


def _tallied(records: list[dict[str, Any]], at_once: int) -> ChunkTally:
    tally, shaping = ChunkTally(), Shaping()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_tally, "_RECORDS_AT_ONCE", at_once)
        adding = RecordTally(tally, shaping)
        for number, record in enumerate(records):
            shaped = shaping.apply(dict(record), rich=False)
            located = [
                Located(str(path), str(path)) for paths in shaped.references.values() for path in paths
            ]
            images = [
                CheckedImage(
                    100 + len(place.name), number, ImageFacts(place.name[-3:]), None if number % 3 else 7
                )
                for place in located
            ]
            text = repr(record).encode("utf-8", "surrogatepass")
            adding.add(Pending(number + 1, 9 * number, text, number, shaped, [*located], images))
        adding.flush()
    return tally


def _shown(tally: ChunkTally) -> dict[str, Any]:
    plain = {
        name: list(getattr(tally, name))
        for name in (
            *("offsets", "line_nbytes", "lines", "record_hashes", "id_hashes", "image_hashes"),
            "compared_nbytes",
        )
    }
    keys = {
        name: (key.kinds, list(key.rows), list(key.json_nbytes), list(key.utf8_nbytes))
        for name, key in tally.keys.items()
    }
    images = {
        name: {slot: getattr(found, slot) for slot in found.__slots__} for name, found in tally.images.items()
    }
    return {
        **plain,
        "image_like": dict(tally.image_like),
        "file_like": dict(tally.file_like),
        "keys": keys,
        "images": images,
        "tags": tally.tags.to_list(),
    }


@given(
    st.lists(RECORDS, max_size=7)
    | st.lists(st.fixed_dictionaries({"id": VALUES, "image": PATHS}), max_size=7)
    | st.lists(st.fixed_dictionaries({"images": st.lists(PATHS, max_size=2), "text": VALUES}), max_size=7)
)
def test_records_tallied_together_are_what_each_is_alone(records: list[dict[str, Any]]) -> None:
    assert _shown(_tallied(records, 64)) == _shown(_tallied(records, 1)) == _shown(_tallied(records, 3))
