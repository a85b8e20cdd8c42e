"""Sizes in bytes are 1024-based, counts are 1000-based, and everything else is refused with its value."""

from __future__ import annotations

import pytest

from streamshard._sizes import format_bytes, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        (0, 0),
        (5, 5),
        ("100kb", 102400),
        ("64mb", 1 << 26),
        ("1.5MB", 3 << 19),
        ("1 gb", 1 << 30),
        ("7", 7),
        ("7b", 7),
        ("1_000kb", 1024000),
        ("2eb", 2 << 60),
        (".5kb", 512),
        ("0.1eb", (1 << 60) // 10),
    ],
)
def test_b065_sizes_are_1024_based_and_exact(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(
    ("text", "count"), [("1k", 1000), ("1.5M", 1500000), ("2b", 2 * 10**9), ("1T", 10**12), (3, 3)]
)
def test_counts_are_1000_based(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "value", ["abc", "", "mb", "-1", "1mib", "1e3", "1..5kb", -1, True, None, 1.5, "١kb"]
)
def test_everything_else_is_refused_with_its_value(value):
    for parse in (parse_bytes, parse_count):
        with pytest.raises(ValueError, match="cache_limit=") as caught:
            parse(value, name="cache_limit")
        assert repr(value) in str(caught.value)


@pytest.mark.parametrize("text", ["10.7", ".5", "0.0005k", "1.2345k"])
def test_a_count_that_is_no_whole_number_is_refused_and_not_rounded(text):
    with pytest.raises(ValueError, match=f"epoch_size='{text}': is no whole number"):
        parse_count(text, name="epoch_size")


@pytest.mark.parametrize("text", ["9" * 5000, "0." + "1" * 5000, "x" * 5000])
def test_a_text_of_thousands_of_characters_is_refused_by_name_and_not_repeated(text):
    for parse in (parse_bytes, parse_count):
        with pytest.raises(ValueError, match=r"^epoch_size='.{40}'… \(5,00\d characters\): ") as caught:
            parse(text, name="epoch_size")
        assert len(str(caught.value)) < 150


def test_sizes_are_shown_for_people():
    assert [format_bytes(n) for n in (0, 1023, 1536, 1 << 40, 1 << 60)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 TiB",
        "1024.0 PiB",
    ]
