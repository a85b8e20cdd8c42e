"""``streamshard convert``: options in, summary out; the work is :mod:`streamshard.convert.job`."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import click

from streamshard.cli._options import storage_option
from streamshard.cli._text import printable, say

_HELP = """Turn records and the images they name into MDS shards in --out.

A SOURCE is a file, folder, pattern or URL: JSONL, CSV, Parquet, Arrow, WebDataset, LitData, MDS, images, or a recipe
(.py). Image paths start at --image-root, else at their file's folder. After a kill, the same command goes on.

\b
  streamshard convert train.jsonl --image-root images/ --dry-run --out shards
  streamshard convert train.jsonl --image-root images/ --shuffle --out shards
  streamshard convert photos/ --split train=0.9,val=0.1 --out shards/photos
  streamshard convert 'tars/*.tar' --on-error skip --out shards/web
  streamshard convert all.json --records data --image-key photo --out shards/a
"""

_GROUPS = {
    "Input": ("kind", "records", "where", "recipe_options"),
    "Images and files": (
        *("image_root", "image_keys", "file_keys", "check", "max_side", "quality", "max_image_pixels"),
        *("allow_outside_root", "fetch", "fetch_private", "fetch_limits"),
    ),
    "Columns": ("columns", "drop", "rename", "tokenize", "costs", "json_rest"),
    "Bad records": ("dry_run", "on_error", "max_errors"),
    "Output": (
        *(
            "out",
            "split",
            "shuffle",
            "size_limit",
            "samples_per_shard",
            "compression",
            "hashes",
            "sample_hash",
        ),
        *("overwrite", "append", "resume"),
    ),
    "Work": ("workers", "engine", "address", "task_cpus", "task_memory", "work_dir", "storage_options"),
}


class _ConvertCommand(click.Command):
    """Lets ``--shuffle`` stand alone, without taking the next argument for its seed; shows the options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = {
            option.name: option.get_help_record(ctx)
            for option in self.get_params(ctx)
            if isinstance(option, click.Option)
        }
        for title, names in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([row for name in names if (row := shown.pop(name))])
        with formatter.section("Messages"):
            formatter.write_dl([row for row in shown.values() if row])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        for place, (arg, following) in enumerate(pairwise(args)):
            if arg == "--shuffle" and place < end and following.isdecimal() and not Path(following).exists():
                raise click.UsageError(
                    f"--shuffle {following}: a seed follows '=': --shuffle={following}", ctx
                )
        return super().parse_args(
            ctx,
            ["--shuffle=0" if arg == "--shuffle" and place < end else arg for place, arg in enumerate(args)],
        )


@click.command(
    "convert",
    cls=_ConvertCommand,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--from", "kind", metavar="KIND", help="Kind of the sources (csv, mds, …).")
@click.option("--records", metavar="KEY", help="Key of the records in one JSON object, or '.'.")
@click.option(
    "--option", "recipe_options", multiple=True, metavar="NAME=VALUE", help="Of a recipe; repeatable."
)
@click.option("--out", required=True, metavar="DIR_OR_URL", help="Where the new dataset goes.")
@click.option("--image-root", metavar="DIR_OR_URL", help="Where image paths start.")
@click.option(
    "--image-key",
    "image_keys",
    multiple=True,
    metavar="NAME",
    help="Key that holds images, or 'none'; repeatable.",
)
@click.option(
    "--file-key",
    "file_keys",
    multiple=True,
    metavar="NAME",
    help="Key of audio or video, or 'none'; repeatable.",
)
@click.option("--size-limit", default="64mb", metavar="SIZE", help="Target size of a shard (64mb), or none.")
@click.option("--samples-per-shard", type=int, metavar="N", help="Most samples in a shard.")
@click.option("--compression", metavar="NAME[:LEVEL]", help="Such as zstd:3, gz, bz2, br, snappy.")
@click.option(
    "--hash",
    "hashes",
    multiple=True,
    default=("xxh64",),
    metavar="NAME",
    help="Hash of each file (xxh64), or none; repeatable.",
)
@click.option("--workers", type=int, metavar="N", help="Processes (default: one for each CPU).")
@click.option("--engine", type=click.Choice(["local", "ray"]), help="Processes here, or a Ray cluster.")
@click.option("--address", metavar="ADDRESS", help="Of the Ray cluster (auto, local, HOST:PORT).")
@click.option("--task-cpus", type=float, metavar="N", help="CPUs that Ray reserves for a task (1).")
@click.option("--task-memory", metavar="SIZE", help="Memory that Ray reserves for a task (4gb).")
@click.option("--shuffle", type=int, metavar="[=SEED]", help="Permute all records; seed 0 if not given.")
@click.option("--check/--no-check", default=True, help="Decode every image once (default).")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    help="Stop at bad records (default), or skip them.",
)
@click.option("--max-errors", metavar="N|P%", help="Most bad records to skip (100, 1%).")
@click.option("--dry-run", is_flag=True, help="Say what would be made, and every problem.")
@click.option("--split", metavar="NAME=SHARE,...", help="Split into OUT/NAME (train=0.98,val=0.02).")
@click.option("--overwrite", is_flag=True, help="Replace a finished dataset in --out.")
@click.option("--append", is_flag=True, help="Add to the dataset in --out.")
@click.option("--resume/--no-resume", default=True, help="Go on with an interrupted run (default).")
@click.option(
    "--column", "columns", multiple=True, metavar="NAME=ENCODING", help="Encoding of a column; repeatable."
)
@click.option("--drop", multiple=True, metavar="KEY", help="Leave a key out; repeatable.")
@click.option("--rename", multiple=True, metavar="KEY=NAME", help="Another name for a key; repeatable.")
@click.option("--where", multiple=True, metavar="KEY>=VALUE", help="Only such records; repeatable.")
@click.option(
    "--tokenize", multiple=True, metavar="TOKENIZER:KEY", help="Tokens of a text, in KEY_tokens; repeatable."
)
@click.option(
    "--cost",
    "costs",
    multiple=True,
    metavar="NAME=KEY",
    help="What samples cost (tokens=KEY), for weight_by.",
)
@click.option("--sample-hash", metavar="NAME", help="Hash of every sample too (xxh64).")
@click.option("--json-rest", metavar="COLUMN", help="Column for the rarest of more than 256 keys.")
@click.option("--allow-outside-root", is_flag=True, help="Let image paths and links leave the root.")
@click.option("--fetch", is_flag=True, help="Fetch images whose references are URLs.")
@click.option("--fetch-private", is_flag=True, help="Also from hosts inside this network.")
@click.option(
    "--fetch-limit",
    "fetch_limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="size, seconds, tries, redirects, at-once.",
)
@click.option("--max-side", type=int, metavar="N", help="Scale larger images down to N pixels.")
@click.option("--quality", type=int, metavar="Q", help="Encode JPEG and lossy WebP anew.")
@click.option("--max-image-pixels", type=int, metavar="N", help="Largest image that is decoded.")
@click.option("--work-dir", metavar="DIR", help="Where a plan for an --out URL is kept.")
@storage_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def command(
    sources: tuple[str, ...],
    size_limit: str,
    hashes: tuple[str, ...],
    costs: tuple[str, ...],
    columns: tuple[str, ...],
    rename: tuple[str, ...],
    recipe_options: tuple[str, ...],
    max_errors: str | None,
    task_memory: str | None,
    dry_run: bool,
    split: str | None,
    where: tuple[str, ...],
    tokenize: tuple[str, ...],
    fetch: bool,
    fetch_private: bool,
    fetch_limits: tuple[str, ...],
    as_json: bool,
    quiet: bool,
    **rest: Any,
) -> None:
    # No linear algebra is done here. Without the threads that NumPy's library would start, and could not take along,
    # worker processes can be copies of this one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from streamshard._sizes import parse_bytes
    from streamshard.cli._progress import terminal_progress
    from streamshard.convert import job
    from streamshard.convert.conditions import parse_where
    from streamshard.convert.fetch_limits import FetchLimits
    from streamshard.convert.option_texts import parse_max_errors, parse_pairs, parse_size_limit
    from streamshard.convert.options import ConvertOptions
    from streamshard.convert.progress import SilentProgress
    from streamshard.convert.splits import parse_splits
    from streamshard.convert.tokenizing import parse_tokenize
    from streamshard.errors import StreamshardError

    if "none" in hashes and len(set(hashes)) > 1:
        raise click.UsageError(
            f"--hash none and --hash {next(name for name in hashes if name != 'none')}: choose one"
        )
    if split is not None and rest["append"]:
        raise click.UsageError("--split and --append: choose one; add to each of the datasets in turn")
    if split is not None and dry_run:
        raise click.UsageError("--split and --dry-run: choose one; a dry run tells of all records")
    if (fetch_private or fetch_limits) and not fetch:
        raise click.UsageError("--fetch-private and --fetch-limit: only together with --fetch")
    try:
        splits = None if split is None else parse_splits(split)
        options = ConvertOptions(
            sources=sources,
            size_limit=parse_size_limit(size_limit),
            hashes=tuple(name for name in hashes if name != "none"),
            costs=parse_pairs(costs, "--cost", "NAME=KEY, such as tokens=num_tokens", first=True),
            columns=parse_pairs(columns, "--column", "NAME=ENCODING, such as label=int32"),
            rename=parse_pairs(rename, "--rename", "KEY=NAME, such as text=caption"),
            recipe_options=parse_pairs(
                recipe_options, "--option", "NAME=VALUE, such as root=/data", first=True
            ),
            where=parse_where(where),
            tokenize=parse_tokenize(tokenize),
            fetch=FetchLimits.parse(fetch_limits, private=fetch_private) if fetch else None,
            task_memory=None if task_memory is None else parse_bytes(task_memory, name="task_memory"),
            max_errors=None if max_errors is None else parse_max_errors(max_errors),
            **{name: value for name, value in rest.items() if value is not None},
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    progress = SilentProgress() if quiet else terminal_progress()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if splits is not None:
            summaries = job.convert_splits(options, splits, progress)
        else:
            run = job.dry_run if dry_run else job.convert
            summaries = {"": run(options, progress)}
    except KeyboardInterrupt:
        progress.end()
        click.echo(
            f"interrupted; {options.out} is not finished: run the same command again to go on from here",
            err=True,
        )
        raise click.exceptions.Exit(130) from None
    except (StreamshardError, OSError) as error:
        progress.end()
        text = str(error)
        if not isinstance(error, StreamshardError) and error.filename is None:
            text = f"{options.out}: {error.strerror or text}; the same command goes on from here when that is mended"
        raise click.ClickException("\n".join(printable(line) for line in text.split("\n"))) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    if as_json:
        shown = {name: summary.to_json() for name, summary in summaries.items()}
        click.echo(json.dumps(shown[""] if splits is None else shown))
    else:
        for summary in summaries.values():
            for line in summary.lines():
                say(line)
    if dry_run and summaries[""].skipped and options.on_error == "raise":
        raise click.exceptions.Exit(1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
