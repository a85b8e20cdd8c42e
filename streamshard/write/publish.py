"""A file appears under its name complete and on the disk, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from streamshard.errors import AccessDeniedError, StorageError, StreamshardError
from streamshard.storage.store import replacing
from streamshard.write.writeback import Writeback


def publish_file(directory: Path, name: str, buffers: Iterable[bytes | memoryview]) -> None:
    """Write buffers one after another to ``directory / name``.

    Temporary name, write, fsync, rename, fsync of the directory: a reader, a crash or a kill at any moment
    finds the whole file, the one that was there before, or none.

    Args:
        name: path below ``directory``; its folders are made.
        buffers: each is done with when the next one is asked for.

    Raises:
        AccessDeniedError: not permitted; StorageError: not written for another reason. Both name the file.
        StreamshardError: whatever is raised by those who make the buffers.
    """
    path = directory / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as temporary, temporary.open("xb") as file:
            writeback = Writeback(file.fileno())
            for buffer in buffers:
                file.write(buffer)
                writeback.wrote(len(buffer))
            file.flush()
    except StreamshardError:
        raise
    except OSError as error:
        kind = AccessDeniedError if isinstance(error, PermissionError) else StorageError
        raise kind(f"{path}: could not be written: {error.strerror or error}") from error
