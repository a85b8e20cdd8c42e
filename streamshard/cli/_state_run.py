"""The run that a state may go on with: datasets and options as given, everything else as the state says."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from streamshard.dataset.batching import Batching
from streamshard.dataset.fingerprint import fingerprints
from streamshard.dataset.iteration import PROGRESS, parse_progress
from streamshard.dataset.ordering import SAMPLINGS, Ordering
from streamshard.dataset.settings import streams_of
from streamshard.dataset.source import Fetching, OpenStream
from streamshard.dataset.stream import Stream
from streamshard.dataset.whereabouts import Whereabouts, whereabouts
from streamshard.order.epoch import BATCHINGS
from streamshard.order.lanes import MAX_LANES
from streamshard.order.shuffle import SHUFFLES
from streamshard.order.stream_state import StreamState, shortened
from streamshard.order.timeline import Quotas
from streamshard.order.walk_arguments import MAX_SAMPLES
from streamshard.order.world import World

if TYPE_CHECKING:
    from streamshard.cli._state_file import Found
    from streamshard.order.position import State


@dataclass(frozen=True, slots=True)
class Fit:
    """What came of a check.

    Attributes:
        differences: what must be the same and is not; the state is refused if there is any.
        notes: what is other, and allowed for.
        next: where the run goes on; None where the state is refused.
    """

    differences: tuple[str, ...]
    notes: tuple[str, ...]
    next: Whereabouts | None


def checked(
    found: Found,
    datasets: Sequence[str],
    *,
    names: Sequence[str] = (),
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    ranks: int = 1,
    batch_size: int | None = None,
    global_batch_size: int | None = None,
    remainder: str | None = None,
    samples: int = 8,
    shuffle: bool | None = None,
    shuffle_algo: str | None = None,
    seed: int | None = None,
    num_canonical_nodes: int | None = None,
    shuffle_block_size: int | None = None,
    batching_method: str | None = None,
    sampling_method: str | None = None,
    epoch_size: str | None = None,
    proportions: Sequence[float] = (),
    repeats: Sequence[float] = (),
    choices: Sequence[str] = (),
    weight_by: str | None = None,
    mixture: str | None = None,
) -> Fit:
    """Open the datasets, compare them with a state, and say which samples come next.

    Options that are None or empty are taken from the state. ``names``, ``proportions``, ``repeats`` and ``choices``
    have one item for each dataset, or none.

    Raises:
        StateError: the state contradicts itself.
        ValueError, TopologyError: options that contradict each other or the data.
        BlobNotFoundError, AccessDeniedError, StorageError, FormatError: an index that cannot be had or used.
    """
    state = found.state
    saved = state.settings
    weights = {"proportion": proportions, "repeat": repeats, "choose": choices}
    for option, values in {"name": names, **weights}.items():
        if values and len(values) != len(datasets):
            raise click.UsageError(
                f"--{option} is given {len(values)} times for {len(datasets)} times --dataset: give it once for each"
            )
    arguments: list[dict[str, Any]] = [
        {option: values[number] for option, values in weights.items() if values}
        for number in range(len(datasets))
    ]
    fetching = Fetching(storage_options=dict(storage_options or {}) or None)
    streams = [
        Stream(remote=dataset, split=split, name=names[number] if names else None, **arguments[number])
        for number, dataset in enumerate(datasets)
    ]
    opened = [OpenStream(stream, fetching) for stream in streams_of(streams, None, None, None)]
    matches = _by_data(opened, state)
    if not names:
        _name(opened, matches, state)
    saved_shuffle = _one_of(saved.get("shuffle"), ("none", *SHUFFLES))
    if shuffle is None:
        shuffle = shuffle_algo is not None or saved_shuffle != "none"
    if num_canonical_nodes is None:
        num_canonical_nodes = _count(saved.get("num_canonical_nodes"), MAX_LANES)
    ordering = Ordering(
        epoch_size=epoch_size,
        weight_by="samples" if weight_by is None else weight_by,
        mixture=None if mixture is None else _mixture(mixture, [each.stream.name for each in opened]),
        sampling_method=sampling_method or _one_of(saved.get("sampling_method"), SAMPLINGS),
        batching_method=batching_method or _one_of(saved.get("batching_method"), BATCHINGS),
        num_canonical_nodes=num_canonical_nodes,
        shuffle=shuffle,
        shuffle_algo=shuffle_algo or ("sliding" if saved_shuffle == "none" else saved_shuffle),
        shuffle_seed=state.seed if seed is None else seed,
        shuffle_block_size=shuffle_block_size or _count(saved.get("shuffle_block_size"), MAX_SAMPLES),
    )
    document, notes = dict(found.document), []
    if PROGRESS in found.beside:
        taken = parse_progress(found.beside[PROGRESS])
        document[PROGRESS] = taken
        notes.append(
            f"one worker of one rank saved it, after {taken['samples']} samples of its own from there on"
        )
    quotas = None
    if (
        not (proportions or repeats or choices)
        and epoch_size is None
        and mixture is None
        and weight_by is None
    ):
        quotas, is_sure = _quotas(state, matches)
        if quotas is not None and not is_sure:
            document["mixture"] = quotas.signature([stream.key for stream in state.streams])
            end = state.begin + sum(quotas.per_epoch)
            notes.append(
                f"no weights are given, and the state knows only what they came to up to position {end} of epoch "
                f"{state.epoch}: this says what comes by that"
            )
    states = ordering.states(opened, quotas)
    differences = states.differences(state)
    if differences:
        return Fit(tuple(differences), (), None)
    loaded = states.load(document)
    if batch_size is None and global_batch_size is None and state.unit is not None:
        global_batch_size = state.unit[0]
    batching = Batching(batch_size, global_batch_size, remainder)
    plan, _ = batching.plan(states.order, World(0, ranks), loaded.epoch, loaded.position)
    coming = whereabouts(states.order, opened, plan, loaded.epoch, samples * ranks)
    return Fit((), (*notes, *loaded.notes), coming)


def _by_data(opened: Sequence[OpenStream], state: State) -> list[StreamState | None]:
    """Find the state of each dataset's stream by its data; of equal ones the first goes with the first."""
    rest = [*state.streams, *state.gone]
    matches: list[StreamState | None] = []
    for each in opened:
        prints = shortened(fingerprints(each.index))
        match = next((stream for stream in rest if stream.is_same_data(prints)), None)
        if match is not None:
            rest = [stream for stream in rest if stream is not match]
        matches.append(match)
    return matches


def _name(opened: Sequence[OpenStream], matches: Sequence[StreamState | None], state: State) -> None:
    """Call the streams what the state calls them. As many streams as before, and other data: the rest, in order."""
    met = [match for match in matches if match is not None]
    lost = [stream for stream in state.streams if not any(stream is match for match in met)]
    others = iter(lost if len(opened) == len(state.streams) else [])
    for each, match in zip(opened, matches, strict=True):
        known = match if match is not None else next(others, None)
        each.stream = replace(each.stream, name=None if known is None else known.name)


def _quotas(state: State, matches: Sequence[StreamState | None]) -> tuple[Quotas | None, bool]:
    """Give what an epoch takes of the state's own streams as far as it says so, and whether that is all of it.

    None where the streams are others, so that only weights can say it.
    """
    if len(matches) != len(state.streams) or any(
        match is not stream for match, stream in zip(matches, state.streams, strict=True)
    ):
        return None, True
    keys = [stream.key for stream in state.streams]
    shares = tuple(stream.share for stream in state.streams)
    sizes = tuple(stream.num_samples for stream in state.streams)
    for numbers in (sizes, shares):
        if sum(numbers) <= MAX_SAMPLES and Quotas(numbers).signature(keys) == state.mixture:
            return Quotas(numbers), True
    return Quotas(shares), False


def _one_of(value: object, known: Sequence[str]) -> str:
    """Give a setting of a state; what is unknown here is the default, which the comparison then tells apart."""
    return value if isinstance(value, str) and value in known else known[0]


def _count(value: object, most: int) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most
    return value if isinstance(value, int) and fits else None


def _mixture(text: str, names: Sequence[str | None]) -> Any:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{error}; expected a JSON list", param_hint="--mixture") from error
    if not isinstance(document, list):
        raise click.BadParameter("expected a list of [position, {stream: weight}]", param_hint="--mixture")
    # The keys of JSON are strings, also where a stream without a name is called by its number.
    return [
        [item[0], {_key(key, names): weight for key, weight in item[1].items()}]
        if isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict)
        else item
        for item in document
    ]


def _key(key: str, names: Sequence[str | None]) -> str | int:
    return int(key) if key not in names and key.isascii() and key.isdecimal() and len(key) < 10 else key
