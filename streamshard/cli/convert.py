"""``streamshard convert``: options in, summary out; the work is :mod:`streamshard.convert.job`."""

from __future__ import annotations

import json
import signal
from types import FrameType
from typing import Any

import click

from streamshard.cli._text import printable, say

_HELP = """Turn JSONL and the images it names into MDS shards in --out.

SOURCES are JSONL files (also .gz, .bz2, .zst, or one JSON array), paths or URLs. Image paths start at --image-root, or
at the folder of the JSONL file. After a kill, the same command goes on where it stopped.
"""


class _ConvertCommand(click.Command):
    """Lets ``--shuffle`` stand alone, without taking the next argument for its seed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(
            ctx,
            ["--shuffle=0" if arg == "--shuffle" and place < end else arg for place, arg in enumerate(args)],
        )


@click.command(
    "convert",
    cls=_ConvertCommand,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 118},
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE.jsonl...")
@click.option("--out", required=True, metavar="DIR_OR_URL", help="Directory or URL of the new dataset.")
@click.option("--image-root", metavar="DIR_OR_URL", help="Where image paths start.")
@click.option(
    "--image-key", "image_keys", multiple=True, metavar="NAME",
    help="Key that holds images; repeatable; 'none' for no key. Default: found by name (image, images, image_path, …).",
)  # fmt: skip
@click.option(
    "--size-limit", default="64mb", show_default=True, metavar="SIZE", help="Target size of a shard, or none."
)
@click.option("--samples-per-shard", type=click.IntRange(min=1), metavar="N", help="Most samples in a shard.")
@click.option("--compression", metavar="NAME[:LEVEL]", help="Compress shards: zstd:3, gz, bz2, br, snappy.")
@click.option(
    "--hash", "hashes", multiple=True, default=("xxh64",), show_default=True, metavar="NAME",
    help="Hash of every file for the index; repeatable; 'none' for no hash.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes. Default: one for each CPU."
)
@click.option(
    "--shuffle",
    type=click.IntRange(min=0),
    metavar="[=SEED]",
    help="Permute all records; the seed is 0 if not given.",
)
@click.option("--check/--no-check", default=True, show_default=True, help="Decode every image once.")
@click.option(
    "--on-error", type=click.Choice(["raise", "skip"]), default="raise", show_default=True,
    help="Stop at records that cannot be converted, or leave them out and count them.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace a finished dataset in --out.")
@click.option("--resume/--no-resume", default=True, show_default=True, help="Go on with an interrupted run.")
@click.option(
    "--json-rest", metavar="COLUMN", help="Where there are more than 256 keys: column that takes the rarest."
)
@click.option("--allow-outside-root", is_flag=True, help="Let image paths and links leave the image root.")
@click.option(
    "--max-image-pixels", type=click.IntRange(min=1), metavar="N", help="Largest image that is decoded."
)
@click.option(
    "--work-dir", metavar="DIR", help="Where the plan of an output that is a URL is kept meanwhile."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def command(
    sources: tuple[str, ...],
    size_limit: str,
    hashes: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **rest: Any,
) -> None:
    from streamshard.cli._progress import terminal_progress
    from streamshard.convert.job import convert
    from streamshard.convert.options import ConvertOptions, parse_size_limit
    from streamshard.convert.progress import SilentProgress
    from streamshard.errors import StreamshardError

    try:
        options = ConvertOptions(
            sources=sources,
            size_limit=parse_size_limit(size_limit),
            hashes=tuple(name for name in hashes if name != "none"),
            **{name: value for name, value in rest.items() if value is not None},
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    progress = SilentProgress() if quiet else terminal_progress()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        summary = convert(options, progress)
    except KeyboardInterrupt:
        progress.end()
        click.echo(
            f"interrupted; {options.out} is not finished: run the same command again to go on from here",
            err=True,
        )
        raise click.exceptions.Exit(130) from None
    except (StreamshardError, OSError) as error:
        progress.end()
        raise click.ClickException("\n".join(printable(line) for line in str(error).split("\n"))) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        click.echo(json.dumps(summary.to_json()))
    else:
        for line in summary.lines():
            say(line)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
