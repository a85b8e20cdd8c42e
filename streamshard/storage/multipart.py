"""Large files to S3 in parts: several at once, each with its own tries; nothing is left of an upload that fails."""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from streamshard.errors import StorageError, WrongSizeError
from streamshard.storage.sending import check_stored
from streamshard.storage.together import Tell, together

IN_PARTS_FROM_NBYTES = 32 << 20
# At least 5 MiB and at most 10,000 parts is what S3 asks; a shard has less than 4 GiB.
PART_NBYTES = 16 << 20
_AT_ONCE = 4


class Call(Protocol):
    """Calls ``operation(file system, path)`` for one key of a store, again where that may help; ``nbytes`` are sent."""

    def __call__(self, verb: str, operation: Any, nbytes: int = 0) -> Any: ...


def put_in_parts(call: Call, path: Path, nbytes: int) -> None:
    """Upload a file of ``nbytes`` bytes, which is under its name when all parts are there.

    A process that is killed leaves parts that nobody sees and the bucket counts, until the same file goes up again or
    the bucket's rule for incomplete uploads removes them. So only one process may upload a file at a time, for which
    writers have claims.

    Raises:
        StorageError, AccessDeniedError, BlobNotFoundError: what ``call`` raises; the parts were given up.
        WrongSizeError: the file has changed meanwhile.
    """
    upload = call("begin to upload", _begin)
    given_up = threading.Event()
    try:
        works = [
            partial(_send, call, path, upload, given_up, number, begin, min(begin + PART_NBYTES, nbytes))
            for number, begin in enumerate(range(0, nbytes, PART_NBYTES), 1)
        ]
        tags = dict(together(works, threads=_AT_ONCE))
        parts = [{"PartNumber": number + 1, "ETag": tags[number]} for number in range(len(works))]
        _finish(call, upload, parts, nbytes)
    except BaseException:
        given_up.set()
        with contextlib.suppress(StorageError):  # on its way already is an error that says more
            call("give up uploading", lambda fs, target: _give_up(fs, target, upload))
        raise


def _begin(fs: Any, target: str) -> str:
    bucket, key, _ = fs.split_path(target)
    with contextlib.suppress(Exception):  # not everybody may list or give up, and the bucket has its rule
        for found in fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=key).get("Uploads", []):
            if found["Key"] == key:
                _give_up(fs, target, found["UploadId"])
    return str(_ask(fs, target, "create_multipart_upload")["UploadId"])


def _send(
    call: Call,
    path: Path,
    upload: str,
    given_up: threading.Event,
    number: int,
    begin: int,
    end: int,
    _tell: Tell,
) -> str:
    with path.open("rb") as file:
        file.seek(begin)
        piece = file.read(end - begin)
    if len(piece) != end - begin:
        raise WrongSizeError(f"upload {path}: it has become shorter than {end} bytes while it was uploaded")

    def send(fs: Any, target: str) -> str:
        try:
            sent = _ask(fs, target, "upload_part", UploadId=upload, PartNumber=number, Body=piece)
        finally:
            if given_up.is_set():
                # What was on its way may have been stored since: S3 asks to give up again.
                with contextlib.suppress(Exception):
                    _give_up(fs, target, upload)
        return str(sent["ETag"])

    tag: str = call(f"upload part {number} of", send, len(piece))
    return tag


def _finish(call: Call, upload: str, parts: list[dict[str, Any]], nbytes: int) -> None:
    asked = False

    def finish(fs: Any, target: str) -> None:
        nonlocal asked
        try:
            _ask(fs, target, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts})
        except FileNotFoundError:
            if not asked:
                raise
            # Its number is known to nobody else: the answer to an earlier try was lost, not the parts.
        finally:
            asked = True
        fs.invalidate_cache(target)
        check_stored(fs, target, nbytes)

    call("finish uploading", finish)


def _give_up(fs: Any, target: str, upload: str) -> None:
    _ask(fs, target, "abort_multipart_upload", UploadId=upload)


def _ask(fs: Any, target: str, method: str, **arguments: Any) -> Any:
    bucket, key, _ = fs.split_path(target)
    return fs.call_s3(method, Bucket=bucket, Key=key, **arguments)
