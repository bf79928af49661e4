"""An asv publisher: puts what asv's pages load from content networks beside them, so that they render offline.

asv loads it by `"plugins": [".benchmarks.publish.offline_pages"]` and calls it at the end of every `asv publish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from asv.console import log
from asv.publishing import OutputPublisher

from benchmarks.publish.assets import Asset, asset_cache, fill_cache, find_asset, read_cached


class OfflinePages(OutputPublisher):  # type: ignore[misc]  # asv has no types
    """Makes the pages that were just published render without a network; where it cannot, says so and goes on."""

    order = 99

    @classmethod
    def publish(cls, conf: Any, *_others: Any) -> None:
        """Called by asv with its configuration, of which `html_dir` matters, and the results, which do not."""
        kept = make_offline(Path(conf.html_dir), asset_cache())
        if kept:
            log.warning(describe_kept(kept))


def make_offline(html_dir: Path, cache: Path) -> dict[str, str]:
    """Copy what the pages of `html_dir` load from networks into `html_dir/assets`, and point them there.

    Files come from `cache`, which npm fills where one is missing or not what its hash says. Returns the links that
    had to stay as they are, each with the reason.
    """
    pages = {page: find_remote_tags(page.read_text(encoding="utf-8")) for page in sorted(html_dir.glob("*.html"))}
    assets: dict[str, Asset] = {}
    kept: dict[str, str] = {}
    for tag in (tag for tags in pages.values() for tag in tags):
        asset = find_asset(tag.url, tag.attributes.get("integrity"))
        if asset is None:
            kept[tag.url] = "not in the table of benchmarks/publish/assets.py"
        else:
            assets[tag.url] = asset

    failures = fill_cache(assets.values(), cache)
    local_urls: dict[str, str] = {}
    for url, asset in assets.items():
        data = read_cached(asset, cache)
        if data is None:
            kept[url] = failures.get(asset, f"{cache / asset.place} cannot be read")
            continue
        local_urls[url] = f"assets/{asset.place}"
        copy = html_dir / local_urls[url]
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)

    for page, tags in pages.items():
        text = page.read_text(encoding="utf-8")
        for tag in tags:
            if tag.url in local_urls:
                text = text.replace(tag.source, tag.pointing_at(local_urls[tag.url]))
        page.write_text(text, encoding="utf-8")
    return kept


@dataclass(frozen=True)
class RemoteTag:
    """A tag that loads something from another host: as it is written, and its parts."""

    source: str
    name: str
    attributes: dict[str, str | None]
    link: str

    @property
    def url(self) -> str:
        """What it loads."""
        return self.attributes[self.link] or ""

    def pointing_at(self, url: str) -> str:
        """The same tag, loading `url` of the page's own host.

        Without what is for other hosts: the file's hash was checked when it was copied, and pages that go through a
        tool which changes line ends would break by it.
        """
        attributes = {
            name: value
            for name, value in self.attributes.items()
            if name not in ("integrity", "crossorigin", "referrerpolicy")
        }
        attributes[self.link] = url
        written = (name if value is None else f'{name}="{escape(value)}"' for name, value in attributes.items())
        return f"<{self.name} {' '.join(written)}>"


def find_remote_tags(text: str) -> list[RemoteTag]:
    """The scripts and stylesheets that the page `text` loads from other hosts."""
    finder = _RemoteTagFinder()
    finder.feed(text)
    finder.close()
    return finder.found


class _RemoteTagFinder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[RemoteTag] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        link = {"script": "src", "link": "href"}.get(tag)
        if link is None or not urlsplit(attributes.get(link) or "").netloc:
            return
        if tag == "script" or "stylesheet" in (attributes.get("rel") or "").lower().split():
            self.found.append(RemoteTag(self.get_starttag_text() or "", tag, attributes, link))


def describe_kept(kept: dict[str, str]) -> str:
    """One line: which links were kept, why, what that means and what to do."""
    names_by_reason: dict[str, list[str]] = {}
    for url, reason in kept.items():
        names_by_reason.setdefault(reason, []).append(url.rpartition("/")[2])
    reasons = "; ".join(f"{reason} ({', '.join(names)})" for reason, names in names_by_reason.items())
    return (
        f"The published pages keep asv's links for {len(kept)} assets and stay blank where content networks cannot be "
        f"reached. Put npm on PATH, with its registry in reach, and publish again. Reason: {reasons}"
    )
