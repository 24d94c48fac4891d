"""Sphinx configuration: MyST pages, furo theme, nothing fetched from anywhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from meshwright import __version__

project = "meshwright"
author = "The meshwright authors"
copyright = "The meshwright authors, Apache-2.0"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "meshwright"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing", "myst.header", "toc.excluded", "toc.not_readable"]
