"""Checks of HTML pages: that they are complete and self-contained, and fit on a phone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

from tests.browser import render, serve

VOID = {"meta", "link", "br", "img", "input", "hr"}
# The page in a frame as wide as a phone: how wide its content is, and each text of a chart that leaves the screen.
PHONE = """<!DOCTYPE html><meta charset="utf-8"><link rel="icon" href="data:,"><ul id="found"></ul>
{frames}
<script>
const say = text => {{
  const item = document.createElement("li");
  item.textContent = text;
  document.getElementById("found").append(item);
}};
addEventListener("load", () => {{
  for (const frame of document.querySelectorAll("iframe")) {{
    const inside = frame.contentDocument, name = frame.dataset.name;
    say(`${{name}} width ${{inside.documentElement.scrollWidth}} of ${{inside.documentElement.clientWidth}}`);
    if (inside.scripts.length) say(`${{name}} has scripts`);
    for (const text of inside.querySelectorAll(".mark, .part b")) {{
      const box = text.getBoundingClientRect(), part = text.closest(".part");
      if (part && box.top >= part.getBoundingClientRect().bottom) continue; // cut off, since it does not fit
      if (box.width && (box.left < 0 || box.right > 360)) say(`${{name}} clips ${{text.textContent}}`);
    }}
  }}
}});
</script>"""


class _Elements(HTMLParser):
    """Return start tags with their attributes; raise `AssertionError` for a closing tag without an open one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def elements(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = _Elements()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.found


def words_of(html: str) -> str:
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def assert_self_contained(html: str) -> None:
    """Check that tags are closed, that nothing is loaded or run, that links lead somewhere, and charts have names."""
    html.encode("utf-8")
    assert all(html.count(f'id="{link}"') == 1 for link in re.findall(r'href="#([^"]*)"', html))
    for tag, attributes in elements(html):
        assert tag not in {"script", "img", "iframe", "object", "base", "form"}
        assert not any(name.startswith("on") for name in attributes)
        assert all(not (value or "").startswith(("http", "//")) for value in attributes.values())
        assert attributes.get("role") != "img" or attributes["aria-label"]


def assert_fit_on_a_phone(pages: Mapping[str, str], folder: Path) -> None:
    """Check that no page scrolls sideways or clips a chart in a browser of 360 pixels. Files go into `folder`."""
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html, "utf-8")
    frames = "".join(
        f'<iframe src="{name}.html" data-name="{name}" width="360" height="640" frameborder="0"></iframe>'
        for name in pages
    )
    (folder / "phones.html").write_text(PHONE.format(frames=frames), "utf-8")
    with serve(folder) as url:
        rendered = render(f"{url}/phones.html", settle_seconds=1)
    assert rendered.console == []
    found = [unescape(each) for each in re.findall(r"<li>(.*?)</li>", rendered.dom)]
    widths = {match[1]: (int(match[2]), int(match[3])) for match in map(WIDTH.match, found) if match}
    assert widths.keys() == pages.keys()
    assert all(content <= width <= 360 for content, width in widths.values()), widths
    left = [each for each in found if not WIDTH.match(each)]
    assert not left, left


WIDTH = re.compile(r"(\w+) width (\d+) of (\d+)$")
