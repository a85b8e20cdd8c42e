"""A web server of the tests' own for images: each path answers as it is told, and counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.support.loopback import LoopbackHandler, LoopbackServer, running


class WebImages(LoopbackServer):
    """Serves ``pages``: path -> bytes, or a function of the handler that sends what it wants.

    ``counts`` has the requests by path with its query, ``seen`` the headers of the last one.
    """

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.pages: dict[str, bytes | Callable[[Any], None]] = {}
        self.counts: Counter[str] = Counter()
        self.seen: dict[str, str] = {}
        self.lock = threading.Lock()
        self.running = self.most_running = 0

    @property
    def url(self) -> str:
        return f"http://{self.host}"


def web_images() -> AbstractContextManager[WebImages]:
    """Run a server in a thread for the length of a block."""
    return running(WebImages())


def answer(
    status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None
) -> Callable[[Any], None]:
    """A page that gives this answer."""

    def send(handler: Any) -> None:
        sent = {"Content-Length": str(len(body)), **(headers or {})}
        handler.send_response(status)
        for name, value in sent.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return send


def in_turn(*pages: Callable[[Any], None]) -> Callable[[Any], None]:
    """A page that answers like each of these once, and then for ever like the last."""
    left = list(pages)
    lock = threading.Lock()

    def send(handler: Any) -> None:
        with lock:
            page = left.pop(0) if len(left) > 1 else left[0]
        page(handler)

    return send


class _Handler(LoopbackHandler):
    server: WebImages

    def do_GET(self) -> None:
        server = self.server
        with server.lock:
            server.counts[self.path] += 1
            server.seen = dict(self.headers)
            server.running += 1
            server.most_running = max(server.most_running, server.running)
        page = server.pages.get(self.path.partition("?")[0], answer(404))
        try:
            (answer(body=page) if isinstance(page, bytes) else page)(self)
        finally:
            with server.lock:
                server.running -= 1
