"""Pages as a browser shows them: a server for a folder, and a headless Chromium that renders one page of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT_SECONDS = 120
CONSOLE_LINE = re.compile(r'CONSOLE[:(]\d+\)?\] "(?P<message>.*)", source: (?P<source>.*)$')


@dataclass(frozen=True)
class Rendered:
    """A page after its scripts ran: its DOM as HTML, and what they or the browser wrote to the console."""

    dom: str
    console: list[str]


def find_chromium() -> str | None:
    """The path of the first Chromium on PATH, None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path is not None), None)


@contextmanager
def serve(folder: Path, requested: list[str] | None = None) -> Iterator[str]:
    """Serve `folder` on a free port of 127.0.0.1 while the context lasts; gives its URL, without a slash at the end.

    The path of each request is appended to `requested`, if given.
    """
    paths = [] if requested is None else requested
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, paths, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, requested: list[str], *arguments: Any, **options: Any) -> None:
        self._requested = requested
        super().__init__(*arguments, **options)

    def do_GET(self) -> None:
        self._requested.append(self.path)
        super().do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: what went wrong shows in the browser's console."""


def render(url: str, screenshot: Path | None = None, settle_seconds: int = 10, *, dark: bool = False) -> Rendered:
    """Load `url` in a Chromium that can reach no host but 127.0.0.1, and let its scripts run `settle_seconds`.

    These are seconds of the page's own clock, which stands still while it loads. Writes a PNG to `screenshot`, if
    given. With `dark` the user prefers dark colours.

    Raises `FileNotFoundError` without a Chromium, and `TimeoutExpired` after `LIMIT_SECONDS` of real time.
    """
    chromium = find_chromium()
    if chromium is None:
        raise FileNotFoundError(f"none of {', '.join(NAMES)} is on PATH; install one")
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            f"--user-data-dir={profile}",
            f"--virtual-time-budget={settle_seconds * 1000}",
            "--window-size=1280,900",
            # What pages see as prefers-color-scheme; --force-dark-mode changes only the browser's own surfaces.
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            "--enable-logging=stderr",
            "--v=0",
            "--dump-dom",
            *([f"--screenshot={screenshot}"] if screenshot is not None else []),
            url,
        ]
        # Files, not pipes: a child that outlives a killed browser would hold a pipe open.
        dom, messages = Path(profile, "dom.html"), Path(profile, "messages.txt")
        with dom.open("wb") as output, messages.open("wb") as errors:
            subprocess.run(command, stdout=output, stderr=errors, check=True, timeout=LIMIT_SECONDS)
        console = [
            f"{match['message']} ({match['source']})"
            for match in map(CONSOLE_LINE.search, messages.read_text("utf-8", "replace").splitlines())
            if match is not None
        ]
        return Rendered(dom.read_text("utf-8"), console)
