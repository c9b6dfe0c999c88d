"""Sphinx configuration of the documentation, which `make docs` builds."""

from pathlib import Path

from docs.generate import write_reference
from search.settings import installed_version

project = "cclsearch"
author = "the cclsearch developers"
release = installed_version()

extensions = ["myst_parser", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["examples"]
nitpicky = True

html_theme = "furo"
html_title = "cclsearch"
copybutton_exclude = ".linenos, .gp, .go"

write_reference(Path(__file__).parent / "generated")
