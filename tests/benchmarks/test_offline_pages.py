"""Published pages contain the files that asv's own pages load from content networks."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import asv
import pytest

from benchmarks.publish import offline_pages
from benchmarks.publish.offline_pages import (
    ASSETS,
    REMOTE_TAG,
    OfflinePages,
    UnavailableError,
    asset_cache,
    make_offline,
)

PAGES = Path(asv.__file__).parent / "www"
NEEDS_NPM = pytest.mark.skipif(shutil.which("npm") is None, reason="no npm to take the packages from")


@pytest.fixture
def html_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAGES, tmp_path / "html"))


def test_every_link_of_this_version_of_asv_is_in_the_table(html_dir: Path) -> None:
    index = (html_dir / "index.html").read_text()
    urls = REMOTE_TAG.findall(index)
    assert len(urls) == index.count("crossorigin") == len(ASSETS)
    assert {url.rpartition("/")[2] for url in urls} == ASSETS.keys()


@NEEDS_NPM
def test_no_link_leads_elsewhere_and_damaged_files_of_the_cache_are_fetched_again(
    html_dir: Path, tmp_path: Path
) -> None:
    # The user's own cache, so that the registry is asked once for a machine.
    make_offline(html_dir, asset_cache())
    again = Path(shutil.copytree(PAGES, tmp_path / "again"))
    damaged = Path(shutil.copytree(asset_cache(), tmp_path / "cache")) / "jquery@3.3.1/dist/jquery.min.js"
    damaged.write_bytes(damaged.read_bytes() + b"alert('someone was here')")
    make_offline(again, tmp_path / "cache")
    for folder in (html_dir, again):
        index = (folder / "index.html").read_text()
        assert "crossorigin" not in index
        assert "integrity" not in index
        for place, sha256 in ASSETS.values():
            assert f'"assets/{place}"' in index
            assert hashlib.sha256((folder / "assets" / place).read_bytes()).hexdigest() == sha256


def test_without_npm_the_links_stay_and_the_warning_says_why_and_what_to_do(
    html_dir: Path, user_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    warnings: list[str] = []
    monkeypatch.setattr(offline_pages.log, "warning", warnings.append)
    OfflinePages.publish(SimpleNamespace(html_dir=str(html_dir)))
    assert (html_dir / "index.html").read_text() == (PAGES / "index.html").read_text()
    (warning,) = warnings
    assert warning.endswith("publish again. Reason: npm is not on PATH")


def test_a_link_that_is_not_in_the_table_stays_and_is_named(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    text = '<script src="https://example.org/new.js"></script>'
    page.write_text(text)
    with pytest.raises(UnavailableError, match=r"^new\.js: not among ASSETS"):
        make_offline(tmp_path, tmp_path / "empty")
    assert page.read_text() == text
