"""What the tests' own HTTP servers have in common: a port of the loopback interface, a thread, silence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar


class LoopbackServer(ThreadingHTTPServer):
    """Listens at a free port from the start."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of a test."""


AnyServer = TypeVar("AnyServer", bound=LoopbackServer)


@contextmanager
def running(server: AnyServer) -> Iterator[AnyServer]:
    """Run a server in a thread for the length of a block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class LoopbackHandler(BaseHTTPRequestHandler):
    """Keeps connections open and says nothing on stderr."""

    protocol_version = "HTTP/1.1"

    def span(self, nbytes: int) -> tuple[int, int, int]:
        """Begin and end of what the request wants of a file, and the status to answer with."""
        wanted = self.headers.get("Range", "")
        if not wanted.startswith("bytes="):
            return 0, nbytes, 200
        first, _, last = wanted[6:].partition("-")
        return int(first or 0), min(int(last or nbytes - 1) + 1, nbytes), 206

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""
