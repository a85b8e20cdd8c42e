"""The reading commands against a real S3 server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streamshard.cli.info import command as info
from streamshard.cli.show import command as show
from streamshard.cli.verify import command as verify
from streamshard.storage import open_store
from tests.support.seaweedfs import SeaweedServer
from tests.support.small_datasets import text_samples, write_dataset


def run(command: object, s3: SeaweedServer, *arguments: str) -> Result:
    options = [f"--storage-option={key}={json.dumps(value)}" for key, value in s3.storage_options.items()]
    return CliRunner().invoke(command, [*arguments, *options])  # type: ignore[arg-type]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_info_show_and_verify_read_a_bucket(
    s3: SeaweedServer, tmp_path: Path, compression: str | None
) -> None:
    write_dataset(tmp_path, text_samples(35), compression=compression)
    bucket = s3.make_bucket()
    store = open_store(bucket, storage_options=s3.storage_options)
    for path in tmp_path.iterdir():
        store.put(f"odd name+x=1/train/{path.name}", path)  # B042
    place = f"{bucket}/odd name+x=1"
    summary = json.loads(run(info, s3, place, "--split", "train", "--json").stdout)
    assert (summary["num_samples"], summary["num_shards"], summary["guess_note"]) == (35, 4, None)
    shown = run(show, s3, f"{place}/train", "-1", "--json")
    assert json.loads(shown.stdout)[0]["columns"]["id"] == "a34"
    checked = run(verify, s3, place, "--split", "train", "--workers", "2")
    assert checked.exit_code == 0, checked.output
    name = sorted(path.name for path in tmp_path.glob("*.mds*"))[1]
    store.delete(f"odd name+x=1/train/{name}")
    checked = run(verify, s3, place, "--split", "train", "--json")
    assert checked.exit_code == 1
    assert [problem["shard"] for problem in json.loads(checked.stdout)["problems"]] == [name]
    missing = run(info, s3, place)  # B070
    assert missing.exit_code == 1
    assert "split='train'" in missing.stderr
    nothing = run(info, s3, f"{bucket}/wrong")
    assert nothing.exit_code == 1
    assert "nothing at all is there" in nothing.stderr
    assert s3.secret_key not in missing.stderr + nothing.stderr
