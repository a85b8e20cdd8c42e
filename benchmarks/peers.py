"""Environments of the peers: one each, because their pins contradict each other and ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TORCH = "torch==2.13.0"
"""The version that this repository develops with. Two peers need torchvision, which fits one build of torch only:
there pip chooses both."""

PEERS = {
    "mosaicml-streaming": ("mosaicml-streaming==0.13.0",),
    "litdata": (TORCH, "litdata==0.2.76"),
    "webdataset": (TORCH, "webdataset==1.0.2", "pillow>=10"),
    "zephon": ("zephon[mds]==0.2.0",),
    "grain": ("grain==0.2.18",),
}
"""Name -> what pip installs."""

DEFAULT_PEER = "mosaicml-streaming"


def set_up(directory: Path, names: Sequence[str]) -> None:
    """Make a virtual environment ``directory/NAME`` for each peer and install it with pip."""
    for name in names:
        place = directory / name
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        subprocess.run([str(_python(place)), "-m", "pip", "install", "--quiet", *PEERS[name]], check=True)
        print(f"{name}: {_python(place)}")


def interpreters(given: Sequence[str], directory: Path | None) -> dict[str, str]:
    """Map peers to interpreters.

    Args:
        given: ``PATH`` (of the default peer) or ``NAME=PATH``.
        directory: where ``set_up`` made environments, or None.

    Raises:
        ValueError: an unknown peer, or an interpreter that is not there.
    """
    found = {}
    if directory is not None:
        found = {name: str(_python(directory / name)) for name in PEERS if _python(directory / name).exists()}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals:
            name, path = DEFAULT_PEER, each
        if name not in PEERS:
            raise ValueError(f"--peer-python {each}: unknown peer {name!r}; there are {', '.join(PEERS)}")
        if not Path(path).exists():
            raise ValueError(
                f"--peer-python {each}: no file {path}; make one with python -m benchmarks setup DIR"
            )
        found[name] = path
    return found


def _python(environment: Path) -> Path:
    return environment / "bin" / "python"
