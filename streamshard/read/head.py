"""What stands in front of a shard's samples, read and checked once; known already when the file is opened again.

A process that reads many streams has more shards live than it may have files open. Opening one again then costs no
check: what was found is remembered with what tells the file from others. Large tables of offsets are not copied into
memory, but stay in the file's map.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamshard.format.shard import parse_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from streamshard.format.index import ShardInfo
    from streamshard.read.raw_file import RawFile

MAPPED_FROM_NBYTES = 8 << 10
"""Tables of offsets from this size on are used where they lie, if the file can be mapped."""
# A config of some columns is behind the table: one call reads it, too.
_CONFIG_NBYTES = 1 << 10


@dataclass(frozen=True, slots=True, eq=False)
class ShardHead:
    """What was found good in front of a shard's samples.

    Attributes:
        identity: of the file: device, inode, size, time of modification.
        offsets: where each sample begins, then the size of the file; uint32, shape (num_samples + 1,). None: they
            are used where they lie in the file.
    """

    identity: tuple[int, int, int, int]
    offsets: NDArray[np.uint32] | None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return 0 if self.offsets is None else self.offsets.nbytes


def read_head(file: RawFile, info: ShardInfo, *, shard: str, known: ShardHead | None = None) -> ShardHead:
    """Read and check what stands in front of the samples; ``known`` was found before, perhaps of this very file.

    Raises:
        FormatError: as ``parse_header``.
    """
    if known is not None and known.identity == file.identity and (known.offsets is not None or file.mapped()):
        return known
    header = parse_header(_in_one_call(file, info), info.raw.nbytes, shard=shard, expected=info)
    stays = header.offsets.nbytes >= MAPPED_FROM_NBYTES and file.mapped() is not None
    return ShardHead(file.identity, None if stays else header.offsets)


def offsets_of(head: ShardHead, file: RawFile, info: ShardInfo) -> NDArray[np.uint32]:
    """Give the offsets of a head that was read from ``file``, as an array or as a view of the file's map."""
    if head.offsets is not None:
        return head.offsets
    return np.frombuffer(file.mapped() or b"", "<u4", info.num_samples + 1, 4)


def _in_one_call(file: RawFile, info: ShardInfo) -> Callable[[int, int], bytes]:
    """Give bytes [begin, end) of a file, of which the first ones are read together where they are few."""
    ahead = 8 + 4 * info.num_samples + _CONFIG_NBYTES
    if ahead > MAPPED_FROM_NBYTES + _CONFIG_NBYTES:
        return file.read
    start = file.read(0, min(ahead, file.nbytes))
    return lambda begin, end: start[begin:end] if end <= len(start) else file.read(begin, end)
