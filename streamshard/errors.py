"""Every error that streamshard raises on purpose.

    StreamshardError
    ├── FormatError(ValueError)            bytes that are not what the format says
    │   ├── ChecksumError                  a file whose hash is not the one in the index
    │   └── UnsafeEncodingError            a column that would run code when read (pickle)
    ├── SampleError(ValueError)            a sample that the writer cannot store
    │   └── ShardTooLargeError             a sample or shard beyond what u32 offsets can address
    ├── ConvertError(ValueError)           input of ``streamshard convert`` that is not usable
    ├── StorageError(OSError)              a place that could not be read or written
    │   ├── BlobNotFoundError(FileNotFoundError)
    │   ├── AccessDeniedError(PermissionError)
    │   ├── WrongSizeError                  a file of another size than its index says
    │   ├── CacheTooSmallError             a cache limit that cannot work
    │   └── DirectoryInUseError            a second writer for one directory or URL
    ├── BadSamplesError(ValueError)        more bad samples in an epoch than are tolerated
    ├── StateError(ValueError)             a training state that does not fit the dataset
    ├── TopologyError(ValueError)          ranks, nodes or batch sizes that contradict each other
    └── MissingDependencyError(ImportError) an optional package that is not installed

Each takes one positional message that says which file, what was found, what was expected and what to do.
That form is needed: torch re-raises a worker's error as ``type(error)(message)``.
"""

from __future__ import annotations


class StreamshardError(Exception):
    """Root of all errors raised by this package."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message)


class FormatError(StreamshardError, ValueError):
    """An index or shard whose bytes contradict the format. Retrying does not help."""


class ChecksumError(FormatError):
    """A whole file whose hash differs from the one in its index. A fresh copy may help."""


class UnsafeEncodingError(FormatError):
    """A column whose decoder can run code, read without ``allow_unsafe_types=True``."""


class SampleError(StreamshardError, ValueError):
    """A sample that a writer refuses: missing or unknown column, wrong type, out of range."""


class ShardTooLargeError(SampleError):
    """A sample or shard that would pass 4 GiB, the end of what MDS's u32 offsets can address."""


class ConvertError(StreamshardError, ValueError):
    """JSONL or image input that cannot be converted; names file and line."""


class StorageError(StreamshardError, OSError):
    """A read, write or listing that failed for good, after the retries that made sense."""


class BlobNotFoundError(StorageError, FileNotFoundError):
    """A file that is not where it was looked for. Not retried."""


class AccessDeniedError(StorageError, PermissionError):
    """Credentials that are missing, wrong or not sufficient. Not retried."""


class WrongSizeError(StorageError):
    """A file of another size than its index says, or larger than it may be. Retrying does not help."""


class CacheTooSmallError(StorageError):
    """A cache limit below what the run needs at once; the message holds both numbers."""


class DirectoryInUseError(StorageError):
    """A directory or URL that another writer is writing to."""


class BadSamplesError(StreamshardError, ValueError):
    """More bad samples in an epoch than ``error_limit`` tolerates, or no good one to take a bad one's place."""


class StateError(StreamshardError, ValueError):
    """A training state made with other data, another seed or another order."""


class TopologyError(StreamshardError, ValueError):
    """Ranks, nodes, replication or batch sizes that do not go together."""


class MissingDependencyError(StreamshardError, ImportError):
    """An optional package that is not installed; the message names package and extra."""
