"""``Stream``: the description of one source of samples. A plain value; nothing is opened here."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streamshard._sizes import is_huge, parse_count, shown
from streamshard.storage.redact import public_url


@dataclass(frozen=True, kw_only=True, repr=False)
class Stream:
    """One dataset directory or bucket prefix. Every field left ``None`` takes the dataset's value.

    Args:
        remote: URL or directory that holds ``index.json``.
        local: cache directory for ``remote``; alone, or when ``remote`` is left out, a directory that is
            read in place and never written to.
        split: sub-directory of both, such as ``"train"``.
        proportion, repeat, choose: how much of this stream an epoch takes: a weight relative to the other
            streams, a multiple of its size, or a number of samples (``"1.5M"``). At most one of them.
        download_retry: tries after the first one, >= 0.
        download_timeout: seconds without any progress after which a try has failed.
        validate_hash: ``None`` checks a downloaded file against a hash of the index where there is one;
            ``False`` never; the name of an algorithm also checks files that are read in place.
        keep_zip: keep the compressed file beside the decompressed one.
        name: identity of the stream in a training state, so no two streams of a dataset have the same; without one
            its content and place count.
        storage_options: passed to the file system as it is.
        cache: ``"disk"``, or ``"memory"``: nothing is written; each process keeps what it fetches in its own memory.

    A stream is never changed by a dataset, so one object can serve several of them.
    """

    remote: str | os.PathLike[str] | None = None
    local: str | os.PathLike[str] | None = None
    split: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | str | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | bool | None = None
    keep_zip: bool | None = None
    name: str | None = None
    storage_options: Mapping[str, Any] | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.remote is None and self.local is None:
            raise ValueError(
                "Stream: neither remote= nor local= is given; name the directory or URL that holds index.json"
            )
        if self.proportion is None and self.repeat is None and self.choose is None:
            return
        weights: dict[str, Any] = {
            "proportion": self.proportion,
            "repeat": self.repeat,
            "choose": self.choose,
        }
        given = {key: value for key, value in weights.items() if value is not None}
        if len(given) > 1:
            said = " and ".join(f"{key}={value!r}" for key, value in given.items())
            raise ValueError(f"{self}: {said} exclude each other, give one of them")
        for key, value in given.items():
            if key == "choose":
                if parse_count(value, name=f"{self}: choose") < 1:
                    raise ValueError(f"{self}: choose={value!r} must be above 0")
                continue
            least = 0 if key == "proportion" else math.ulp(0)
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if is_number and is_huge(value):
                raise ValueError(
                    f"{self}: {key}={shown(value)}: too large a number; only the streams' ratios count"
                )
            if not is_number or not least <= value < math.inf:
                bound = "at least 0" if key == "proportion" else "above 0"
                raise ValueError(f"{self}: {key}={value!r} must be {bound}, and finite; expected a number")

    @property
    def place(self) -> str:
        """Where the stream is, for people: without credentials."""
        root = public_url(os.fspath(self.remote or self.local or ""))
        return f"{root.rstrip('/')}/{self.split}" if self.split else root

    def __str__(self) -> str:
        return f"stream {self.name or self.place!r}"

    def __repr__(self) -> str:
        """Show what was given; of credentials only that there are some."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        shown = {name: repr(value) for name, value in given.items() if value is not None}
        for name in ("remote", "local"):
            if name in shown:
                shown[name] = repr(public_url(os.fspath(given[name])))
        if "storage_options" in shown:
            shown["storage_options"] = f"<{', '.join(sorted(map(str, given['storage_options'])))}>"
        return f"Stream({', '.join(f'{name}={text}' for name, text in shown.items())})"
