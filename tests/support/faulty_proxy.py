"""A TCP proxy in front of an HTTP server that delays, throttles, cuts, stalls and lies on command.

Faults are armed with ``proxy.arm(Fault(...), times=k)`` and hit the next ``k`` requests that match, or ``choose`` says
for each request what happens to it. Every request gets a connection of its own. ``Link`` is what all requests go
through: a latency each, one bandwidth together. Requests, and bytes of their answers, are counted.

``python -m tests.support.faulty_proxy HOST PORT LATENCY_S BYTES_PER_S`` runs one in a process of its own: it prints its
port, and for each line that it reads what ``totals`` gives, as JSON. It ends with its input.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_PIECE = 16 << 10


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one connection.

    Args:
        latency_s: pause before the request is passed on.
        bytes_per_s: speed of the answer; 0 for unlimited.
        cut_after: close the connection after this many bytes of the answer, head included.
        stall_after: fall silent after this many bytes of the answer, until the proxy is closed.
        status: answer with this HTTP status and S3 error code instead of passing the request on.
        half_body: pass on only the first half of the body, with a head that says that this is all.
        method: hit only requests with this method; others pass unharmed.
        path_contains: hit only requests whose path contains this.
    """

    latency_s: float = 0.0
    bytes_per_s: float = 0.0
    cut_after: int | None = None
    stall_after: int | None = None
    status: tuple[int, str] | None = None
    half_body: bool = False
    method: str | None = None
    path_contains: str = ""

    def hits(self, method: str, path: str) -> bool:
        return self.method in (None, method) and self.path_contains in path


@dataclass(frozen=True)
class Link:
    """The line between client and server.

    Args:
        latency_s: a round trip; each request takes one before its answer begins.
        bytes_per_s: of all answers together; 0 for unlimited.
    """

    latency_s: float = 0.0
    bytes_per_s: float = 0.0


# What a line may make up for, so that threads which wake up late do not make it slower than it is.
_BURST_S = 0.1


class _Bucket:
    """Bytes in turn, as many a second as the line carries."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait_s(self, nbytes: int) -> float:
        """Seconds until these bytes have gone through."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._free_at = max(now - _BURST_S, self._free_at) + nbytes / self._rate
            return max(0.0, self._free_at - now)


class FaultyProxy:
    """Listens on a loopback port of its own. A context manager; leaves no thread and no socket behind."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        link: Link | None = None,
        choose: Callable[[str, str], Fault | None] | None = None,
    ) -> None:
        self._target = (host, port)
        self._choose = choose
        self._link = link or Link()
        self._bucket = _Bucket(self._link.bytes_per_s)
        self.nbytes: dict[str, int] = {}
        self._shards_since = self._shards_until = 0.0
        self._lock = threading.Lock()
        self._faults: list[tuple[Fault, int]] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = threading.Event()
        self.requests: list[tuple[str, str]] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="faulty-proxy", daemon=True)
        self._acceptor.start()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def arm(self, fault: Fault, *, times: int = 1) -> None:
        """Let ``fault`` hit the next ``times`` matching requests."""
        with self._lock:
            self._faults.append((fault, times))

    def calm(self) -> None:
        """Forget all faults."""
        with self._lock:
            self._faults.clear()

    def drop_connections(self) -> None:
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def count(self, method: str, path_contains: str = "") -> int:
        """Requests so far with this method and a path that contains this."""
        return sum(m == method and path_contains in p for m, p in self.requests)

    def set_link(self, link: Link) -> None:
        """Make requests from now on go through another line."""
        self._link, self._bucket = link, _Bucket(link.bytes_per_s)

    def bytes_of(self, path_contains: str = "") -> int:
        """Bytes of answers so far, heads included, to requests whose path contains this."""
        with self._lock:
            return sum(nbytes for path, nbytes in self.nbytes.items() if path_contains in path)

    def totals(self) -> dict[str, Any]:
        """Requests and bytes of answers so far, those of shards apart, and seconds from first to last of these."""
        return {
            "requests": len(self.requests),
            "nbytes": self.bytes_of(),
            "shard_requests": sum(".mds" in path for _, path in self.requests),
            "shard_nbytes": self.bytes_of(".mds"),
            "shard_seconds": self._shards_until - self._shards_since,
        }

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        self._acceptor.join(10)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), name="faulty-proxy", daemon=True)
            # Those that have ended go: a soak makes some 10^5 requests.
            self._threads = [each for each in self._threads if each.is_alive()]
            thread.start()
            self._threads.append(thread)

    @contextlib.contextmanager
    def _tracked(self, connection: socket.socket) -> Iterator[socket.socket]:
        with self._lock:
            self._open.add(connection)
        try:
            yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _serve(self, client: socket.socket) -> None:
        with self._tracked(client), contextlib.suppress(OSError):
            head = _read_head(client)
            if not head:
                return
            method, path, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            self.requests.append((method, path))
            fault = self._take_fault(method, path)
            if self._closing.wait(fault.latency_s + self._link.latency_s):
                return
            if fault.status is not None:
                _answer(client, head, *fault.status)
                return
            # One request a connection, so that each is seen and counted.
            head = head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            with self._tracked(socket.create_connection(self._target, timeout=30)) as server:
                server.settimeout(None)
                server.sendall(head)
                upward = threading.Thread(target=_pump, args=(client, server), daemon=True)
                upward.start()
                self._pass_answer(server, client, fault, path)
                for one in (client, server):
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                upward.join(10)

    def _take_fault(self, method: str, path: str) -> Fault:
        with self._lock:
            for number, (fault, times) in enumerate(self._faults):
                if fault.hits(method, path):
                    if times > 1:
                        self._faults[number] = (fault, times - 1)
                    else:
                        del self._faults[number]
                    return fault
        return (self._choose(method, path) if self._choose else None) or Fault()

    def _pass_answer(self, server: socket.socket, client: socket.socket, fault: Fault, path: str) -> None:
        if fault.half_body:
            _halve(server, client)
            return
        sent = 0
        limits = [limit for limit in (fault.cut_after, fault.stall_after) if limit is not None]
        while piece := server.recv(_PIECE):
            for limit in limits:
                piece = piece[: max(0, limit - sent)]
            wait_s = self._bucket.wait_s(len(piece))
            if wait_s and self._closing.wait(wait_s):
                return
            client.sendall(piece)
            sent += len(piece)
            with self._lock:
                self.nbytes[path] = self.nbytes.get(path, 0) + len(piece)
                if ".mds" in path:
                    self._shards_until = time.monotonic()
                    self._shards_since = self._shards_since or self._shards_until
            if fault.cut_after is not None and sent >= fault.cut_after:
                return
            if fault.stall_after is not None and sent >= fault.stall_after:
                self._closing.wait()
                return
            if fault.bytes_per_s and self._closing.wait(len(piece) / fault.bytes_per_s):
                return


def _read_head(connection: socket.socket) -> bytes:
    """Everything up to what came with the end of the first request's head."""
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(_PIECE)
        if not piece:
            return b""
        head += piece
    return head


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(_PIECE):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _answer(client: socket.socket, head: bytes, status: int, code: str) -> None:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode()
    if head.startswith(b"HEAD "):
        body = b""
    client.sendall(
        f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n".encode()
        + body
    )
    # What the client still sends is read, since closing with unread bytes would reset the connection.
    client.shutdown(socket.SHUT_WR)
    client.settimeout(2)
    while client.recv(_PIECE):
        pass


def _halve(server: socket.socket, client: socket.socket) -> None:
    answer = b""
    while piece := server.recv(_PIECE):
        answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    if not body:  # the answer to HEAD, whose length is that of another answer
        client.sendall(answer)
        return
    kept = body[: len(body) // 2]
    lines = [
        line
        for line in head.split(b"\r\n")
        if not line.lower().startswith(
            (b"content-length:", b"content-range:", b"x-amz-checksum", b"connection:")
        )
    ]
    lines += [b"Content-Length: %d" % len(kept), b"Connection: close"]
    client.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + kept)


def main() -> None:
    host, port, latency_s, bytes_per_s = sys.argv[1:]
    with FaultyProxy(host, int(port), link=Link(float(latency_s), float(bytes_per_s))) as proxy:
        print(proxy.port, flush=True)
        for _ in sys.stdin:
            print(json.dumps(proxy.totals()), flush=True)


if __name__ == "__main__":
    main()
