"""Going on from a saved state: what must be the same, what may differ, and how the order goes on where it does."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from streamshard.errors import StateError
from streamshard.order.epoch import Order
from streamshard.order.fixed import FixedWalk
from streamshard.order.lineup import labels_of
from streamshard.order.position import Setting, State
from streamshard.order.stream_state import StreamState, beginning_of, is_same_print, shortened
from streamshard.order.stream_walk import StreamWalk
from streamshard.order.timeline import Splice

_EXPLICIT_LANES = "num_canonical_nodes"
_EXPLICIT_WINDOW = "shuffle_block_size"
_LISTED = 20
_ADVICE = ". Construct the dataset as in the run that saved the state, or start a new run without it"


@dataclass(frozen=True, slots=True)
class Resumed:
    """How a run goes on.

    Attributes:
        order: the order to go on with.
        epoch, position: the place.
        gone: streams that the run has no more, for its states.
        notes: what is other than before and was allowed for, a sentence each.
    """

    order: Order
    epoch: int
    position: int
    gone: tuple[StreamState, ...]
    notes: tuple[str, ...]


def resume(
    order: Order,
    saved: State,
    *,
    settings: Mapping[str, Setting],
    names: Sequence[str | None],
    fingerprints: Sequence[Mapping[str, str]],
) -> Resumed:
    """Go on from a state with an order that was made anew.

    Seed, order settings and the data of every stream must be the same. What an epoch takes of which stream, which
    streams there are, batch sizes and remainder may differ: each stream then goes on from its own cursor, and the
    rest of the epoch is shared out by the present weights.

    Args:
        order: as constructed, without a splice.
        saved: the state.
        settings: order settings that belong to no single stream, by name.
        names, fingerprints: one item for each stream of ``order``.

    Raises:
        StateError: a difference that would make other samples of the state's cursors; lists all of them.
    """
    found, matches, walks = _compared(order, saved, settings, names, fingerprints)
    if found:
        raise StateError(
            "this state does not fit the dataset, so its position would mean other samples: "
            + "; ".join(found[:_LISTED])
            + (f"; and {len(found) - _LISTED} more differences" if len(found) > _LISTED else "")
            + _ADVICE
        )
    order = order.spliced(None, walks)
    given = _given_in_segment(saved, order.batching)
    same = [match is stream for match, stream in zip(matches, saved.streams, strict=False)]
    if len(matches) == len(saved.streams) and all(same) and saved.mixture == order.signature:
        return _continued(order, saved, given)
    return _changed(order, saved, given, matches, names)


def differences(
    order: Order,
    saved: State,
    *,
    settings: Mapping[str, Setting],
    names: Sequence[str | None],
    fingerprints: Sequence[Mapping[str, str]],
) -> list[str]:
    """List what is other than in a state and must not be, each as "seed was 1 and is 2"; arguments as above."""
    return _compared(order, saved, settings, names, fingerprints)[0]


def _compared(
    order: Order,
    saved: State,
    settings: Mapping[str, Setting],
    names: Sequence[str | None],
    fingerprints: Sequence[Mapping[str, str]],
) -> tuple[list[str], list[StreamState | None], list[StreamWalk]]:
    """Give the differences, each stream's state, and the walks that go on with these."""
    found = list(_differences("seed", saved.seed, order.walks[0].seed))
    here = {**settings, "shuffle": order.walks[0].shuffle}
    for name in sorted({*saved.settings, *here}):
        found += _differences(f"{name:.100}", saved.settings.get(name, "nothing"), here.get(name, "nothing"))
    prints = [shortened(each) for each in fingerprints]
    matches, other = _matched(saved, names, prints)
    found += other
    walks: list[StreamWalk] = []
    used = {stream.key for stream in (*saved.streams, *saved.gone)}
    unused = (key for key in itertools.count() if key not in used)
    for number, (walk, match) in enumerate(zip(order.walks, matches, strict=True)):
        if match is None:
            walks.append(_renewed(walk, next(unused), walk.lanes, walk.window, walk.scattered))
            continue
        where = _where(number, names[number])
        found += _differences(f"{where} num_samples", match.num_samples, walk.num_samples)
        if settings.get(_EXPLICIT_LANES, "") is not None:
            found += _differences(f"{where} lanes", match.lanes, walk.lanes)
        if settings.get(_EXPLICIT_WINDOW, "") is not None:
            found += _differences(f"{where} window", match.window, walk.window)
        # What follows from the streams' shares stays what it was: it decides which sample an index means.
        if not found:
            walk = _renewed(walk, match.key, match.lanes, match.window, match.scattered)
        walks.append(walk)
    return found, matches, walks


def _renewed(walk: StreamWalk, key: int, lanes: int, window: int, scattered: bool) -> StreamWalk:
    return walk.renewed(stream=key, lanes=lanes, window=window, scattered=scattered)


def _continued(order: Order, saved: State, given: Sequence[int]) -> Resumed:
    """Go on in the segment that the state lies in."""
    cursors = tuple(stream.cursor - count for stream, count in zip(saved.streams, given, strict=True))
    shares = tuple(stream.share for stream in saved.streams)
    taken = tuple(
        stream.taken - count if saved.begin else 0 for stream, count in zip(saved.streams, given, strict=True)
    )
    if min(cursors) < 0 or min(taken) < 0:
        raise StateError(
            f"state: at position {saved.position} the streams cannot stand at {_cursors(saved)}: they have given "
            f"{list(given)} samples since position {saved.begin}"
        )
    end = saved.begin + sum(shares)
    if (
        saved.unit is not None
        and saved.position < end
        and order.quotas.pieces(saved.epoch, end, [a + b for a, b in zip(taken, shares, strict=True)])
    ):
        raise StateError(
            f"state: its segment ends at position {end} of epoch {saved.epoch}, but batches of one stream each need "
            f"one that ends with the epoch"
        )
    plain = [each for each in order.segments(saved.epoch) if each.begin == saved.begin]
    is_plain = bool(plain) and (plain[0].samples, plain[0].cursors) == (shares, cursors)
    if saved.position == end and (not is_plain or end == order.size(saved.epoch)):
        after = tuple(a + b for a, b in zip(cursors, shares, strict=True))
        begun = order.segments(saved.epoch + 1)[0]
        splice = None if begun.cursors == after else Splice(saved.epoch + 1, 0, after, (0,) * len(after))
        return Resumed(_spliced(order, splice, saved, given), saved.epoch + 1, 0, saved.gone, ())
    if is_plain and saved.unit is not None and saved.position:
        counted = Splice(saved.epoch, saved.begin, cursors, taken, shares, saved.unit)
        return Resumed(_spliced(order, counted, saved, given), saved.epoch, saved.position, saved.gone, ())
    splice = None
    if not is_plain:
        splice = Splice(saved.epoch, saved.begin, cursors, taken, shares, saved.unit)
    return Resumed(_spliced(order, splice, saved, given), saved.epoch, saved.position, saved.gone, ())


def _changed(
    order: Order,
    saved: State,
    given: Sequence[int],
    matches: Sequence[StreamState | None],
    names: Sequence[str | None],
) -> Resumed:
    """Go on with the streams' cursors under other quotas."""
    taken_of = {
        stream.key: stream.taken if saved.begin else count
        for stream, count in zip(saved.streams, given, strict=True)
    }
    cursors = tuple(0 if match is None else match.cursor for match in matches)
    taken = tuple(0 if match is None else taken_of.get(match.key, 0) for match in matches)
    epoch, position = saved.epoch, saved.position
    if not order.quotas.pieces(epoch, position, taken):
        epoch, position, taken = epoch + 1, 0, (0,) * len(taken)
    kept = {match.key for match in matches if match is not None}
    gone = tuple(
        replace(stream, share=0, taken=0)
        for stream in (*saved.streams, *saved.gone)
        if stream.key not in kept
    )
    notes = _listed(
        f"{_where(number, names[number])} is new and begins at its first sample"
        for number, match in enumerate(matches)
        if match is None
    )
    notes += _listed(
        f"stream {stream.name or stream.key!r:.100} is no longer there; it goes on at its sample {stream.cursor} if it "
        "comes back"
        for stream in saved.streams
        if stream.key not in kept
    )
    notes.append(f"the streams are mixed anew from position {position} of epoch {epoch} on")
    splice = Splice(epoch, position, cursors, taken)
    return Resumed(_spliced(order, splice, saved, given), epoch, position, gone, tuple(notes))


def _spliced(order: Order, splice: Splice | None, saved: State, given: Sequence[int]) -> Order:
    if splice is None:
        return order
    # Cursors of fixed samples count along a walk of those samples alone, which no other number of them has.
    was_fixed = saved.settings.get("sampling_method") == "fixed" and any(
        ((stream.taken - count if saved.begin else 0) + stream.share) % stream.num_samples
        for stream, count in zip(saved.streams, given, strict=True)
    )
    is_fixed = any(isinstance(walk, FixedWalk) for walk in order.walks)
    if (was_fixed or is_fixed) and not splice.keeps(order.samples_per_epoch):
        raise StateError(
            "sampling_method='fixed' takes the same samples in every epoch, so what an epoch takes cannot change in "
            f"a run: the state's streams give {[stream.share for stream in saved.streams]} samples, this dataset's "
            f"{list(order.samples_per_epoch)}" + _ADVICE
        )
    return order.spliced(splice)


def _given_in_segment(saved: State, batching: str) -> list[int]:
    """Count what each stream of a state has given since its segment began."""
    inside = saved.position - saved.begin
    if len(saved.streams) == 1:
        return [inside]
    if (saved.unit is None) is (batching in ("per_stream", "device_per_stream")):
        raise StateError(
            f"state: 'unit' is {saved.unit}, which does not go with batching_method={batching!r}"
        )
    shares = [stream.share for stream in saved.streams]
    labels = labels_of(shares, batching=batching, seed=saved.seed, place=saved.begin, unit=saved.unit)
    return labels.before(saved.epoch, inside)


def _matched(
    saved: State, names: Sequence[str | None], prints: Sequence[Mapping[str, str]]
) -> tuple[list[StreamState | None], list[str]]:
    """Find each stream's state: by name, else by its data; and say what is other data under an old name.

    Of several unnamed streams with the same data the first goes with the first.
    """
    streams = [*saved.streams, *saved.gone]
    rest = dict.fromkeys(range(len(streams)))
    # Where a stream of some name, or of some digest, is in `streams`: a state may have many thousands of them.
    named: dict[str | None, deque[int]] = defaultdict(deque)
    alike: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    for place, stream in enumerate(streams):
        named[stream.name].append(place)
        for digest in beginning_of(stream.fingerprints):
            alike[digest].append(place)
    matches: list[StreamState | None] = [None] * len(names)
    found: list[str] = []
    for number, (name, data) in enumerate(zip(names, prints, strict=True)):
        if name is not None and named[name]:
            place = named[name].popleft()
            del rest[place]
            matches[number] = match = streams[place]
            if not match.is_same_data(data):
                found += _data_differences(_where(number, name), match.fingerprints, data)
    for number, (name, data) in enumerate(zip(names, prints, strict=True)):
        if matches[number] is not None:
            continue
        queues = [alike[digest] for digest in beginning_of(data)]
        for queue in queues:
            while queue and queue[0] not in rest:
                queue.popleft()
        fits = (
            place
            for place in heapq.merge(*queues)
            if place in rest
            and (name is None or streams[place].name is None)
            and streams[place].is_same_data(data)
        )
        first = next(fits, None)
        if first is not None:
            del rest[first]
            matches[number] = streams[first]
    unknown = [number for number, match in enumerate(matches) if match is None]
    lost = [streams[place] for place in rest if place < len(saved.streams)]
    unsure = any(names[number] is None for number in unknown) or any(stream.name is None for stream in lost)
    if unknown and lost and (unsure or len(unknown) == len(names)):
        # A stream that is gone and another one that is new may be one stream whose data was changed.
        for number, stream in zip(unknown, lost, strict=False):
            where = _where(number, names[number])
            found += _differences(f"{where} name", stream.name, names[number])
            found += _data_differences(where, stream.fingerprints, prints[number])
        if len(names) > 1:
            found.append("give streams that were replaced on purpose a Stream(name=) each, before and after")
    return matches, found


def _data_differences(where: str, saved: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    shared = sorted(saved.keys() & here.keys())
    if not shared:
        return list(_differences(f"{where} fingerprint kinds", sorted(saved), sorted(here)))
    return [
        text
        for kind in shared
        if not is_same_print(saved[kind], here[kind])
        for text in _differences(f"{where} data ({kind})", saved[kind], here[kind])
    ]


def _differences(name: str, saved: object, here: object) -> list[str]:
    if saved == here and isinstance(saved, bool) == isinstance(here, bool):
        return []
    return [f"{name} was {saved!r:.100} and is {here!r:.100}"]


def _listed(notes: Iterable[str]) -> list[str]:
    """Keep the first notes of a kind, and how many more there are."""
    kept = list(notes)
    more = len(kept) - _LISTED
    return kept if more <= 0 else [*kept[:_LISTED], f"the same of {more} more streams"]


def _where(number: int, name: str | None) -> str:
    return f"stream {number}" + (f" ({name})" if name is not None else "")


def _cursors(saved: State) -> list[int]:
    return [stream.cursor for stream in saved.streams]
