"""Pickle: the one encoding whose decoder runs what the data says.

A schema's decoder refuses it unless ``allow_unsafe_types=True``, before any byte is read.
"""

from __future__ import annotations

import pickle
from typing import Any

from streamshard.errors import FormatError, SampleError
from streamshard.format.encodings import Encoding, type_name


class PickleEncoding(Encoding):
    """Any Python object, by pickle's default protocol."""

    name = "pkl"
    unsafe = True

    def encode(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise SampleError(f"{type_name(value)} cannot be pickled: {error}") from error

    def decode(self, payload: bytes | memoryview) -> Any:
        try:
            return pickle.loads(payload)  # noqa: S301 the user has allowed it
        except Exception as error:  # unpickling runs code of the data's choice, which may raise anything
            raise FormatError(
                f"not a pickle that can be read here: {type(error).__name__}: {error}"
            ) from error
