"""JSONL whose images are at URLs, converted with --fetch."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamshard.convert.fetch_limits import FetchLimits
from streamshard.convert.job import dry_run
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError
from streamshard.storage.retry import RetryPolicy
from tests.support.jsonl_inputs import converted, files_of, noise, picture, run, shards_of, write_lines
from tests.support.web_images import WebImages, answer, web_images

_FETCH = FetchLimits(private=True, retry=RetryPolicy(attempts=2, timeout_s=5.0, backoff_s=0.01))


@pytest.fixture
def server() -> Iterator[WebImages]:
    with web_images() as running:
        yield running


def _rows(server: WebImages, folder: Path, count: int = 8) -> list[dict[str, Any]]:
    """Records by turns with an image at a URL, a local one, two, and none; one URL stands in several."""
    (folder / "local.png").write_bytes(picture(color=(9, 9, 9)))
    rows: list[dict[str, Any]] = []
    for number in range(count):
        server.pages[f"/{number}.png"] = picture(color=(number, 0, 0))
        url = f"{server.url}/{number}.png?sig=s3cr3tvalue"
        images = [[url], ["local.png"], [url, f"{server.url}/0.png?sig=s3cr3tvalue"], []][number % 4]
        rows.append({"id": number, "images": images})
    return rows


def test_b038_images_at_urls_are_fetched_once_and_stored_as_they_are(
    tmp_path: Path, server: WebImages
) -> None:
    rows = _rows(server, tmp_path)
    source = write_lines(tmp_path / "a.jsonl", rows)
    samples = converted(source, tmp_path / "A", fetch=_FETCH)
    for number, sample in enumerate(samples):
        red, other = picture(color=(number, 0, 0)), picture(color=(0, 0, 0))
        wanted = [[red], [picture(color=(9, 9, 9))], [red, other], []][number % 4]
        assert [bytes(image) for image in sample["images"]] == wanted
    assert samples[0]["images_path"] == [f"{server.url}/0.png?sig=***"]
    assert server.counts.pop("/0.png?sig=s3cr3tvalue") == 1
    assert set(server.counts.values()) == {1}
    assert not (tmp_path / "A" / ".streamshard-convert").exists()


def test_workers_and_checks_make_no_difference(tmp_path: Path, server: WebImages) -> None:
    source = write_lines(tmp_path / "a.jsonl", _rows(server, tmp_path, 40))
    options: dict[str, Any] = {"fetch": _FETCH, "size_limit": 1500}
    run(source, tmp_path / "A", **options)
    run(source, tmp_path / "B", **options, workers=2)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    run(source, tmp_path / "C", **options, check=False)
    assert shards_of(tmp_path / "A") == shards_of(tmp_path / "C")


def test_one_image_that_is_late_does_not_leave_the_line_idle(tmp_path: Path, server: WebImages) -> None:
    many = 40
    come = threading.Event()
    in_time: list[bool] = []

    def late(handler: Any) -> None:
        in_time.append(come.wait(15))
        answer(body=picture(color=(0, 0, 0)))(handler)

    def counted(handler: Any) -> None:
        if len(server.counts) >= many:
            come.set()
        answer(body=picture(color=(1, 1, 1)))(handler)

    server.pages = {"/0.png": late, **{f"/{number}.png": counted for number in range(1, many)}}
    rows = [{"id": number, "image": f"{server.url}/{number}.png"} for number in range(many)]
    limits = replace(_FETCH, at_once=4, retry=RetryPolicy(attempts=1, timeout_s=20.0))
    run(write_lines(tmp_path / "a.jsonl", rows), tmp_path / "A", fetch=limits)
    assert in_time == [True]


def test_every_failure_is_told_by_line_url_and_cause_without_secrets(
    tmp_path: Path, server: WebImages
) -> None:
    rows = _rows(server, tmp_path)
    server.pages["/0.png"] = answer(404)
    server.pages["/6.png"] = answer(503)
    server.pages["/4.png"] = noise()[:600]
    secret = server.url.replace("http://", "http://user:p4ssw0rd@")
    rows[3]["images"] = [f"{secret}/nothing.png?token=s3cr3tvalue"]
    source = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConvertError) as caught:
        run(source, tmp_path / "A", fetch=_FETCH)
    message = str(caught.value)
    for line, cause in (
        (1, f"image '{server.url}/0.png?sig=***': HTTP 404"),
        (3, f"image '{server.url}/0.png?sig=***': HTTP 404"),
        (4, f"image '{server.url}/nothing.png?token=***': HTTP 404"),
        (5, f"image '{server.url}/4.png?sig=***': cannot be decoded"),
        (7, f"image '{server.url}/6.png?sig=***': HTTP 503"),
    ):
        assert f"a.jsonl:{line}: {cause}" in message
    summary = run(source, tmp_path / "A", fetch=_FETCH, on_error="skip")
    assert summary.samples == 3
    rejected = (tmp_path / "A" / "rejected.jsonl").read_text()
    listed = [json.loads(line) for line in rejected.splitlines()]
    assert [entry["line"] for entry in listed] == [1, 3, 4, 5, 7]
    assert listed[0]["path"] == f"{server.url}/0.png?sig=***"
    for text in (message, rejected, (tmp_path / "A" / "index.json").read_text()):
        assert "s3cr3tvalue" not in text
        assert "p4ssw0rd" not in text
    with pytest.raises(ConvertError, match="more than the 1 of 8 that --max-errors allows"):
        run(source, tmp_path / "B", fetch=_FETCH, on_error="skip", max_errors=1)


def test_files_at_urls_are_fetched_and_stored_as_they_are(tmp_path: Path, server: WebImages) -> None:
    big = picture(size=(64, 64))
    server.pages["/a.png"], server.pages["/v.mp4"] = big, b"no picture"
    rows = [{"image": f"{server.url}/a.png", "video": f"{server.url}/{name}"} for name in ("a.png", "v.mp4")]
    source = write_lines(tmp_path / "a.jsonl", rows)
    options: dict[str, Any] = {"fetch": _FETCH, "file_keys": ("video",), "max_side": 16}
    first, second = converted(source, tmp_path / "A", **options)
    assert (first["video"], second["video"]) == (big, b"no picture")
    assert first["image"] == second["image"]
    assert len(first["image"]) < len(big)
    assert second["video_path"] == f"{server.url}/v.mp4"
    assert run(source, tmp_path / "A", **options).files == {"video": {"other": 1, "mp4": 1}}
    server.pages.pop("/v.mp4")
    with pytest.raises(ConvertError, match=r"a\.jsonl:2: file '.*/v\.mp4'"):
        run(source, tmp_path / "B", **options)


def test_the_next_run_fetches_only_what_is_missing(tmp_path: Path, server: WebImages) -> None:
    rows = _rows(server, tmp_path)
    source = write_lines(tmp_path / "a.jsonl", rows)
    whole, server.pages["/6.png"] = server.pages["/6.png"], answer(404)
    with pytest.raises(ConvertError, match="HTTP 404"):
        run(source, tmp_path / "A", fetch=_FETCH)
    server.counts.clear()
    server.pages["/6.png"] = noise()[:600]
    with pytest.raises(ConvertError, match="cannot be decoded"):
        run(source, tmp_path / "A", fetch=_FETCH)
    server.pages["/6.png"] = whole
    run(source, tmp_path / "A", fetch=_FETCH)
    assert dict(server.counts) == {"/6.png?sig=s3cr3tvalue": 2}
    run(source, tmp_path / "B", fetch=_FETCH)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    server.counts.clear()
    assert run(source, tmp_path / "A", fetch=_FETCH).finished_before
    assert not server.counts


def test_shards_that_are_there_are_not_fetched_for_again(
    tmp_path: Path, server: WebImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert import job

    source = write_lines(tmp_path / "a.jsonl", _rows(server, tmp_path, 24))
    options: dict[str, Any] = {"fetch": _FETCH, "size_limit": 800}
    with monkeypatch.context() as patched:
        patched.setattr(job._Job, "_publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run(source, tmp_path / "A", **options)
    shards = sorted((tmp_path / "A").glob("shard.*"))
    shards[-1].unlink()
    server.counts.clear()
    summary = run(source, tmp_path / "A", **options)
    assert summary.resumed_shards == len(shards) - 1
    assert not server.counts


def test_images_that_cannot_be_kept_are_fetched_again_and_compared(
    tmp_path: Path, server: WebImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert import kept

    source = write_lines(tmp_path / "a.jsonl", _rows(server, tmp_path))
    run(source, tmp_path / "A", fetch=_FETCH)
    monkeypatch.setattr(kept.KeptImages, "put", lambda *_: None)
    server.counts.clear()
    run(source, tmp_path / "B", fetch=_FETCH)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    assert server.counts["/4.png?sig=s3cr3tvalue"] == 2
    flips = iter((picture(color=(4, 0, 0)), picture(color=(4, 0, 1))))
    server.pages["/4.png"] = lambda handler: answer(body=next(flips))(handler)
    with pytest.raises(ConvertError, match=r"a\.jsonl:5: the record or an image of it is not what it was"):
        run(source, tmp_path / "C", fetch=_FETCH)


def test_a_dry_run_fetches_and_leaves_nothing(tmp_path: Path, server: WebImages) -> None:
    source = write_lines(tmp_path / "a.jsonl", _rows(server, tmp_path))
    options = ConvertOptions(sources=(str(source),), out=str(tmp_path / "A"), fetch=_FETCH, workers=1)
    assert dry_run(options).samples == 8
    assert not (tmp_path / "A").exists()


def test_a_torn_copy_is_no_copy(tmp_path: Path) -> None:
    from streamshard.convert.kept import KeptImages

    copies = KeptImages(tmp_path / "kept")
    copies.put("a", b"content", 11)
    assert copies.get("a") == (b"content", 11)
    (path,) = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    whole = path.read_bytes()
    for torn in (b"", whole[:-1], whole[:-20], b"\0" * len(whole), whole[:3] + b"x" + whole[4:]):
        path.write_bytes(torn)
        assert copies.get("a") is None
    assert copies.get("b") is None
    KeptImages(tmp_path / "kept", 1 << 62).put("b", b"content", 7)
    assert not copies.has("b")
