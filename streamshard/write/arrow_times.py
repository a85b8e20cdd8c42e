"""Times of Arrow in nanoseconds, as text: Python's own types end at microseconds, and pandas need not be there."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_KINDS = ("timestamp[ns", "time64[ns", "duration[ns")


def has_nanoseconds(kind: Any) -> bool:
    """Whether an Arrow type is one of times in nanoseconds, or may hold one at any depth."""
    name = str(kind)
    # Views have no cast to whole numbers; no Parquet file holds them.
    return any(time in name for time in _KINDS) and "_view<" not in name


def counted(kind: Any) -> Any:
    """An Arrow type with whole numbers (nanoseconds) in the place of such times, to which it can be cast."""
    import pyarrow as pa

    if not has_nanoseconds(kind):
        return kind
    if pa.types.is_dictionary(kind):
        return counted(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(counted(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field.with_type(counted(kind.key_type)), counted(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(counted(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(counted(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(counted(kind.value_type)))
    return pa.int64() if str(kind).startswith(_KINDS) else kind


def text_maker(kind: Any) -> Callable[[int | None], str | None] | None:
    """What makes text of the numbers of such a type: ISO 8601, and for differences as ``str(timedelta)``.

    As the values of a coarser type, with three digits more where there are nanoseconds. None for any other type.
    """
    name = str(kind)
    if name.startswith(_KINDS[0]):
        import pyarrow as pa

        zone = None if kind.tz is None else pa.lib.string_to_tzinfo(kind.tz)
        return lambda count: None if count is None else _timestamp(count, zone)
    if name.startswith(_KINDS[1]):
        return lambda count: None if count is None else _with_rest(_time(count), count)
    if name.startswith(_KINDS[2]):
        return lambda count: None if count is None else _with_rest(_difference(count), count)
    return None


def _timestamp(count: int, zone: datetime.tzinfo | None) -> str:
    moment = _EPOCH + _microseconds(count)
    moment = moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
    return _with_rest(moment.isoformat(timespec="microseconds" if count % 1000 else "auto"), count, 26)


def _time(count: int) -> str:
    moment = (_EPOCH + _microseconds(count)).time()
    return moment.isoformat(timespec="microseconds" if count % 1000 else "auto")


def _difference(count: int) -> str:
    whole = _microseconds(count)
    return f"{whole}.000000" if count % 1000 and not whole.microseconds else str(whole)


def _microseconds(count: int) -> datetime.timedelta:
    return datetime.timedelta(microseconds=count // 1000)


def _with_rest(text: str, count: int, at: int | None = None) -> str:
    """Text that ends with microseconds, or has them before ``at``, with the nanoseconds behind these."""
    if not count % 1000:
        return text
    end = len(text) if at is None else at
    return f"{text[:end]}{count % 1000:03d}{text[end:]}"
