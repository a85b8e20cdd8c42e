"""``streamshard state show``: what a saved training state says by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import json_option, key_option
from streamshard.cli._state_file import read_state
from streamshard.cli._text import say, shortened, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamshard.cli._state_file import Found
    from streamshard.order.position import State
    from streamshard.order.stream_state import StreamState


@click.command("show", cls=NamedErrorCommand)
@click.argument("state", metavar="STATE.json")
@key_option
@json_option
def command(state: str, key: str | None, as_json: bool) -> None:
    """Say what is in STATE.json ('-' for standard input): where it stands, with which settings, in which streams.

    The file holds a state, or anything in JSON with one state somewhere in it. No dataset is needed.
    """
    found = read_state(state, key)
    if as_json:
        click.echo(json.dumps(_to_json(found), indent=2))
    else:
        _print(found)


def end_of(state: State) -> int:
    """Give the last position that a state knows of: the end of its segment, and unless weights change, of its epoch."""
    return state.begin + sum(stream.share for stream in state.streams)


def _to_json(found: Found) -> dict[str, Any]:
    state = found.state
    return {
        "file": found.source,
        "key": found.key or None,
        "epoch": state.epoch,
        "position": state.position,
        "percent": 100 * state.position / end_of(state),
        "segment": {"begin": state.begin, "end": end_of(state), "unit": state.unit},
        "seed": state.seed,
        "settings": dict(state.settings),
        "mixture": state.mixture,
        "streams": [_stream_to_json(stream, _is_fixed(state)) for stream in state.streams],
        "gone": [_stream_to_json(stream, is_fixed=False) for stream in state.gone],
        **found.beside,
    }


def _stream_to_json(stream: StreamState, is_fixed: bool) -> dict[str, Any]:
    number, place = _pass(stream, is_fixed)
    return {
        "name": stream.name,
        "key": stream.key,
        "num_samples": stream.num_samples,
        "cursor": stream.cursor,
        "pass": number,
        "place_in_pass": place,
        "share": stream.share,
        "taken": stream.taken,
        "lanes": stream.lanes,
        "window": stream.window,
        "scattered": stream.scattered,
        "data": dict(stream.fingerprints),
    }


def _print(found: Found) -> None:
    state = found.state
    end = end_of(state)
    percent = 100 * state.position / end
    say(f"{found.label}: epoch {state.epoch}, position {state.position:,} of {end:,} ({percent:.1f} %)")
    rows = [("seed", str(state.seed))]
    rows += [(name, shortened(_said(value), 60)) for name, value in sorted(state.settings.items())]
    if state.begin:
        rows.append(("mixed anew", f"from position {state.begin:,} on"))
    if state.unit is not None:
        rows.append(("batches", f"global {state.unit[0]:,}, of one stream {state.unit[1]:,}"))
    for name, value in found.beside.items():
        rows.append((name.replace("_", " "), shortened(json.dumps(value), 200)))
    table(rows)
    say("streams")
    table(_rows(state.streams, _is_fixed(state)))
    if state.gone:
        say("streams that are gone, and go on here if they come back")
        table([row[:-1] for row in _rows(state.gone, is_fixed=False)])


def _rows(streams: Sequence[StreamState], is_fixed: bool) -> list[tuple[str, ...]]:
    total = max(1, sum(stream.share for stream in streams))
    head = ("stream", "samples", "cursor", "pass", "place in pass", "share")
    rows: list[tuple[str, ...]] = [head]
    for number, stream in enumerate(streams):
        pass_number, place = _pass(stream, is_fixed)
        rows.append(
            (
                str(number) if stream.name is None else shortened(stream.name, 40),
                f"{stream.num_samples:,}",
                f"{stream.cursor:,}",
                f"{pass_number:,}",
                f"{place:,}",
                f"{stream.share:,} ({100 * stream.share / total:.1f} %)",
            )
        )
    return rows


def _is_fixed(state: State) -> bool:
    return state.settings.get("sampling_method") == "fixed"


def _pass(stream: StreamState, is_fixed: bool) -> tuple[int, int]:
    """Give the pass that a stream's next sample is in, and its place there; as the walks count them."""
    if not is_fixed or not stream.share % stream.num_samples:
        return divmod(stream.cursor, stream.num_samples)
    epoch, inside = divmod(stream.cursor, stream.share)
    whole = stream.share // stream.num_samples
    number = min(inside // stream.num_samples, whole)
    return epoch * (whole + 1) + number, inside - number * stream.num_samples


def _said(value: object) -> str:
    return "not given" if value is None else str(value)
