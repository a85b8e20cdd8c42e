"""The last step of a conversion: the list of rejected records, then the index, which makes a dataset of the shards."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamshard.convert.class_names import CLASS_NAMES_KEY, names_in_facts
from streamshard.convert.destination import Destination
from streamshard.convert.earlier import APPENDED_KEY
from streamshard.convert.journal import Done
from streamshard.convert.options import ConvertOptions
from streamshard.convert.plan import Plan
from streamshard.convert.problems import REJECTED_BASENAME
from streamshard.errors import ConvertError, FormatError
from streamshard.format.costs import COSTS_KEY, costs_entry
from streamshard.format.index import INDEX_BASENAME, MAX_INDEX_NBYTES, ShardInfo, index_text
from streamshard.format.sample_hashes import SAMPLE_HASHES_KEY, sample_hashes_entry
from streamshard.write.append import Base
from streamshard.write.publish import publish_file


class Publication(NamedTuple):
    """What the last step needs of a conversion.

    Args:
        directory: the work directory.
        base: the dataset that is added to.
        source_nbytes: size of all inputs.
    """

    options: ConvertOptions
    destination: Destination
    directory: Path
    base: Base | None
    source_nbytes: int

    def entry(self, plan: Plan, done: Sequence[Done]) -> dict[str, Any]:
        """What stands under the key ``"streamshard"`` of the index: the plan's facts, and the shards' costs.

        Raises:
            ConvertError: costs too large to be stored.
        """
        names = [name for name, _ in self.options.costs]
        sums = {name: [each.costs[place] for each in done] for place, name in enumerate(names)}
        extra = dict(plan.extra)
        if self.options.sample_hash is not None:
            digests = [str(each.side_digest) for each in done]
            extra[SAMPLE_HASHES_KEY] = sample_hashes_entry(self.options.sample_hash, digests)
        try:
            return {**extra, COSTS_KEY: costs_entry(sums)} if names else extra
        except FormatError as error:
            raise ConvertError(f"{self.destination.name}: {error}; choose a larger unit for it") from error

    def publish(self, infos: Sequence[ShardInfo], extra: Mapping[str, Any]) -> None:
        """Place the list of rejected records, and last the index, whose presence says that all is there.

        Raises:
            ConvertError: somebody else has replaced the index of the dataset that is added to.
            StorageError: the output cannot be written.
        """
        built = self.directory / "built"
        rejected = self.directory / REJECTED_BASENAME
        built.mkdir(exist_ok=True)
        if rejected.exists():
            # A copy: a run that is killed right after this still has the list.
            shutil.copyfile(rejected, built / REJECTED_BASENAME)
            if self.base is not None:
                self._keep_old_rejected(built / REJECTED_BASENAME)
            self.destination.place(built / REJECTED_BASENAME, REJECTED_BASENAME)
        elif self.options.overwrite:
            self.destination.delete(REJECTED_BASENAME)
        publish_file(built, INDEX_BASENAME, [index_text(*self._whole(infos, extra))])
        self.destination.place(built / INDEX_BASENAME, INDEX_BASENAME)

    def _keep_old_rejected(self, path: Path) -> None:
        """Put in front what earlier runs have left out, unless a run that was killed right here has done so."""
        old, new = self.destination.read(REJECTED_BASENAME) or b"", path.read_bytes()
        path.write_bytes(old if old.endswith(new) else old + new)

    def _whole(
        self, infos: Sequence[ShardInfo], extra: Mapping[str, Any]
    ) -> tuple[Sequence[ShardInfo], Mapping[str, Any]]:
        """What the index has: the new shards, behind those of the dataset that is added to."""
        base = self.base
        if base is None:
            return infos, extra
        if self.destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES) != base.text:
            raise ConvertError(
                f"{self.destination.name}: its {INDEX_BASENAME} was replaced by somebody else meanwhile; run the same"
                " command again to add to what is there now"
            )
        try:
            shards, facts = base.joined(infos, extra)
        except FormatError as error:
            raise ConvertError(f"{self.destination.name}: {error}") from error
        names = {**names_in_facts(extra), **names_in_facts(facts)}
        if names:  # those that are there have the say, as with several inputs
            facts = {**facts, CLASS_NAMES_KEY: names}
        added = {
            **extra["convert"],
            "samples": sum(info.num_samples for info in infos),
            "shards": len(infos),
            "source_nbytes": self.source_nbytes,
        }
        return shards, {**facts, APPENDED_KEY: [*facts.get(APPENDED_KEY, []), added]}
