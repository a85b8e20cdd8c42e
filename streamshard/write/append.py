"""Adding to a dataset: new shards beside the old ones under new names, then one index in the place of the old one.

Readers see the dataset as it was, until the index is replaced as a whole, and from then on with all that was added.
No shard that the old index names is touched. A run that ends in between has changed nothing that anybody reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamshard.format.costs import COSTS_KEY, costs_entry
from streamshard.format.index import Index, ShardInfo, parse_index
from streamshard.format.sample_hashes import SAMPLE_HASHES_KEY, sample_hashes_entry
from streamshard.write.merge import merge_extras

_NUMBER = re.compile(r"shard\.([0-9]{5,18})\.mds(\.\w+)?")
IMAGES_KEY = "images"


class Base:
    """The dataset that is added to.

    Args:
        text: its ``index.json``.
        where: its place, for messages.

    Raises:
        FormatError: the index is not sound.
    """

    def __init__(self, text: bytes, where: str) -> None:
        self.text = text
        self.index: Index = parse_index(text, source=f"{where}/index.json")
        self._where = where
        self._shards = self.index.shards

    @property
    def columns(self) -> dict[str, str] | None:
        """Column → encoding, or None of a dataset without shards.

        Raises:
            ValueError: its shards have different ones.
        """
        schemas = self.index.schemas
        if not schemas:
            return None
        if len(schemas) > 1:
            raise ValueError(
                f"{self._where}: shards of different columns; nothing can be added to such a dataset"
            )
        schema = schemas[0]
        return dict(zip(schema.names, schema.encodings, strict=True))

    @property
    def first_number(self) -> int:
        """The number of the first new shard: one more than that of any shard there."""
        return 1 + max((number_of(shard.raw.basename) for shard in self._shards), default=-1)

    def leftovers(self, names: Iterable[str]) -> list[str]:
        """Of the files there, the shards that the index does not name: those of an append that was killed."""
        return [name for name in names if number_of(name) >= self.first_number]

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse other columns.

        Raises:
            ValueError: they differ, naming how.
        """
        old = self.columns
        if old is None or old == dict(columns):
            return
        differences = [f"column {name!r} ({old[name]}) is missing" for name in old.keys() - columns.keys()]
        differences += [f"column {name!r} ({columns[name]}) is new" for name in columns.keys() - old.keys()]
        differences += [
            f"column {name!r} is {old[name]} there and {columns[name]} here"
            for name in old.keys() & columns.keys()
            if old[name] != columns[name]
        ]
        raise ValueError(
            f"{self._where}: what is added must have the columns of what is there: {', '.join(sorted(differences))}"
        )

    def check_kinds(self, costs: Iterable[str], sample_hash: str | None) -> None:
        """Refuse other costs, or other hashes of samples, than all shards there have.

        Raises:
            ValueError: they differ.
        """
        if not self._shards:
            return
        before, now = sorted(self.index.costs), sorted(costs)
        if before != now:
            raise ValueError(
                f"{self._where}: what is added must have the costs of what is there: {before or 'none'}, found"
                f" {now or 'none'}"
            )
        hashes = self.index.sample_hashes
        there = None if hashes is None else hashes.algorithm
        if there != sample_hash:
            raise ValueError(
                f"{self._where}: what is added must have the hashes of samples that are there: {there or 'none'}, found"
                f" {sample_hash or 'none'}"
            )

    def joined(
        self, shards: Sequence[ShardInfo], extra: Mapping[str, Any]
    ) -> tuple[list[ShardInfo], dict[str, Any]]:
        """All shards, the old ones first, and what belongs under the key ``"streamshard"`` of the index.

        Args:
            shards: the new ones.
            extra: what an index of the new shards alone would have there: costs, hashes, counts of images.

        Raises:
            FormatError: costs that pass 2**63 - 1.
        """
        facts = self.index.facts
        if IMAGES_KEY in extra:
            counts = [("", {IMAGES_KEY: each[IMAGES_KEY]}) for each in (facts, extra) if IMAGES_KEY in each]
            facts[IMAGES_KEY] = merge_extras(counts)[IMAGES_KEY]
        if COSTS_KEY in extra:
            old = {name: sums.tolist() for name, sums in self.index.costs.items()}
            added = {name: cost["shards"] for name, cost in extra[COSTS_KEY].items()}
            facts[COSTS_KEY] = costs_entry({name: old.get(name, []) + sums for name, sums in added.items()})
        if SAMPLE_HASHES_KEY in extra:
            hashes = self.index.sample_hashes
            before = [] if hashes is None else [hashes.side_file(n) for n in range(len(self._shards))]
            entry = extra[SAMPLE_HASHES_KEY]
            facts[SAMPLE_HASHES_KEY] = sample_hashes_entry(entry["algorithm"], before + entry["digests"])
        return [*self._shards, *shards], facts


def number_of(basename: str) -> int:
    """The number of a file that is named like a shard, or -1."""
    match = _NUMBER.fullmatch(basename)
    return -1 if match is None else int(match.group(1))
