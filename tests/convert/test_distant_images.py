"""Images in a bucket far away: asked for ahead, bounded, tried again, each fetched once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from streamshard import LocalDataset
from streamshard.convert.job import convert
from streamshard.convert.options import ConvertOptions
from streamshard.errors import ConvertError, StorageError
from streamshard.storage import open_store
from streamshard.storage.memory_store import MemoryStore
from streamshard.storage.store import check_limit
from tests.support.faulty_proxy import Fault, FaultyProxy, Link
from tests.support.jsonl_inputs import files_of, noise, picture, run, write_lines
from tests.support.seaweedfs import SeaweedServer

_COUNT = 32
_LATENCY_S = 0.05


def _bucket(server: SeaweedServer, tmp_path: Path, count: int = _COUNT) -> tuple[str, Path]:
    """Images in a bucket, and records that name them, some of them twice."""
    url = server.make_bucket()
    store = open_store(url, storage_options=server.storage_options)
    for number in range(count):
        store.put_bytes(f"{number}.png", picture(color=(number, 1, 2)))
    rows = [{"id": number, "image": f"{number % count}.png"} for number in range(count + 5)]
    return url, write_lines(tmp_path / "a.jsonl", rows)


def _convert(source: Path, out: Path, url: str, options: dict[str, Any], **more: Any) -> None:
    more.setdefault("workers", 1)
    convert(
        ConvertOptions(sources=(str(source),), out=str(out), image_root=url, storage_options=options, **more)
    )


@pytest.mark.s3
def test_images_come_many_at_a_time_and_each_once(s3: SeaweedServer, tmp_path: Path) -> None:
    url, source = _bucket(s3, tmp_path)
    with FaultyProxy("127.0.0.1", s3.port, link=Link(_LATENCY_S)) as proxy:
        meter = _Meter(proxy)
        _convert(source, tmp_path / "A", url, s3.options_for(proxy.endpoint_url))
        assert proxy.count("GET", ".png") == _COUNT
        assert proxy.count("HEAD", ".png") == 0
        # A loop that waits for each has one at a time; bounded is what is not all of them.
        assert 8 <= meter.most <= 64
    _convert(source, tmp_path / "B", url, s3.storage_options, workers=2)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")
    for number in range(_COUNT):
        (tmp_path / f"{number}.png").write_bytes(picture(color=(number, 1, 2)))
    run(source, tmp_path / "C")
    assert files_of(tmp_path / "A") == files_of(tmp_path / "C")


@pytest.mark.s3
def test_images_that_nobody_decodes_come_with_one_request_where_a_hash_tells_that_they_are_whole(
    s3: SeaweedServer, tmp_path: Path
) -> None:
    url, source = _bucket(s3, tmp_path)
    with FaultyProxy("127.0.0.1", s3.port) as proxy:
        _convert(source, tmp_path / "A", url, s3.options_for(proxy.endpoint_url), check=False)
        assert proxy.count("GET", ".png") == _COUNT
        assert proxy.count("HEAD", ".png") == 0
    _convert(source, tmp_path / "B", url, s3.storage_options)
    assert [path.read_bytes() for path in sorted((tmp_path / "A").glob("*.mds"))] == [
        path.read_bytes() for path in sorted((tmp_path / "B").glob("*.mds"))
    ]


@pytest.mark.s3
def test_half_an_image_that_nobody_decodes_is_not_taken(s3: SeaweedServer, tmp_path: Path) -> None:
    url, source = _bucket(s3, tmp_path, count=2)
    with FaultyProxy("127.0.0.1", s3.port) as proxy:
        proxy.arm(Fault(half_body=True, method="GET", path_contains="/1.png"))
        _convert(source, tmp_path / "A", url, s3.options_for(proxy.endpoint_url), check=False)
    assert LocalDataset(str(tmp_path / "A"), decode_images=False)[1]["image"] == picture(color=(1, 1, 2))


class _Meter:
    """How many requests go through a proxy at the same time, at most."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self.most = self._now = 0
        self._lock = threading.Lock()
        serve: Any = proxy._serve

        def counted(client: Any) -> None:
            with self._lock:
                self._now += 1
                self.most = max(self.most, self._now)
            try:
                serve(client)
            finally:
                with self._lock:
                    self._now -= 1

        proxy._serve = counted  # type: ignore[method-assign]


@pytest.mark.s3
def test_faults_of_the_line_cost_time_and_nothing_else(s3: SeaweedServer, tmp_path: Path) -> None:
    url, source = _bucket(s3, tmp_path, 12)
    with FaultyProxy("127.0.0.1", s3.port) as proxy:
        proxy.arm(Fault(status=(503, "SlowDown"), path_contains="3.png"), times=2)
        proxy.arm(Fault(cut_after=300, path_contains="5.png"))
        proxy.arm(Fault(half_body=True, path_contains="7.png"))
        _convert(source, tmp_path / "A", url, s3.options_for(proxy.endpoint_url))
    _convert(source, tmp_path / "B", url, s3.storage_options)
    assert files_of(tmp_path / "A") == files_of(tmp_path / "B")


@pytest.mark.s3
def test_images_that_the_bucket_lacks_are_told_by_line(s3: SeaweedServer, tmp_path: Path) -> None:
    url, source = _bucket(s3, tmp_path, 4)
    store = open_store(url, storage_options=s3.storage_options)
    store.delete("1.png")
    store.put_bytes("2.png", b"")
    store.put_bytes("3.png", noise()[:500])
    with pytest.raises(ConvertError) as caught:
        _convert(source, tmp_path / "A", url, s3.storage_options)
    message = str(caught.value)
    assert "a.jsonl:2: image '1.png'" in message
    assert "a.jsonl:3: image '2.png' is an empty file" in message
    assert "a.jsonl:4: image '3.png': cannot be decoded" in message


def test_a_bucket_that_cannot_be_reached_is_no_reason_to_skip_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory://unreachable")
    store.put_bytes("a.png", picture())

    def dead(*_: Any, **__: Any) -> bytes:
        raise StorageError("no route")

    monkeypatch.setattr(MemoryStore, "read", dead)
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}])
    with pytest.raises(StorageError, match="no route"):
        run(source, tmp_path / "A", image_root="memory://unreachable", on_error="skip")


def test_an_object_too_large_for_a_shard_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store("memory://huge").put_bytes("a.png", picture())

    def read(self: MemoryStore, key: str, *, limit: int | None = None) -> bytes:
        check_limit(1 << 50, limit, key)
        raise MemoryError

    monkeypatch.setattr(MemoryStore, "read", read)
    monkeypatch.setattr(MemoryStore, "size", lambda *_: 1 << 50)
    source = write_lines(tmp_path / "a.jsonl", [{"image": "a.png"}])
    with pytest.raises(ConvertError, match=r"a\.jsonl:1: image 'a\.png': .*has 1125899906842624 bytes"):
        run(source, tmp_path / "A", image_root="memory://huge")


def test_files_in_a_bucket_are_read_with_care_and_stored_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamshard.convert.places import RemoteImages

    store = open_store("memory://files")
    store.put_bytes("p.png", picture())
    store.put_bytes("v.mp4", b"no picture")
    quick: list[str] = []
    real = RemoteImages.read_quickly

    def noted(self: RemoteImages, located: Any) -> bytes:
        quick.append(located.reference)
        return real(self, located)

    monkeypatch.setattr(RemoteImages, "read_quickly", noted)
    source = write_lines(tmp_path / "a.jsonl", [{"image": "p.png", "video": "v.mp4"}])
    _convert(source, tmp_path / "A", "memory://files", {}, file_keys=("video",))
    (sample,) = LocalDataset(str(tmp_path / "A"), decode_images=False)
    assert (sample["image"], sample["video"], sample["video_path"]) == (picture(), b"no picture", "v.mp4")
    # What is not decoded would not show that it was cut on its way.
    assert quick == ["p.png"]
