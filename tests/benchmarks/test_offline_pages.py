"""Published pages contain the files that asv's own pages load from content networks."""

from __future__ import annotations

import shutil
from pathlib import Path

import asv
import pytest

from benchmarks.publish.offline_pages import (
    ASSETS,
    asset_cache,
    describe_kept,
    find_asset,
    find_remote_tags,
    has_integrity,
    make_offline,
)

PAGES = Path(asv.__file__).parent / "www"
NEEDS_NPM = pytest.mark.skipif(shutil.which("npm") is None, reason="no npm to take the packages from")


@pytest.fixture(scope="module")
def cache() -> Path:
    """The user's own cache, so that the registry is asked once for a machine."""
    return asset_cache()


@pytest.fixture
def html_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PAGES, tmp_path / "html"))


def remote_urls(html_dir: Path) -> list[str]:
    return [tag.url for page in html_dir.glob("*.html") for tag in find_remote_tags(page.read_text())]


def test_every_link_of_this_version_of_asv_is_in_the_table(html_dir: Path) -> None:
    urls = remote_urls(html_dir)
    assert len(urls) == len(ASSETS)
    assert all(find_asset(url, "sha256-") for url in urls)


@NEEDS_NPM
def test_no_link_leads_elsewhere_and_the_files_are_what_their_hashes_say(html_dir: Path, cache: Path) -> None:
    tags = find_remote_tags((html_dir / "index.html").read_text())
    assert make_offline(html_dir, cache) == {}
    assert remote_urls(html_dir) == []
    index = (html_dir / "index.html").read_text()
    for tag in tags:
        asset = find_asset(tag.url, tag.integrity)
        assert asset is not None
        assert f'"assets/{asset.place}"' in index
        assert has_integrity((html_dir / "assets" / asset.place).read_bytes(), asset.integrity)


@NEEDS_NPM
def test_a_damaged_file_in_the_cache_is_not_used_but_fetched_again(html_dir: Path, cache: Path, tmp_path: Path) -> None:
    make_offline(html_dir, cache)
    damaged = Path(shutil.copytree(cache, tmp_path / "cache")) / "jquery@3.3.1/dist/jquery.min.js"
    damaged.write_bytes(damaged.read_bytes() + b"alert('someone was here')")
    again = Path(shutil.copytree(PAGES, tmp_path / "again"))
    assert make_offline(again, tmp_path / "cache") == {}
    assert b"someone was here" not in (again / "assets/jquery@3.3.1/dist/jquery.min.js").read_bytes()


def test_without_npm_the_links_stay_and_the_warning_says_why_and_what_to_do(
    html_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    urls = remote_urls(html_dir)
    kept = make_offline(html_dir, tmp_path / "empty")
    assert sorted(kept) == sorted(urls) == sorted(remote_urls(html_dir))
    warning = describe_kept(kept)
    assert "npm is not on PATH" in warning
    assert "publish again" in warning


def test_a_link_that_is_not_in_the_table_stays_and_is_named(tmp_path: Path) -> None:
    page = tmp_path / "html" / "index.html"
    page.parent.mkdir()
    page.write_text('<script src="https://example.org/new.js"></script>')
    kept = make_offline(page.parent, tmp_path / "empty")
    assert kept.keys() == {"https://example.org/new.js"}
    assert "new.js" in describe_kept(kept)
    assert "https://example.org/new.js" in page.read_text()
