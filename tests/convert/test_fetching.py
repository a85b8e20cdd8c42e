"""One URL at a time: limits, retries, and which hosts may be reached."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streamshard.convert import addresses, fetching
from streamshard.convert.addresses import is_public
from streamshard.convert.fetch_limits import FetchLimits
from streamshard.convert.fetching import Fetcher, retry_after_s
from streamshard.convert.problems import RecordProblem
from streamshard.storage.retry import RetryPolicy
from tests.support.jsonl_inputs import picture
from tests.support.web_images import WebImages, answer, in_turn, web_images

_QUICK = RetryPolicy(attempts=3, timeout_s=5.0, backoff_s=0.01)


@pytest.fixture(scope="module")
def server() -> Iterator[WebImages]:
    with web_images() as running:
        yield running


def _fetch(url: str, **limits: Any) -> bytes:
    limits = {"private": True, "retry": _QUICK, **limits}
    with Fetcher(FetchLimits(**limits), 8) as fetcher:
        return fetcher.fetch(url).result(30)


def _refusal(url: str, **limits: Any) -> str:
    with pytest.raises(RecordProblem) as caught:
        _fetch(url, **limits)
    return caught.value.message


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254",
        "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.168.1.1", "198.18.0.1", "224.0.0.1",
        "255.255.255.255", "168.63.129.16", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254",
        "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::127.0.0.1",
        "64:ff9b::10.0.0.1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_on_the_public_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "172.32.0.1",
        "100.63.255.255",
        "100.128.0.0",
        "2606:4700::1111",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
    ],
)
def test_addresses_of_the_public_internet(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "0",
        "127.1",
        "169.254.169.254",
    ],
)
def test_hosts_inside_the_network_are_refused_and_never_asked(server: WebImages, host: str) -> None:
    port = server.server_address[1]
    server.pages["/inside"] = picture()
    before = server.counts["/inside"]
    message = _refusal(f"http://{host}:{port}/inside", private=False)
    # Other ways to write an IPv4 address are refused as such by newer versions of the library.
    assert "is not on the public internet" in message or "not a URL that can be fetched" in message
    assert server.counts["/inside"] == before


@pytest.mark.parametrize("target", ["http://127.0.0.2:{port}/secret", "http://inside.test:{port}/secret"])
def test_a_redirect_into_the_network_is_refused(
    server: WebImages, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    # In this test 127.0.0.1 is the public internet, and all else is inside.
    monkeypatch.setattr(addresses, "is_public", _only_one_is_public)
    monkeypatch.setattr(addresses.ThreadedResolver, "resolve", _resolving({"inside.test": ["127.0.0.2"]}))
    port = server.server_address[1]
    server.pages["/away"] = answer(302, headers={"Location": target.format(port=port)})
    assert "is not on the public internet" in _refusal(f"{server.url}/away", private=False)
    assert server.counts["/secret"] == 0


def test_the_connection_goes_to_the_address_that_was_judged(
    server: WebImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(addresses, "is_public", _only_one_is_public)
    # A name that is public when it is judged, and something else whenever it is looked up again.
    resolve = _resolving({"rebound.test": ["127.0.0.1", "127.0.0.2"]}, asked)
    monkeypatch.setattr(addresses.ThreadedResolver, "resolve", resolve)
    server.pages["/a"] = picture()
    assert _fetch(f"http://rebound.test:{server.server_address[1]}/a", private=False) == picture()
    assert asked == ["rebound.test"]


def _only_one_is_public(address: str) -> bool:
    return str(ipaddress.ip_address(address)) == "127.0.0.1"


def _resolving(known: dict[str, list[str]], asked: list[str] | None = None) -> Any:
    left = {name: list(found) for name, found in known.items()}

    async def resolve(_self: Any, host: str, port: int = 0, family: int = 0) -> list[dict[str, Any]]:
        if asked is not None:
            asked.append(host)
        found = left[host].pop(0)
        return [{"hostname": host, "host": found, "port": port, "family": 2, "proto": 0, "flags": 0}]

    return resolve


@pytest.mark.parametrize(
    ("page", "cause"),
    [
        (answer(404), "HTTP 404"),
        (answer(403), "HTTP 403"),
        (answer(body=b"", headers={}), "empty"),
        (answer(body=b"<html>gone</html>", headers={"Content-Type": "text/html"}), "a web page"),
        (answer(body=b"x" * 100, headers={"Content-Encoding": "gzip"}), "packed (gzip)"),
        (answer(301), "does not say where to"),
        (answer(302, headers={"Location": "file:///etc/passwd"}), "only http and https"),
        (answer(302, headers={"Location": "ftp://example.com/x"}), "only http and https"),
    ],
)
def test_answers_that_no_other_try_betters(server: WebImages, page: Any, cause: str) -> None:
    server.pages["/p"] = page
    before = server.counts["/p?sig=s3cr3tvalue"]
    message = _refusal(f"{server.url}/p?sig=s3cr3tvalue")
    assert cause in message
    assert message.startswith(f"image '{server.url}/p?sig=***': ")
    assert server.counts["/p?sig=s3cr3tvalue"] == before + 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_troubles_that_pass_are_tried_again(server: WebImages, status: int) -> None:
    server.counts.clear()
    server.pages["/p"] = in_turn(answer(status), answer(status), answer(body=picture()))
    assert _fetch(f"{server.url}/p") == picture()
    assert server.counts["/p"] == 3
    server.pages["/p"] = answer(status)
    message = _refusal(f"{server.url}/p")
    assert f"HTTP {status}" in message
    assert "attempt 3 of 3" in message


def test_a_cut_answer_is_tried_again(server: WebImages) -> None:
    def cut(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b"half")
        handler.close_connection = True

    server.pages["/cut"] = in_turn(cut, answer(body=picture()))
    assert _fetch(f"{server.url}/cut") == picture()
    server.pages["/cut"] = cut
    assert "attempt 3 of 3" in _refusal(f"{server.url}/cut")


def test_a_silent_server_is_given_up(server: WebImages) -> None:
    released = threading.Event()
    server.pages["/silent"] = lambda _handler: released.wait(30)
    try:
        message = _refusal(f"{server.url}/silent", retry=RetryPolicy(attempts=1, timeout_s=0.2))
    finally:
        released.set()
    assert "no complete answer within 0.2 s" in message


def test_retry_after_is_heeded(server: WebImages, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def no_sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(fetching.asyncio, "sleep", no_sleep)
    busy = answer(429, headers={"Retry-After": "7"})
    server.pages["/busy"] = in_turn(busy, answer(body=picture()))
    assert _fetch(f"{server.url}/busy") == picture()
    assert waits[0] == 7.0
    server.pages["/busy"] = answer(503, headers={"Retry-After": "86400"})
    assert "asks to wait 86400 s (attempt 1 of 3)" in _refusal(f"{server.url}/busy")


def test_what_retry_after_may_say() -> None:
    assert retry_after_s("12", 0.0) == 12.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60.0
    assert retry_after_s("Thu, 01 Jan 1970 00:01:40 GMT", 200.0) == 0.0
    for odd in (None, "", "soon", "-5", "9" * 400):
        assert retry_after_s(odd, 0.0) in (0.0, float("inf"))


def test_limits_of_size(server: WebImages) -> None:
    def without_length(handler: Any) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b"x" * 5000)
        handler.close_connection = True

    server.pages["/long"] = answer(body=b"x" * 5000)
    server.pages["/unsaid"] = without_length
    assert "5000 bytes, more than the limit of 4999" in _refusal(f"{server.url}/long", max_nbytes=4999)
    assert "more than 4999 bytes" in _refusal(f"{server.url}/unsaid", max_nbytes=4999)
    assert len(_fetch(f"{server.url}/long", max_nbytes=5000)) == 5000
    assert len(_fetch(f"{server.url}/unsaid", max_nbytes=5000)) == 5000


def test_redirects_are_followed_up_to_their_limit(server: WebImages) -> None:
    for hop in range(4):
        server.pages[f"/hop{hop}"] = answer(302, headers={"Location": f"hop{hop + 1}"})
    server.pages["/hop4"] = picture()
    assert _fetch(f"{server.url}/hop0", redirects=4) == picture()
    assert "more than 3 redirects" in _refusal(f"{server.url}/hop0", redirects=3)
    server.pages["/round"] = answer(302, headers={"Location": "/round"})
    assert "redirects" in _refusal(f"{server.url}/round")


@pytest.mark.parametrize(
    "url", ["http://", "http:///a.jpg", "http://[::1", "http://a:99999/x", "http://a b/x"]
)
def test_what_is_no_url(url: str) -> None:
    assert _refusal(url).startswith("image 'http://")


def test_requests_at_a_time_are_bounded_and_nothing_is_sent_along(server: WebImages) -> None:
    barrier = threading.Barrier(4, timeout=20)

    def meeting(handler: Any) -> None:
        barrier.wait()  # four at a time, or none ever gets an answer
        answer(body=b"x", headers={"Set-Cookie": "a=b"})(handler)

    server.most_running = 0
    server.pages["/meet"] = meeting
    with Fetcher(FetchLimits(private=True, retry=_QUICK), 4) as fetcher:
        found = [fetcher.fetch(f"{server.url}/meet?{number}") for number in range(12)]
        assert [each.result(30) for each in found] == [b"x"] * 12
    assert server.most_running == 4
    assert "Cookie" not in server.seen
    assert "Authorization" not in server.seen
    assert server.seen["Accept-Encoding"] == "identity"


def test_closing_ends_what_is_under_way(server: WebImages) -> None:
    released = threading.Event()
    server.pages["/silent"] = lambda _handler: released.wait(30)
    try:
        with Fetcher(FetchLimits(private=True), 2) as fetcher:
            pending = fetcher.fetch(f"{server.url}/silent")
        assert pending.cancelled() or pending.exception(1) is not None
    finally:
        released.set()
    assert not [thread for thread in threading.enumerate() if thread.name == "streamshard-fetch"]


def test_limits_as_the_command_takes_them() -> None:
    limits = FetchLimits.parse(
        ["size=1mb", "seconds=2.5", "tries=2", "redirects=0", "at-once=3"], private=True
    )
    assert limits.max_nbytes == 1 << 20
    assert limits.retry.attempts == 2
    assert limits.retry.timeout_s == 2.5
    assert (limits.redirects, limits.at_once, limits.private) == (0, 3, True)
    for wrong in ("size", "size=x", "speed=3", "tries=0", "redirects=-1", "seconds=0", "at-once=0"):
        with pytest.raises(ValueError, match="--fetch-limit"):
            FetchLimits.parse([wrong], private=False)
