"""Builds the site: `make docs`, then docs/_build/html/index.html. Nothing is loaded from a network when it is read."""

import os
import re
import tomllib
from pathlib import Path

import etl

ROOT = Path(__file__).parents[1]
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]

project = "Fair ETL"
author = "The Fair ETL developers"
release = version = etl.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Fair ETL {release}"
html_copy_source = False
html_theme_options = {"source_repository": URLS["Repository"], "source_branch": "main", "source_directory": "docs/"}
myst_heading_anchors = 3
nb_execution_mode = "off" if os.environ.get("FAIR_ETL_DOCS") == "quick" else "force"
autosummary_generate = True
autodoc_default_options = {"members": True, "inherited-members": "BaseException,Enum,IterableDataset,Module"}
smartquotes = False  # "float16" is code
autodoc_typehints = "none"  # docstrings say more: shapes, units, choices
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False


def link_to_repository(app, docname, source):  # noqa: ARG001 - as Sphinx calls it
    source[0] = re.sub(r"\]\(\.\./(?!docs/)([^)#]+)", rf"]({URLS['Repository']}/blob/main/\1", source[0])


def as_code(app, what, name, obj, options, lines):  # noqa: ARG001 - as Sphinx calls it
    # Docstrings are Markdown where they quote code: `name`, which is a role in reStructuredText.
    lines[:] = [re.sub(r"(?<![`:\w])`([^`]+)`(?![`_])", r"``\1``", line) for line in lines]


def setup(app):
    app.connect("source-read", link_to_repository)
    app.connect("autodoc-process-docstring", as_code, priority=900)
