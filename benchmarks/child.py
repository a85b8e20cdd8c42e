"""One measurement in a process of its own: ``python -m benchmarks.child RESULT MODULE FUNCTION OPTIONS``.

Runs in the interpreter of whoever is measured, so neither this file nor a ``bench_*`` module imports anything but
the standard library at its top. RESULT is a file: libraries are free to print.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    result, module, function, options = sys.argv[1:]
    found = getattr(import_module(module), function)(**json.loads(options))
    Path(result).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
