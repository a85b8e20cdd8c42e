"""``streamshard state check``: whether a saved training state fits a dataset, and which samples come next."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import json_option, key_option, split_option, storage_option
from streamshard.cli._state_file import read_state
from streamshard.cli._text import say, table
from streamshard.errors import StateError

if TYPE_CHECKING:
    from streamshard.cli._state_file import Found
    from streamshard.cli._state_run import Fit

_COUNT = click.IntRange(min=1)
_RANKS = click.IntRange(min=1, max=1 << 16)


@click.command("check", cls=NamedErrorCommand)
@click.argument("state", metavar="STATE.json")
@click.option(
    "--dataset", "datasets", metavar="URL", multiple=True, help="Each stream, in order; repeatable."
)
@click.option(
    "--name", "names", metavar="NAME", multiple=True, help="Each stream's name, if not by its data."
)
@split_option
@click.option("--ranks", metavar="R", type=_RANKS, default=1, help="Data-parallel ranks (1).")
@click.option("--batch-size", metavar="B", type=_COUNT, help="Samples of one rank's batch.")
@click.option("--global-batch-size", metavar="G", type=_COUNT, help="Samples of all ranks' batches.")
@click.option("--remainder", metavar="RULE", help="pad, drop or exact.")
@click.option("--samples", metavar="N", type=_COUNT, default=8, help="Samples of each rank to list (8).")
@click.option(
    "--shuffle/--no-shuffle", default=None, help="This and the next ones: default, as in the state."
)
@click.option("--shuffle-algo", metavar="NAME")
@click.option("--seed", metavar="N", type=int)
@click.option("--num-canonical-nodes", metavar="N", type=int)
@click.option("--shuffle-block-size", metavar="N", type=int)
@click.option("--batching-method", metavar="NAME")
@click.option("--sampling-method", metavar="NAME")
@click.option("--epoch-size", metavar="N", help="From here on, weights; default, as in the state.")
@click.option(
    "--proportion", "proportions", metavar="P", type=float, multiple=True, help="One for each stream."
)
@click.option("--repeat", "repeats", metavar="R", type=float, multiple=True, help="One for each stream.")
@click.option("--choose", "choices", metavar="N", multiple=True, help="One for each stream.")
@click.option("--weight-by", metavar="COST")
@click.option("--mixture", metavar="JSON", help='Such as \'[[0, {"web": 9, "code": 1}]]\'.')
@key_option
@storage_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    state: str,
    key: str | None,
    samples: int,
    as_json: bool,
    datasets: tuple[str, ...],
    **given: Any,
) -> None:
    """Say whether STATE.json ('-': standard input) fits the data and settings, and which samples come next.

    Exit 0 if it fits, 1 with every difference if not. Streams are found by their data.
    """
    found = read_state(state, key)
    if not datasets:
        _print_unchecked(found, as_json)
        return
    from streamshard.cli._state_run import checked

    try:
        fit = checked(found, datasets, samples=samples, **given)
    except StateError as error:
        raise StateError(f"{found.label}: {error}") from error
    if as_json:
        click.echo(json.dumps(_to_json(found, fit), indent=2))
    else:
        _print(found, fit, samples)
    ctx.exit(1 if fit.differences else 0)


def _print_unchecked(found: Found, as_json: bool) -> None:
    note = "nothing to compare it with; name the data with --dataset URL"
    if as_json:
        click.echo(
            json.dumps(
                {"file": found.source, "key": found.key or None, "fits": None, "notes": [note]}, indent=2
            )
        )
        return
    say(f"{found.label}: a well-formed state of epoch {found.state.epoch}, position {found.state.position:,}")
    say(f"note: {note}")


def _to_json(found: Found, fit: Fit) -> dict[str, Any]:
    return {
        "file": found.source,
        "key": found.key or None,
        "fits": not fit.differences,
        "differences": list(fit.differences),
        "notes": list(fit.notes),
        "next": None if fit.next is None else fit.next.to_json(),
    }


def _print(found: Found, fit: Fit, samples: int) -> None:
    if fit.next is None:
        say(f"{found.label}: does not fit")
        for difference in fit.differences:
            say(f"  {difference}")
        return
    say(f"{found.label}: fits")
    for note in fit.notes:
        say(f"note: {note}")
    say(fit.next.headline())
    table(fit.next.stream_rows())
    if fit.next.samples:
        say("next")
        table(fit.next.sample_rows(samples))
    else:
        say("no batch of this epoch is left")
