"""``streamshard show``: single samples as text, and their pictures as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamshard.cli._errors import NamedErrorCommand
from streamshard.cli._options import json_option, split_option, storage_option
from streamshard.cli._text import say, table
from streamshard.cli._values import is_picture, is_pixels, pictures_of, show_value, value_to_json

if TYPE_CHECKING:
    from streamshard.read.spot import SpotReader


# Unknown options are taken for arguments so that -1 can be a sample; a mistyped option is then no integer:
# exit 2.
@click.command("show", cls=NamedErrorCommand, context_settings={"ignore_unknown_options": True})
@click.argument("dataset")
@click.argument("samples", metavar="INDEX...", type=int, nargs=-1, required=True)
@click.option("--column", "columns", metavar="NAME", multiple=True, help="Only this column; repeatable.")
@click.option(
    "--image", type=click.Path(path_type=Path, dir_okay=False), help="Write the picture's stored bytes here."
)
@click.option(
    "--image-index", metavar="K", type=click.IntRange(min=0), help="The K-th picture of each sample only."
)
@click.option("--allow-unsafe-types", is_flag=True, help="Decode pkl columns; this can run code in them.")
@split_option
@storage_option
@json_option
def command(
    dataset: str,
    samples: tuple[int, ...],
    columns: tuple[str, ...],
    image: Path | None,
    image_index: int | None,
    allow_unsafe_types: bool,
    split: str | None,
    storage_options: dict[str, Any],
    as_json: bool,
) -> None:
    """Show samples INDEX... of DATASET, a directory or URL; -1 is the last one.

    Long values are cut and followed by their length. Several pictures are numbered: a.png becomes a.0.png,
    a.1.png ...
    """
    from streamshard.read.catalog import load_index
    from streamshard.read.spot import SpotReader
    from streamshard.storage import open_store

    store = open_store(dataset, storage_options=storage_options)
    index, _ = load_index(store, split=split)
    pictures: list[Any] = []
    shown: list[dict[str, Any]] = []
    with SpotReader(store, index, split=split) as reader:
        for sample_id in samples:
            place, encodings, sample = _read(reader, sample_id, columns, allow_unsafe_types)
            if as_json:
                values = {name: value_to_json(value, encodings[name]) for name, value in sample.items()}
                shown.append({**place, "columns": values})
            else:
                say("sample {sample} (shard {shard!r}, row {row})".format(**place))
                table(
                    [
                        (name, encodings[name], show_value(value, encodings[name]))
                        for name, value in sample.items()
                    ]
                )
            if image is not None:
                pictures += _chosen(sample, encodings, image_index, place["sample"])
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    if image is not None:
        for path in _write_pictures(image, pictures):
            click.echo(f"wrote {path}", err=True)


def _read(
    reader: SpotReader, sample_id: int, columns: tuple[str, ...], allow_unsafe_types: bool
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Return place, encodings and values of a sample: image files as bytes, bare pixels as images."""
    from streamshard.errors import FormatError

    try:
        shard_id, row = reader.locate(sample_id)
    except IndexError as error:
        raise ValueError(str(error)) from error
    schema = reader.index.shards[shard_id].schema
    place = {
        "sample": int(reader.index.begins[shard_id]) + row,
        "shard": reader.index.shards[shard_id].raw.basename,
        "row": row,
    }
    encodings = dict(zip(schema.names, schema.encodings, strict=True))
    encoded = reader.raw(shard_id, row)
    sample: dict[str, Any] = {}
    # An unknown --column is refused by this first decoder.
    for name in schema.decoder(columns or None, allow_unsafe_types=allow_unsafe_types).columns:
        decoder = schema.decoder(
            [name], allow_unsafe_types=allow_unsafe_types, decode_images=is_pixels(encodings[name])
        )
        try:
            sample |= decoder.one(encoded)
        except FormatError as error:
            where = f"sample {place['sample']} (shard {place['shard']!r}, row {row})"
            raise FormatError(f"{where}: {error}") from error
    return place, encodings, sample


def _chosen(
    sample: dict[str, Any], encodings: dict[str, str], image_index: int | None, sample_id: int
) -> list[Any]:
    found = [
        picture
        for name, value in sample.items()
        if is_picture(encodings[name])
        for picture in pictures_of(value)
    ]
    if image_index is None:
        if not found:
            raise ValueError(f"sample {sample_id} holds no picture; nothing was written")
        return found
    if image_index >= len(found):
        raise ValueError(
            f"--image-index {image_index}: sample {sample_id} holds {len(found)} pictures, counted from 0"
        )
    return [found[image_index]]


def _write_pictures(path: Path, pictures: list[Any]) -> list[Path]:
    written = []
    for number, picture in enumerate(pictures):
        target = path if len(pictures) == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
        if isinstance(picture, (bytes, bytearray, memoryview)):
            target.write_bytes(picture)
        else:
            picture.save(target, format="PNG")  # a pil column stores bare pixels, no file: PNG loses none
        written.append(target)
    return written
