"""The file of samples: it grows with every sample, and an interrupted run goes on where it stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.peers.sample import Figures


class OtherRun(Exception):  # noqa: N818 - the word the reader looks for
    """The file holds samples that do not belong together with new ones."""


class Samples:
    """Figures by round and loader, kept in a file of JSON together with the settings that they were taken with.

    Raises `OtherRun` where the file holds samples of other settings or is none of this kind.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        self._content: dict[str, Any] = {"settings": settings, "prepared": {}, "samples": []}
        if path.exists():
            self._content = _read(path, settings)

    def figures_of(self, loader: str) -> dict[int, Figures]:
        """The figures of a loader, by its key, in each round that it was measured in."""
        return {
            each["round"]: Figures.from_json(each["figures"])
            for each in self._content["samples"]
            if each["loader"] == loader
        }

    def add(self, loader: str, number: int, figures: Figures) -> None:
        """Keep the figures of a round."""
        self._content["samples"].append({"loader": loader, "round": number, "figures": figures.to_json()})
        self._write()

    def prepared_seconds(self, loader: str) -> float | None:
        """What it took to write a loader's files; None where they were not written in this run."""
        seconds: float | None = self._content["prepared"].get(loader)
        return seconds

    def add_prepared(self, loader: str, seconds: float) -> None:
        """Keep what it took to write a loader's files."""
        self._content["prepared"][loader] = seconds
        self._write()

    def _write(self) -> None:
        unfinished = self.path.with_name(f"{self.path.name}.unfinished")
        unfinished.write_text(json.dumps(self._content, indent=1) + "\n")
        os.replace(unfinished, self.path)


def _read(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        found = content["settings"]
    except (ValueError, KeyError, TypeError):
        raise OtherRun(f"{path} is not a file of samples; name another one") from None
    different = sorted(name for name in {*found, *settings} if found.get(name) != settings.get(name))
    if different:
        described = ", ".join(f"{name} {found.get(name)}, not {settings.get(name)}" for name in different)
        raise OtherRun(f"{path} holds samples of {described}; name another file, or delete this one to begin anew")
    return content
