"""Iterate a dataset with mosaicml-streaming's StreamingDataset and print each sample as one line of JSON.

    PYTHON_WITH_MOSAICML -m tests.support.mosaic_reader REMOTE LOCAL HASH

Pictures are printed as mode, size and the SHA-256 of their pixels.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any


def printable(value: Any) -> Any:
    if hasattr(value, "tobytes") and hasattr(value, "mode"):
        return [value.mode, *value.size, hashlib.sha256(value.tobytes()).hexdigest()]
    return value


def main() -> None:
    from streaming import StreamingDataset

    remote, local, algorithm = sys.argv[1:]
    dataset = StreamingDataset(
        remote=remote, local=local, shuffle=False, batch_size=8, validate_hash=algorithm
    )
    for sample in dataset:
        print(json.dumps({name: printable(value) for name, value in sample.items()}, sort_keys=True))


if __name__ == "__main__":
    main()
