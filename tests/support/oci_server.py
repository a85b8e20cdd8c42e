"""A server that answers as Oracle's object storage does, as far as ocifs asks it; there is no emulator of it."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.loopback import LoopbackHandler, LoopbackServer, running

NAMESPACE = "space"


class OciServer(LoopbackServer):
    """Holds ``objects`` by bucket and name. ``refuse``: answer 401 to everything. ``storage_options`` reach it."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.objects: dict[tuple[str, str], bytes] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.refuse = False
        self.signed = 0
        self.storage_options = {
            "config": {
                "user": "ocid1.user.oc1..user",
                "tenancy": "ocid1.tenancy.oc1..tenancy",
                "fingerprint": ":".join(["00"] * 16),
                "key_content": _private_key(),
                "region": "eu-frankfurt-1",
            },
            "config_kwargs": {"service_endpoint": f"http://{self.host}"},
        }

    def make_bucket(self) -> str:
        return f"oci://bucket-{secrets.token_hex(6)}@{NAMESPACE}"


@contextmanager
def oci_server() -> Iterator[OciServer]:
    """Run a server in a thread for the length of a block."""
    with running(OciServer()) as server:
        yield server


def _private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    return text.decode()


class _Handler(LoopbackHandler):
    server: OciServer

    def do_GET(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        _, n, namespace, b, bucket, kind, name = [*parts.path.split("/", 6), *[""] * 5][:7]
        if self.server.refuse:
            self._fail(401, "NotAuthenticated")
        elif parts.path.strip("/") == "n":
            self._send(200, json.dumps(NAMESPACE).encode())
        elif (n, namespace, b) != ("n", NAMESPACE, "b"):
            self._fail(404, "BucketNotFound")
        else:
            self.server.signed += self.headers.get("Authorization", "").startswith("Signature ")
            method = {"": self._bucket, "o": self._objects, "u": self._uploads}[kind]
            method(bucket, unquote(name), query)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _bucket(self, bucket: str, _name: str, _query: dict[str, str]) -> None:
        self._send(200, b"")

    def _objects(self, bucket: str, name: str, query: dict[str, str]) -> None:
        objects, key = self.server.objects, (bucket, name)
        if not name:
            self._list(bucket, query)
        elif self.command == "PUT":
            objects[key] = self._body
            self._send(200, b"", {"etag": _tag(self._body)})
        elif key not in objects:
            self._fail(404, "ObjectNotFound")
        elif self.command == "DELETE":
            del objects[key]
            self._send(204, b"")
        else:
            self._show(objects[key])

    def _show(self, content: bytes) -> None:
        begin, end, status = self.span(len(content))
        if status == 206 and begin >= len(content):
            self._fail(416, "InvalidRange")
            return
        head = {
            "etag": _tag(content),
            "accept-ranges": "bytes",
            "last-modified": "Mon, 01 Jan 2024 00:00:00 GMT",
            "version-id": "1",
            "storage-tier": "Standard",
        }
        if status == 206:
            head["Content-Range"] = f"bytes {begin}-{end - 1}/{len(content)}"
        self._send(status, content[begin:end], head, "application/octet-stream")

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        rows: list[dict[str, Any]] = []
        prefixes: set[str] = set()
        for (where, name), content in sorted(self.server.objects.items()):
            if where != bucket or not name.startswith(prefix):
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            if found:
                prefixes.add(prefix + head + delimiter)
            else:
                times = dict.fromkeys(("timeCreated", "timeModified"), "2024-01-01T00:00:00.000Z")
                rows.append({"name": name, "size": len(content), "etag": _tag(content), **times})
        found_all = {"objects": rows[: int(query.get("limit", 1000))], "prefixes": sorted(prefixes)}
        self._send(200, json.dumps(found_all).encode())

    def _uploads(self, bucket: str, name: str, query: dict[str, str]) -> None:
        uploads, number = self.server.uploads, query.get("uploadId", "")
        if not name:
            number = secrets.token_hex(4)
            uploads[number] = {}
            asked = json.loads(self._body)
            told = {"namespace": NAMESPACE, "bucket": bucket, "object": asked["object"], "uploadId": number}
            self._send(200, json.dumps({**told, "timeCreated": "2024-01-01T00:00:00.000Z"}).encode())
        elif self.command == "PUT":
            uploads[number][int(query["uploadPartNum"])] = self._body
            self._send(200, b"", {"etag": _tag(self._body)})
        else:
            parts = uploads.pop(number)
            if self.command == "POST":
                self.server.objects[bucket, name] = b"".join(parts[part] for part in sorted(parts))
            self._send(200, b"")

    def _fail(self, status: int, code: str) -> None:
        self._send(status, json.dumps({"code": code, "message": f"{code}: {self.path}"}).encode())

    def _send(
        self, status: int, body: bytes, head: dict[str, str] | None = None, kind: str = "application/json"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("opc-request-id", "1")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (head or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
