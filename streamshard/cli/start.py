"""Where the command ``streamshard`` begins: its help is shown without loading what runs the commands."""

from __future__ import annotations

import gc
import os
import sys

WHAT_IT_DOES = "Turn JSONL and images once into shards that stream to any number of GPUs."

COMMANDS = {
    "convert": ("streamshard.cli.convert", "Turn JSONL + images into a dataset of shards."),
    "info": ("streamshard.cli.info", "Say what a dataset holds."),
    "show": ("streamshard.cli.show", "Show one sample."),
    "verify": ("streamshard.cli.verify", "Check every shard and list every problem."),
    "repair": ("streamshard.cli.repair", "Mend a damaged dataset: fetch, rebuild or cut."),
    "merge": ("streamshard.cli.merge", "Join the datasets in subdirectories under one index."),
    "state": ("streamshard.cli.state", "Say where a training state stands, and whether it fits."),
}
"""Name -> (module with an object ``command``, one line for --help)."""

# What click wraps lines at.
_WIDTH = 80
# What a command loads, some 50,000 objects, stays, and is not to be looked through for garbage again and again.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main() -> object:
    """Run the command with the arguments of this process."""
    if sys.argv[1:] in (["-h"], ["--help"]) and os.path.basename(sys.argv[0]) == "streamshard":  # noqa: PTH119
        try:
            if _is_wide():
                sys.stdout.write(help_text())
                sys.stdout.flush()
                return 0
        except (OSError, AttributeError):
            pass  # closed, or its reader is gone: click's way of showing the same deals with that
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    from streamshard.cli.main import main as command

    try:
        return command()
    finally:
        # The process ends: Python need not look through all that was loaded twice more.
        gc.freeze()


def _is_wide() -> bool:
    """Whether no line of the help has to be wrapped; ``COLUMNS`` is left to click."""
    if "COLUMNS" in os.environ:
        return False
    return not sys.stdout.isatty() or os.get_terminal_size(sys.stdout.fileno()).columns >= _WIDTH


def help_text() -> str:
    """Give the text of ``streamshard --help``, as click lays it out."""
    width = max(map(len, COMMANDS))
    commands = "".join(f"  {name:{width}}  {line}\n" for name, (_, line) in COMMANDS.items())
    return (
        "Usage: streamshard [OPTIONS] COMMAND [ARGS]...\n\n"
        f"  {WHAT_IT_DOES}\n\n"
        "Options:\n  --version   Show the version and exit.\n  -h, --help  Show this message and exit.\n\n"
        f"Commands:\n{commands}"
    )
