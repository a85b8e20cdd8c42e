"""For those who write recipes: the protocol, and a reader for the files that sources come in.

A recipe is a Python file that ``streamshard convert`` runs; ``converters/`` has some for well-known datasets.
"""

from __future__ import annotations

from streamshard.convert.recipe import Recipe, load_recipe
from streamshard.recipes.files import read_records

__all__ = ["Recipe", "load_recipe", "read_records"]
