"""Sphinx: ``sphinx-build -W -b html docs OUT``."""

project = "streamshard"
author = "the streamshard developers"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["tutorial/emoji"]
html_theme = "alabaster"
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]
