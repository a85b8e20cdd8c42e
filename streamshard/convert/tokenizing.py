"""Texts turned into tokens while they are converted: one column of token numbers for each text column asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamshard.convert.places import local_path
from streamshard.convert.problems import BAD_VALUE, RecordProblem, shorten
from streamshard.errors import ConvertError

TOKENS_KEY = "tokens"
"""In the index, under ``"streamshard"``: what is said of each column of tokens."""

_FILE = "tokenizer.json"


class TokenColumn(NamedTuple):
    """One text column and the column of its tokens.

    Attributes:
        field: the text column, by its name in the dataset.
        column: ``<field>_tokens``.
        path: the local ``tokenizer.json``.
        digest: sha256 of that file, in hex.
        vocabulary: the largest token number and one.
    """

    field: str
    column: str
    path: str
    digest: str
    vocabulary: int

    @property
    def dtype(self) -> str:
        """The smallest of uint8, uint16 and uint32 that has room for every token."""
        return "uint8" if self.vocabulary <= 1 << 8 else "uint16" if self.vocabulary <= 1 << 16 else "uint32"

    @property
    def encoding(self) -> str:
        """The encoding of the column: an array of one dimension."""
        return f"ndarray:{self.dtype}"

    def tokens(self, text: Any) -> NDArray[Any]:
        """The tokens of a text: array[n] of :attr:`dtype`; of null, none.

        Special tokens are added as the tokenizer itself does it; nothing is cut or padded.

        Raises:
            RecordProblem: no text.
        """
        if text is None:
            return np.zeros(0, self.dtype)
        if not isinstance(text, str):
            raise RecordProblem(
                BAD_VALUE,
                f"key {self.field!r} holds {type(text).__name__} {shorten(str(text), 60)}; --tokenize takes texts",
            )
        try:
            return np.array(_loaded(self.path, self.digest).encode(text).ids, self.dtype)
        except UnicodeEncodeError:
            raise RecordProblem(
                BAD_VALUE, f"key {self.field!r} holds text that is not valid Unicode"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """What the index says of the column: nothing of this machine."""
        return {"field": self.field, "tokenizer_sha256": self.digest, "vocabulary": self.vocabulary}


def parse_tokenize(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """``["gpt2/tokenizer.json:text"]`` → ``(("gpt2/tokenizer.json", "text"),)``.

    Raises:
        ValueError: a text without ``:``.
    """
    for text in texts:
        if not all(text.rpartition(":")[::2]):
            raise ValueError(
                f"--tokenize {text}: expected TOKENIZER:FIELD, such as tokenizer.json:text or gpt2:text"
            )
    return tuple((text.rpartition(":")[0], text.rpartition(":")[2]) for text in texts)


def token_columns(pairs: Sequence[tuple[str, str]]) -> tuple[TokenColumn, ...]:
    """Find and load the tokenizers of pairs of tokenizer and field.

    A tokenizer is a ``tokenizer.json``, a folder with one, or a repository on the Hugging Face hub, which is fetched
    into the cache of its library.

    Raises:
        ConvertError: one that is not there or not sound, or the library is missing.
    """
    made = []
    for name, field in pairs:
        path = _found(name)
        stamp = path.stat()
        digest, vocabulary = _described(str(path), stamp.st_size, stamp.st_mtime_ns)
        made.append(TokenColumn(field, f"{field}_tokens", str(path), digest, vocabulary))
    return tuple(made)


def _found(name: str) -> Path:
    path = local_path(name)
    if path.is_dir():
        path /= _FILE
    if path.is_file():
        return path
    if (
        path.exists()
        or path.parent.name == name
        or name.endswith(".json")
        or name.startswith(("/", ".", "~"))
    ):
        raise ConvertError(f"--tokenize {name}: no such tokenizer ({path})")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise _missing(name) from error
    try:
        return Path(hf_hub_download(name, _FILE))
    # The hub's library raises errors of its own, of requests or httpx, ValueError, OSError, …: none gave a file.
    except Exception as error:
        raise ConvertError(
            f"--tokenize {name}: neither a file or folder here ({path}), nor to be had from the Hugging Face hub"
            f" ({type(error).__name__}: {str(error)[:200]})"
        ) from error


@lru_cache(maxsize=8)
def _described(path: str, _nbytes: int, _mtime_ns: int) -> tuple[str, int]:
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    numbers = _loaded(path, digest).get_vocab(with_added_tokens=True).values()
    return digest, max(numbers, default=0) + 1


@lru_cache(maxsize=8)
def _loaded(path: str, _digest: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _missing(path) from error
    try:
        tokenizer = Tokenizer.from_file(path)
    # The library raises plain Exception for all that is wrong with a file.
    except Exception as error:
        raise ConvertError(f"--tokenize: {path} is no tokenizer.json: {str(error)[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _missing(name: str) -> ConvertError:
    return ConvertError(
        f"--tokenize {name}: needs the library tokenizers: pip install 'streamshard[tokenize]'"
    )
