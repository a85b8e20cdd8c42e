"""Memory: what the C library gives back to the system too soon, and what workers begin with."""

from __future__ import annotations

import gc
import os

# A freed block of this size, which may be 32 MiB at most, lets glibc keep twice as much.
_NBYTES = 16 << 20
# Mean size of stored samples from which it is worth it; pictures are larger once they are decoded.
_SAMPLE_NBYTES = 4 << 10

_inherited_in: int | None = None


def keep_freed_memory(sample_nbytes: int) -> None:
    """Let this process's heap keep up to 32 MiB that is free, where samples are large.

    glibc maps each block of 128 KiB or more by itself, and gives back what is free at its heap's end beyond 128 KiB.
    So for each picture that is decoded, and for each batch of large values, the system would map and clear the same
    pages again: in a bare loop, a third of the time that a picture takes. Both limits grow when a larger block that was
    mapped by itself is freed ("dynamic mmap threshold" in mallopt(3)), so one is asked for and freed, untouched. Where
    the user has set limits, as by MALLOC_TRIM_THRESHOLD_, or the C library is another one, nothing changes.

    Args:
        sample_nbytes: mean size of a stored sample.
    """
    if sample_nbytes >= _SAMPLE_NBYTES:
        bytes(_NBYTES)  # which asks for cleared memory and so, unlike bytearray, touches none


def spare_what_is_there() -> None:
    """Leave all objects that a worker process begins with out of Python's collections of garbage; once a process.

    Opening hundreds of shards makes so many objects that Python looks for garbage among all that torch and the trainer
    have made: 0.1 s of CPU each time. It also writes to each of these objects, so that a forked worker comes to own
    the pages that it shared with the trainer, some 40 MB.
    """
    global _inherited_in
    if _inherited_in != os.getpid():
        _inherited_in = os.getpid()
        gc.freeze()
