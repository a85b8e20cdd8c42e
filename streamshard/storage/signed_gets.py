"""Small objects of S3 with one plain GET each: botocore signs a URL, urllib3 reads it.

One object by way of s3fs costs 2.5 ms of CPU, nearly all of it in Python and on one thread: what is asked, checked,
hooked and parsed around each request. A signed URL does without. The client that signs is made by botocore from what
s3fs was given, so that credentials, profiles, endpoints, proxies and certificates are those of all other requests. See
decision 021.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import Any
from xml.etree import ElementTree

from streamshard.storage.redact import SignaturesInLogs, public_url

_BLOCK = 1 << 16
_SECONDS_OF_A_URL = 900
# So a bucket answers that is in another region than was thought.
_ELSEWHERE = frozenset({301, 307, 400})
_MOST_OF_A_REFUSAL = 1 << 14
# It tells which URLs it asks for, and, as a warning, of which one an answer has a strange header.
_URLLIB3 = logging.getLogger("urllib3.connectionpool")
_NO_SIGNATURES = SignaturesInLogs()


class SignedGets:
    """Reads objects of the buckets that one s3fs file system reaches. Thread-safe; of no use after a fork.

    Attributes:
        proven: whether the place has answered as S3 does, be it that an object is not there; may be set.

    Args:
        fs: an ``s3fs.S3FileSystem`` without a session of its owner's.
        limit_s: seconds that one request may take in all.

    Raises:
        ImportError: no botocore, or none of this kind.
        TypeError, ValueError: the file system was made with something that only it knows, or that a signed URL does
            not carry.
    """

    def __init__(self, fs: Any, limit_s: float) -> None:
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import ClientError
        from urllib3 import HTTPResponse

        if set(fs.s3_additional_kwargs) - {"ACL"}:
            raise ValueError("parameters for each request")
        if not hasattr(HTTPResponse, "read1"):
            raise ImportError("urllib3 is older than 2.2")
        self._fs = fs
        self._limit_s = limit_s
        self._request, self._refusal = AWSRequest, ClientError
        self._client = _client_like(fs, None)
        self.proven = False
        _URLLIB3.addFilter(_NO_SIGNATURES)  # once, however often

    def get(self, path: str, below: int, *, certain: bool = False) -> bytes | None:
        """The whole object ``bucket/key``, if it has fewer than ``below`` bytes; else None.

        Args:
            certain: give it only where its entity tag is the MD5 of what came. Such is the tag of what was put in one
                request, unless it is encrypted with a key of its own.

        Raises:
            botocore.exceptions.ClientError: the server refuses.
            ConnectionError, TimeoutError: no answer in time, or only a part of it.
        """
        end = time.monotonic() + self._limit_s
        bucket, key, version = self._fs.split_path(path)
        wanted = {"Bucket": bucket, "Key": key, **({} if version is None else {"VersionId": version})}
        response = self._answer(wanted)
        if response.status_code in _ELSEWHERE and self._moved(response.headers.get("x-amz-bucket-region")):
            response.raw.close()
            response = self._answer(wanted)
        try:
            if response.status_code != 200:
                raise self._refused(response, end)
            self.proven = True
            told = response.headers.get("content-length")
            nbytes = int(told) if told is not None and told.isdigit() else None
            if nbytes is not None and nbytes >= below:
                return None
            body = bytearray()
            while len(body) < below and (block := self._block(response, end)):
                body += block
            if nbytes is not None and len(body) != nbytes:
                raise ConnectionError(f"the answer ended after {len(body)} of {nbytes} bytes")
            if len(body) >= below or (certain and not _has_tag(response, body)):
                return None
            return bytes(body)
        finally:
            response.raw.close()

    def _answer(self, wanted: dict[str, str]) -> Any:
        client = self._client
        url = client.generate_presigned_url(
            "get_object",
            Params={**wanted, **self._fs.req_kw},
            ExpiresIn=_SECONDS_OF_A_URL,
        )
        # The one parameter that travels as a header, which is signed.
        headers = {"x-amz-request-payer": "requester"} if self._fs.requester_pays else {}
        request = self._request("GET", url, headers, stream_output=True).prepare()
        try:
            return client._endpoint.http_session.send(request)
        except Exception as error:  # noqa: BLE001 botocore's own, each of which quotes the URL with its signature
            trouble = f"{type(error).__name__}: {public_url(str(error))}"
        raise ConnectionError(trouble)

    def _moved(self, region: str | None) -> bool:
        """Sign for the region that a bucket names, if that is another one than before."""
        if region is None or region == self._client.meta.region_name:
            return False
        self._client = _client_like(self._fs, region)
        return True

    def _refused(self, response: Any, end: float) -> Exception:
        """What botocore would raise."""
        said = {"Code": str(response.status_code), "Message": ""}
        body = bytearray()
        while len(body) < _MOST_OF_A_REFUSAL and (block := self._block(response, end)):
            body += block
        try:
            # A few KiB, and expat refuses entities that make much of them.
            for part in ElementTree.fromstring(body.decode("utf-8", "replace")):  # noqa: S314
                said[part.tag.rpartition("}")[2]] = public_url(part.text or "")
        except ElementTree.ParseError:
            pass  # the status is enough
        else:
            self.proven = self.proven or said["Code"] == "NoSuchKey"
        answer = {"Error": said, "ResponseMetadata": {"HTTPStatusCode": response.status_code}}
        refusal: Exception = self._refusal(answer, "GetObject")
        return refusal

    def _block(self, response: Any, end: float) -> bytes:
        """The next bytes of an answer, at most some KiB; none at its end. TimeoutError after the time ``end``."""
        try:
            block: bytes = response.raw.read1(_BLOCK, decode_content=False)
        except Exception as error:  # noqa: BLE001 urllib3's own, which are none of the built-in ones
            trouble = f"{type(error).__name__}: {public_url(str(error))}"
        else:
            if time.monotonic() > end:
                raise TimeoutError(f"no whole answer within {self._limit_s:g} s")
            return block
        raise ConnectionError(trouble)


def _client_like(fs: Any, region: str | None) -> Any:
    """A client of botocore, made as ``S3FileSystem.set_session`` makes one of aiobotocore."""
    import botocore.session
    from botocore import UNSIGNED
    from botocore.config import Config

    config = {"signature_version": "s3v4", **fs.config_kwargs}
    config.setdefault("connect_timeout", fs.connect_timeout)
    config.setdefault("read_timeout", fs.read_timeout)
    options = {"endpoint_url": fs.endpoint_url, "use_ssl": fs.use_ssl}
    secrets = {
        "aws_access_key_id": fs.key,
        "aws_secret_access_key": fs.secret,
        "aws_session_token": fs.token,
    }
    given = {**options, **secrets, **fs.client_kwargs, **({"region_name": region} if region else {})}
    if fs.anon:
        config["signature_version"] = UNSIGNED
        given = {name: value for name, value in given.items() if name not in secrets}
    client = botocore.session.Session(**fs.kwargs).create_client("s3", config=Config(**config), **given)
    if not hasattr(getattr(client, "_endpoint", None), "http_session"):
        raise ImportError("botocore keeps its connections elsewhere")
    return client


def _has_tag(response: Any, body: bytearray) -> bool:
    tag: str = response.headers.get("etag", "")
    return tag.strip('"') == hashlib.md5(body, usedforsecurity=False).hexdigest()
