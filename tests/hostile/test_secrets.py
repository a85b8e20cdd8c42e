"""Credentials are used and not told: whatever fails, nothing that is logged, raised, printed or written holds one."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamshard import MDSWriter, StreamingDataLoader, StreamingDataset, merge_index
from streamshard.cli.main import main
from streamshard.errors import StreamshardError
from streamshard.read.verify import verify_dataset
from streamshard.repair.job import repair_dataset
from tests.support.small_datasets import COLUMNS, text_samples, write_dataset
from tests.support.small_server import SmallServer, small_server

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

# Each is unlike any other text, so that finding one tells which it is.
SECRETS = {
    "user": "userQ7k2mark",
    "password": "passW0rdmark",
    "query": "signatureXz9mark",
    "key": "AKIAKEYK3YMARK00",
    "secret": "s3cretAccessKeyMark",
    "token": "sessionT0kenMark",
    "env_key": "AKIAENVK3YMARK00",
    "env_secret": "envSecretAccessMark",
    "env_token": "envSessionT0kenMark",
    "header": "bearerT0kenMark",
}
TROUBLES = ["denied", "missing", "busy", "short", "wrong", "unreachable"]


class Place:
    """One way to name the server's dataset, with all the credentials that this way takes."""

    def __init__(self, url: str, options: dict[str, Any] | None) -> None:
        self.url = url
        self.options = options


def places(server: SmallServer, host: str) -> dict[str, Place]:
    endpoint = f"http://{host}"
    keys = {"key": SECRETS["key"], "secret": SECRETS["secret"], "token": SECRETS["token"]}
    client = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    headers = {"headers": {"Authorization": f"Bearer {SECRETS['header']}"}}
    userinfo = f"{SECRETS['user']}:{SECRETS['password']}"
    return {
        "http user": Place(f"http://{userinfo}@{host}/bucket/d", None),
        "http header": Place(f"http://{host}/bucket/d", headers),
        "http query": Place(f"http://{host}/bucket/d?signature={SECRETS['query']}", None),
        "s3": Place("s3://bucket/d", {**keys, "client_kwargs": client}),
        "s3 env": Place("s3://bucket/d", {"client_kwargs": client}),
    }


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRETS["env_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS["env_secret"])
    monkeypatch.setenv("AWS_SESSION_TOKEN", SECRETS["env_token"])
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    write_dataset(tmp_path / "sound", text_samples(30))
    with small_server() as running:
        for path in (tmp_path / "sound").iterdir():
            running.files[f"bucket/d/{path.name}"] = path.read_bytes()
        yield running


class Told:
    """Everything that anybody may get to see."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self.texts: list[str] = []
        self.num_errors = 0

    def attempt(self, operation: Callable[[], Any]) -> None:
        """Run something; keep what it says, raises and returns."""
        try:
            self.texts.append(repr(operation()))
        except (StreamshardError, ValueError, OSError) as error:
            self.num_errors += 1
            self.texts += [str(error), repr(error), "".join(traceback.format_exception(error))]
            link: BaseException | None = error
            while link is not None:
                self.texts += [str(link), repr(link.args)]
                link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)

    def command(self, *arguments: str) -> None:
        done = CliRunner().invoke(main, arguments)
        self.texts += [done.stdout, done.stderr, repr(done.exception)]
        self.num_errors += done.exit_code != 0

    def check(self, *folders: Path) -> None:
        """See that no credential is in what was told, nor in any file of ``folders``, nor in a name of one."""
        shown = "\n".join(self.texts)
        ours = [record for record in self._caplog.records if record.name.startswith("streamshard")]
        logged = "\n".join(logging.Formatter().format(record) for record in ours)
        written = [path for folder in folders for path in folder.rglob("*")]
        for name, secret in SECRETS.items():
            assert secret not in shown, f"{name} in {_around(shown, secret)}"
            assert secret not in logged, f"{name} in the log: {_around(logged, secret)}"
            for path in written:
                assert secret not in str(path), f"{name} in {path}"
                assert not path.is_file() or secret.encode() not in path.read_bytes(), f"{name} in {path}"


def _around(text: str, secret: str) -> str:
    at = text.index(secret)
    return text[max(0, at - 400) : at + 100]


def stream(place: Place, cache: Path, **options: Any) -> Any:
    dataset = StreamingDataset(
        remote=place.url,
        local=cache,
        storage_options=place.options,
        batch_size=4,
        download_retry=1,
        download_timeout=20,
        **options,
    )
    loader = StreamingDataLoader(dataset)
    samples = sum(len(batch["number"]) for batch in loader)
    return samples, repr(dataset), repr(dataset.streams), json.dumps(loader.state_dict())


def as_options(place: Place) -> list[str]:
    return [f"--storage-option={name}={json.dumps(value)}" for name, value in (place.options or {}).items()]


SLOW = [pytest.mark.slow]
CASES = [
    *[(kind, trouble) for kind in ("http user", "http header") for trouble in ("", *TROUBLES)],
    ("http query", "denied"),
    ("http query", "unreachable"),
    *[pytest.param("s3", trouble, marks=SLOW) for trouble in ("", "denied", "missing", "wrong")],
    pytest.param("s3 env", "denied", marks=SLOW),
]


@pytest.mark.parametrize(("kind", "trouble"), CASES)
def test_nothing_tells_a_credential(
    server: SmallServer,
    kind: str,
    trouble: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamshard.storage.retry.RetryPolicy.wait_s", lambda *_: 0.0)
    caplog.set_level(logging.DEBUG)
    server.trouble = trouble
    place = places(server, "127.0.0.1:9" if trouble == "unreachable" else server.host)[kind]
    told = Told(caplog)
    told.attempt(lambda: stream(place, tmp_path / "cache"))
    told.attempt(
        lambda: stream(
            place, tmp_path / "cache2", on_error="skip", error_limit=29, report=str(tmp_path / "r")
        )
    )
    if kind == "s3" and trouble == "denied":
        told.attempt(lambda: write(place))
        told.command("verify", place.url, *as_options(place), "--json")
    elif kind.startswith("http") and trouble in ("", "denied", "wrong"):
        told.attempt(lambda: verify_dataset(place.url, storage_options=place.options, deep=True).to_json())
        told.command("info", place.url, *as_options(place))
        told.command("verify", place.url, *as_options(place), "--json")
        told.command("convert", f"{place.url}/in.jsonl", "--out", str(tmp_path / "out"), *as_options(place))
        (tmp_path / "in.jsonl").write_text('{"a": 1}\n')
        told.command("convert", str(tmp_path / "in.jsonl"), "--out", place.url, *as_options(place))
        told.attempt(lambda: merge_index(place.url, storage_options=place.options))
        told.attempt(lambda: write(place))
        (tmp_path / "broken").mkdir(exist_ok=True)
        told.attempt(
            lambda: repair_dataset(
                tmp_path / "broken", origin=place.url, storage_options=place.options, dry_run=True
            ).to_json()
        )
    assert told.num_errors >= (1 if trouble else 0)
    if trouble != "unreachable":
        assert server.seen
    told.check(*(tmp_path / name for name in ("cache", "cache2", "r", "out", "xdg", "home", "broken")))
    used = {"http header": SECRETS["header"], "s3": SECRETS["key"], "s3 env": SECRETS["env_key"]}
    if kind in used and trouble != "unreachable":
        assert any(used[kind] in text for text in server.seen), "the credential was not even used"


def write(place: Place) -> None:
    with MDSWriter(
        out=place.url, columns=COLUMNS, storage_options=place.options, exist_ok=True, retry=0
    ) as writer:
        for sample in text_samples(5):
            writer.write(sample)
