"""A server of the tests' own that speaks plain HTTP and as much S3 as reading takes, and fails as it is told."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.loopback import LoopbackHandler, LoopbackServer, running


class SmallServer(LoopbackServer):
    """Serves ``files`` by path. ``trouble``: "", "denied", "missing", "busy", "short" or "wrong".

    ``key``: access key that alone is let in, where one is set. ``region``: where its buckets are, which requests that
    are signed for another one are told. ``seen``: what clients sent: paths with their queries,
    and headers.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.files: dict[str, bytes] = {}
        self.trouble = ""
        self.key = ""
        self.region = ""
        self.seen: list[str] = []


def small_server() -> AbstractContextManager[SmallServer]:
    """Run a server in a thread for the length of a block."""
    return running(SmallServer())


class _Handler(LoopbackHandler):
    server: SmallServer

    def do_GET(self) -> None:
        server, parts = self.server, urlsplit(self.path)
        server.seen.append(f"{self.path} {dict(self.headers)}")
        path = unquote(parts.path).lstrip("/")
        query = parse_qs(parts.query)
        failure = {
            "denied": (403, "AccessDenied"),
            "missing": (404, "NoSuchBucket"),
            "busy": (503, "SlowDown"),
        }
        if server.trouble in failure:
            self._fail(*failure[server.trouble])
        elif f"Credential={server.key}" not in self.headers.get("Authorization", "Credential="):
            self._fail(400, "ExpiredToken")
        elif f"%2F{server.region}%2F" not in self.path and server.region:
            self._fail(400, "AuthorizationHeaderMalformed")
        elif "list-type" in query:
            self._list(path.rstrip("/"), query.get("prefix", [""])[0])
        elif path not in server.files:
            self._fail(404, "NoSuchKey")
        else:
            self._send_file(server.files[path])

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._fail(403, "AccessDenied")

    do_POST = do_DELETE = do_PUT

    def _send_file(self, content: bytes) -> None:
        if self.server.trouble == "wrong" and self.path.partition("?")[0].endswith(".mds"):
            content = content[:-1] + bytes([content[-1] ^ 1])
        begin, end, status = self.span(len(content))
        self.send_response(status)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{zlib.crc32(content):08x}"')
        self.send_header("Last-Modified", "Mon, 01 Jan 2024 00:00:00 GMT")
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            body = content[begin:end]
            if self.server.trouble == "short" and self.path.partition("?")[0].endswith(".mds"):
                body = body[: len(body) // 2]
                self.close_connection = True
            self.wfile.write(body)

    def _list(self, bucket: str, prefix: str) -> None:
        inside = f"{bucket}/"
        keys = [
            (path[len(inside) :], len(content))
            for path, content in sorted(self.server.files.items())
            if path.startswith(inside + prefix)
        ]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>0</ETag>"
            "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
            for key, size in keys
        )
        self._answer(200, f"<ListBucketResult><KeyCount>{len(keys)}</KeyCount>{rows}</ListBucketResult>")

    def _fail(self, status: int, code: str) -> None:
        self._answer(
            status, f"<Error><Code>{code}</Code><Message>{code} for {escape(self.path)}</Message></Error>"
        )

    def _answer(self, status: int, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        if self.server.region:
            self.send_header("x-amz-bucket-region", self.server.region)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
