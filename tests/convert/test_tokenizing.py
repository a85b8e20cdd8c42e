"""Token columns: the smallest type that fits, the same tokens as the library gives, in any process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from streamshard.convert.options import ConvertOptions
from streamshard.convert.tokenizing import parse_tokenize, token_columns
from streamshard.errors import ConvertError
from tests.support.jsonl_inputs import converted, files_of, run, write_lines

_WORDS = ["[UNK]", "[CLS]", "the", "cat", "sat", "é"]


def _tokenizer(path: Path, size: int = 0, *, special: bool = False) -> Path:
    """A tokenizer of words with at least ``size`` tokens, which would also cut and pad."""
    vocabulary = {word: number for number, word in enumerate(_WORDS)}
    vocabulary.update({f"w{number}": number for number in range(len(_WORDS), size)})
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.enable_padding(length=50)
    if special:
        made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 1)])
    made.save(str(path))
    return path


_ROWS: list[dict[str, Any]] = [
    {"id": 0, "text": "the cat sat the cat"},
    {"id": 1, "text": ""},
    {"id": 2, "text": None},
    {"id": 3, "text": "the é dog"},
    {"id": 4},
]
_TOKENS = [[2, 3, 4, 2, 3], [], [], [2, 5, 0], []]


def _tokens(samples: list[dict[str, Any]]) -> list[list[int]]:
    return [sample["text_tokens"].tolist() for sample in samples]


@pytest.mark.parametrize(("size", "dtype"), [(0, "uint8"), (257, "uint16"), (65_537, "uint32")])
def test_tokens_have_the_smallest_type_for_the_vocabulary(tmp_path: Path, size: int, dtype: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", _ROWS)
    tokenizer = _tokenizer(tmp_path / "tokenizer.json", size)
    samples = converted(source, tmp_path / "A", tokenize=((str(tokenizer), "text"),))
    assert _tokens(samples) == _TOKENS
    assert {sample["text_tokens"].dtype for sample in samples} == {np.dtype(dtype)}
    assert [sample["text"] for sample in samples] == [row.get("text") for row in _ROWS]


def test_special_tokens_are_the_tokenizers_own(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", _ROWS[:2])
    _tokenizer(tmp_path / "tokenizer.json", special=True)
    samples = converted(source, tmp_path / "A", tokenize=((str(tmp_path), "text"),))
    assert _tokens(samples) == [[1, *_TOKENS[0]], [1]]


def test_the_text_may_be_dropped_and_renamed_and_tokens_are_a_cost(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": row["id"], "t": row.get("text")} for row in _ROWS])
    tokenizer = str(_tokenizer(tmp_path / "tokenizer.json"))
    options: dict[str, Any] = {"tokenize": ((tokenizer, "text"),), "rename": (("t", "text"),)}
    samples = converted(source, tmp_path / "A", **options, costs=(("tokens", "text_tokens"),))
    assert _tokens(samples) == _TOKENS
    assert run(source, tmp_path / "A", **options, costs=(("tokens", "text_tokens"),)).costs == {"tokens": 8}
    samples = converted(source, tmp_path / "B", tokenize=((tokenizer, "t"),), drop=("t",))
    assert [set(sample) for sample in samples] == [{"id", "t_tokens"}] * 5


def test_workers_a_second_run_and_another_place_of_the_tokenizer(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": f"the cat {number}"} for number in range(1500)])
    here = _tokenizer(tmp_path / "tokenizer.json")
    (tmp_path / "there").mkdir()
    there = _tokenizer(tmp_path / "there" / "other.json")
    run(source, tmp_path / "A", tokenize=((str(here), "text"),), size_limit=20_000)
    run(source, tmp_path / "B", tokenize=((str(there), "text"),), size_limit=20_000, workers=2)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    assert run(source, tmp_path / "A", tokenize=((str(there), "text"),), size_limit=20_000).finished_before
    _tokenizer(there, 300)
    with pytest.raises(ConvertError, match="not made by this job"):
        run(source, tmp_path / "A", tokenize=((str(there), "text"),), size_limit=20_000)


def test_the_texts_of_a_dataset_are_tokenized_too(tmp_path: Path) -> None:
    source = write_lines(
        tmp_path / "a.jsonl", [{"text": "the cat", "more": ["x"]}, {"text": "sat", "more": []}]
    )
    tokenizer = str(_tokenizer(tmp_path / "tokenizer.json"))
    run(source, tmp_path / "A")
    samples = converted(tmp_path / "A", tmp_path / "B", tokenize=((tokenizer, "text"),))
    assert _tokens(samples) == [[2, 3], [4]]


def test_what_is_no_text_is_told_by_line(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"text": "the"}, {"text": ["the", "cat"]}])
    tokenizer = str(_tokenizer(tmp_path / "tokenizer.json"))
    with pytest.raises(ConvertError, match=r"a\.jsonl:2: key 'text' holds list .*--tokenize takes texts"):
        run(source, tmp_path / "A", tokenize=((tokenizer, "text"),))
    source = write_lines(tmp_path / "b.jsonl", [{"text": "the", "text_tokens": 1}])
    with pytest.raises(ConvertError, match=r"b\.jsonl:1: key 'text_tokens' has the name of the column"):
        run(source, tmp_path / "A", tokenize=((tokenizer, "text"),))


def test_tokenizers_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConvertError, match="no such tokenizer"):
        token_columns([(str(tmp_path / "nothing.json"), "text")])
    (tmp_path / "broken.json").write_text(json.dumps({"model": 3}))
    with pytest.raises(ConvertError, match=r"is no tokenizer\.json"):
        token_columns([(str(tmp_path / "broken.json"), "text")])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConvertError, match="nor to be had from the Hugging Face hub"):
        token_columns([("nobody/nothing", "text")])


def test_how_it_is_asked_for(tmp_path: Path) -> None:
    assert parse_tokenize(["a:b/tokenizer.json:text"]) == (("a:b/tokenizer.json", "text"),)
    for wrong in ("gpt2", ":text", "gpt2:"):
        with pytest.raises(ValueError, match="expected TOKENIZER:FIELD"):
            parse_tokenize([wrong])
    tokenizer = str(_tokenizer(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="twice"):
        ConvertOptions(sources=("a",), out="b", tokenize=((tokenizer, "text"), (tokenizer, "text")))
