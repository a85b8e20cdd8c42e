"""JSON text is that of the standard library, to the letter, whichever encoder makes it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamshard.format import json_text as module
from streamshard.format.json_text import json_text

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    plain,
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.none(), inner),
    max_leaves=12,
)


@settings(max_examples=100)
@given(values)
def test_the_text_is_that_of_json_dumps(value: object) -> None:
    assert json_text(value) == json.dumps(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_chunks", None)
        assert json_text(value) == json.dumps(value)


def test_the_encoder_in_c_is_used_where_there_is_one() -> None:
    assert (module._chunks is None) == (getattr(json.encoder, "c_make_encoder", None) is None)


def test_what_json_does_not_have_is_refused_and_the_next_value_is_not() -> None:
    circle: list[object] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        json_text(circle)
    with pytest.raises(TypeError, match="bytes is not JSON serializable"):
        json_text([b"x"])
    assert json_text([1, "ü"]) == '[1, "\\u00fc"]'
