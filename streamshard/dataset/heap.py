"""Memory that the C library gives back to the system too soon."""

from __future__ import annotations

# A freed block of this size, which may be 32 MiB at most, lets glibc keep twice as much.
_NBYTES = 16 << 20
# Mean size of stored samples from which it is worth it; pictures are larger once they are decoded.
_SAMPLE_NBYTES = 4 << 10


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
        bytearray(_NBYTES)
