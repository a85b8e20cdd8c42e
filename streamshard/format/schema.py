"""Schema: the ordered columns of a shard, and how a sample becomes bytes.

A sample is one u32 length for each column without a fixed size, in column order, then all values in
column order, back to back. Writing is in ``encoder.py``, reading in ``decoder.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamshard.errors import FormatError
from streamshard.format.decoder import SampleDecoder
from streamshard.format.encoder import PartsEncoder, SampleEncoder, compile_encoder
from streamshard.format.encodings import parse_encoding


@dataclass(frozen=True, slots=True)
class Schema:
    """Names, encodings and fixed sizes (bytes or None) of the columns, in the order in which they lie."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    _encode: SampleEncoder | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise FormatError("no columns: a sample needs at least one")
        if not len(self.names) == len(self.encodings) == len(self.sizes):
            raise FormatError(
                f"{len(self.names)} column names, {len(self.encodings)} encodings, {len(self.sizes)} sizes: "
                "expected as many of each"
            )
        if len(set(self.names)) != len(self.names):
            raise FormatError(f"a column name occurs twice in {self.names!r:.200}")

    def __reduce__(self) -> tuple[type[Schema], tuple[Any, ...]]:
        return Schema, (self.names, self.encodings, self.sizes)

    @classmethod
    def from_columns(cls, columns: Mapping[str, str]) -> Schema:
        """Make the schema of a writer: columns sorted by name, as MDS stores them.

        Raises:
            ValueError: no columns, or a name or encoding that is not a str.
            FormatError: an unknown encoding; the known ones are listed.
        """
        if not isinstance(columns, Mapping) or not columns:
            raise ValueError(
                f"columns={columns!r:.80}: expected a dict from column name to encoding, not empty"
            )
        for name, encoding in columns.items():
            if not isinstance(name, str) or not isinstance(encoding, str):
                raise ValueError(  # noqa: TRY004 one class for every bad argument
                    f"columns: {name!r}: {encoding!r}: expected strings, such as 'caption': 'str'"
                )
        names = tuple(sorted(columns))
        sizes = []
        for name in names:
            try:
                sizes.append(parse_encoding(columns[name]).size)
            except FormatError as error:
                raise FormatError(f"column {name!r}: {error}") from error
        return cls(names, tuple(columns[name] for name in names), tuple(sizes))

    def encoder(self) -> SampleEncoder:
        """Give the function behind :meth:`encode_sample`, for loops."""
        encode = self._encode
        if encode is None:
            encode = compile_encoder(self.names, self.encodings, self.sizes)
            object.__setattr__(self, "_encode", encode)
        return encode

    def parts_encoder(self, given: Collection[str] = ()) -> PartsEncoder:
        """Make a function like :meth:`encode_sample` that gives the parts of a sample's bytes without joining them.

        Args:
            given: columns without a fixed size whose values are parts already: anything that has a length.
        """
        encode: PartsEncoder = compile_encoder(
            self.names, self.encodings, self.sizes, joined=False, given=given
        )
        return encode

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Turn a sample into its bytes.

        Raises:
            SampleError: a missing or unknown column, or a value that its encoding cannot hold; names the
                column, its encoding and the type found.
            ShardTooLargeError: a value of 4 GiB or more.
        """
        return self.encoder()(sample)

    def decoder(
        self,
        columns: Sequence[str] | None = None,
        *,
        allow_unsafe_types: bool = False,
        decode_images: bool = True,
        writeable_arrays: bool = False,
    ) -> SampleDecoder:
        """Make the decoder of some or all columns.

        Args:
            columns: the columns wanted; None for all. Results have them in the schema's order.
            allow_unsafe_types: read ``pkl`` columns, which lets the data run code.
            decode_images: False gives the stored bytes of image columns (a list of bytes for lists).
            writeable_arrays: ndarray columns as arrays of their own that may be changed.

        Raises:
            ValueError: a column that is not there; the message lists those that are.
            UnsafeEncodingError: a ``pkl`` column among those wanted, not allowed.
            FormatError: an unknown encoding among those wanted.
        """
        return SampleDecoder(
            self.names,
            self.encodings,
            self.sizes,
            self._select(columns),
            allow_unsafe_types=allow_unsafe_types,
            decode_images=decode_images,
            writeable_arrays=writeable_arrays,
        )

    def _select(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return self.names
        if isinstance(columns, str) or not columns:
            raise ValueError(f"columns={columns!r}: expected a list of column names, not empty")
        unknown = [name for name in columns if name not in self.names]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r}; there are: {', '.join(map(repr, self.names))}")
        wanted = set(columns)
        return tuple(name for name in self.names if name in wanted)
