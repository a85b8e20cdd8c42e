"""What lies at the output before a conversion: a finished dataset, strange shards, an old index, leftovers."""

from __future__ import annotations

from collections.abc import Sequence

from streamshard.convert.destination import Destination
from streamshard.convert.finished import input_digests
from streamshard.convert.journal import Journal
from streamshard.convert.options import ConvertOptions
from streamshard.convert.origins import Origin
from streamshard.convert.progress import Progress
from streamshard.errors import ConvertError, FormatError
from streamshard.format.index import (
    INDEX_BASENAME,
    MAX_INDEX_NBYTES,
    Index,
    parse_index,
    side_basenames,
)
from streamshard.format.sample_hashes import digest_nbytes, side_basename
from streamshard.write.append import Base
from streamshard.write.destination import is_shard_file

APPENDED_KEY = "appended"
"""In the index, under ``"streamshard"``: a list of what ``--append`` has added, as ``"convert"`` tells of the first."""

_WAYS_OUT = "choose another --out, or replace it with --overwrite"


class EarlierOutput:
    """What earlier runs, or others, have left at the output of a job."""

    def __init__(
        self, options: ConvertOptions, destination: Destination, journal: Journal, progress: Progress
    ) -> None:
        self._options = options
        self._destination = destination
        self._journal = journal
        self._progress = progress

    def finished(self, origins: Sequence[Origin]) -> Index | None:
        """The index of the finished dataset that this very job has made; ``None`` where there is none.

        Raises:
            ConvertError: a dataset of another job, of other input, or one that is not complete.
        """
        if self._options.overwrite:
            return None
        text = self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES)
        if text is None:
            return None
        where = self._destination.name
        try:
            index = parse_index(text, source=f"{where}/{INDEX_BASENAME}")
        except FormatError as error:
            raise ConvertError(
                f"{where}: holds an {INDEX_BASENAME} already, and not a sound one ({error}); {_WAYS_OUT}"
            ) from error
        if self._options.append:
            return index if self._is_there(index, origins) else None
        made = index.extra.get("convert")
        facts = made if isinstance(made, dict) and APPENDED_KEY not in index.extra else {}
        if facts.get("options") != self._options.portable_digest() or not self._options.resume:
            raise ConvertError(
                f"{where}: holds a finished dataset ({_counts(index)}), not made by this job; {_WAYS_OUT}"
            )
        records = facts.get("records")
        digests = input_digests(
            origins,
            self._options,
            records if isinstance(records, int) else 0,
            self._progress,
            decode=bool(facts.get("skipped")),
        )
        if facts.get("digests") != digests:
            raise ConvertError(
                f"{where}: holds a finished dataset ({_counts(index)}) of other records or images; {_WAYS_OUT}"
            )
        for shard in index.shards:
            size = self._destination.size(shard.stored.basename)
            if size != shard.stored.nbytes:
                found = (
                    "is not there" if size is None else f"has {size} bytes instead of {shard.stored.nbytes}"
                )
                raise ConvertError(
                    f"{where}: holds a dataset whose {shard.stored.basename} {found}; {_WAYS_OUT}"
                )
        self._check_side_files(index)
        return index

    def _is_there(self, index: Index, origins: Sequence[Origin]) -> bool:
        """Whether one of the runs that made a dataset is this very job."""
        facts = index.facts
        added = facts.get(APPENDED_KEY)
        nbytes = sum(origin.nbytes for origin in origins)
        for run in [facts.get("convert"), *(added if isinstance(added, list) else [])]:
            if (
                isinstance(run, dict)
                and run.get("options") == self._options.portable_digest()
                and run.get("source_nbytes", nbytes) == nbytes
                and self._options.resume
            ):
                records = run.get("records")
                digests = input_digests(
                    origins,
                    self._options,
                    records if isinstance(records, int) else 0,
                    self._progress,
                    decode=bool(run.get("skipped")),
                )
                if run.get("digests") == digests:
                    return True
        return False

    def base(self) -> Base | None:
        """The dataset that is to be added to; ``None`` where there is none, or it is not to be.

        Raises:
            FormatError: its index is not sound.
        """
        text = (
            self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES) if self._options.append else None
        )
        return None if text is None else Base(text, self._destination.name)

    def _check_side_files(self, index: Index) -> None:
        hashes = index.sample_hashes
        if hashes is None:
            return
        for shard in index.shards:
            side = side_basename(shard.raw.basename)
            size, expected = self._destination.size(side), shard.num_samples * digest_nbytes(hashes.algorithm)
            if size != expected:
                raise ConvertError(
                    f"{self._destination.name}: holds a dataset whose {side}, the hashes of its samples, has"
                    f" {size or 0} bytes instead of {expected}; {_WAYS_OUT}"
                )

    def clear_leftovers(self) -> None:
        """Finish the cleaning of a run that was killed in it."""
        if self._journal.directory.is_dir():
            with self._journal.locked(self._destination.name):
                self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Delete the shards that the finished dataset has replaced, then the work directory.

        An old index may name any file, even the input of this job: only what is named like a shard is deleted.
        """
        text = self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES)
        if text is not None:
            index = parse_index(text, source=self._destination.name)
            kept = {*index.table.stored_basenames(), *side_basenames(index)}
            for name in self._journal.replaced():
                if name not in kept and is_shard_file(name):
                    self._destination.delete(name)
        self._journal.remove()

    def refuse_strange_shards(self) -> None:
        """Refuse shards that this job has not written.

        Raises:
            ConvertError: there are some, and they are not to be replaced.
        """
        if (
            self._options.overwrite
            or self.base() is not None
            or (self._journal.directory / "job.json").exists()
        ):
            return
        strange = self.shard_files()
        if strange:
            raise ConvertError(
                f"{self._destination.name}: holds {len(strange)} shard files without {INDEX_BASENAME} (such as"
                f" {strange[0]}), which this job has not written; {_WAYS_OUT}"
            )

    def shard_files(self) -> list[str]:
        """The files at the output that are named like shards."""
        return [name for name in self._destination.names() if is_shard_file(name)]

    def remove_index(self) -> None:
        """Delete the old index, and note its files for deletion once the new dataset is published."""
        text = self._destination.read(INDEX_BASENAME, limit=MAX_INDEX_NBYTES)
        if text is None:
            return
        try:
            old = parse_index(text, source=self._destination.name)
            names = [*old.table.stored_basenames(), *side_basenames(old)]
        except FormatError as error:
            self._progress.note(
                f"the old {INDEX_BASENAME} is not sound ({error}); of its files, those named like shards are deleted"
            )
            names = []
        # Shards in folders belong to datasets of their own, which a merged index only points at.
        self._journal.replace_later(name for name in names if "/" not in name)
        self._destination.delete(INDEX_BASENAME)


def _counts(index: Index) -> str:
    return f"{index.num_samples} samples in {index.num_shards} shards"
