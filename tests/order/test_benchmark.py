import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_rank_batches.py"


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="private memory is read from Linux's /proc"
)
def test_the_benchmark_of_rank_batches_runs():
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--json"],
        check=True,
        capture_output=True,
        text=True,
        cwd=BENCHMARK.parents[1],
        timeout=120,
    )
    report = json.loads(done.stdout)
    assert {row["shuffle"] for row in report["throughput"]} == {"sliding", "block", "shard", "full", "none"}
    assert report["start"]["private_mib"] < 300
