"""The site is built without a warning, and loads nothing from a network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.programs import output_of

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_site_has_every_page_and_loads_nothing_from_a_network(tmp_path: Path) -> None:
    pytest.importorskip("furo", reason="the site needs pip install 'fair-etl[docs]'")
    command = ("-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees", "docs", tmp_path / "site")
    output_of(*command, cwd=ROOT, timeout=1800, FAIR_ETL_DOCS="quick")
    pages = {
        path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in tmp_path.glob("site/**/*.html")
    }
    assert {
        "index.html",
        "loading.html",
        "coming-from.html",
        "examples/notebook.html",
        "api/generated/etl.RawIterator.html",
    } <= pages.keys()
    loaded = r'<(?:script|img|iframe)[^>]*\ssrc="https?:|<link[^>]*rel="(?:stylesheet|preload)"[^>]*href="https?:'
    assert not [name for name, page in pages.items() if re.search(loaded, page)]
