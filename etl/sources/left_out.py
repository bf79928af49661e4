"""Counts of the files that a source leaves out, by suffix, to be said once."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import PurePosixPath

from etl.arguments import printable

# Files that file managers leave in folders; like names that begin with a dot, they hold no data.
FILE_MANAGER_FILES = ("thumbs.db", "desktop.ini")
SUFFIXES_SHOWN = 6
LONGEST_SUFFIX = 16


class LeftOut:
    """Counts the files that a source does not read, by reason and suffix.

    Hidden files, `Thumbs.db` and `desktop.ini` are not counted.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, name: str, reason: str) -> None:
        """Count the file called `name`, without its folders."""
        if not name.startswith(".") and name.lower() not in FILE_MANAGER_FILES:
            self._counts[reason][suffix_of(name)] += 1

    def update(self, counts: Mapping[str, int], reason: str) -> None:
        """Add counts by suffix."""
        if counts:
            self._counts[reason].update(counts)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __str__(self) -> str:
        return " and ".join(f"{_shown(counts)} ({reason})" for reason, counts in self._counts.items())

    def warn(self, source: str, advice: str = "") -> None:
        """Warn the caller of the source's constructor, which calls this, if anything was left out."""
        if self:
            text = f"{source} leaves out {self}{f'; {advice}' if advice else ''}"
            warnings.warn(printable(text), UserWarning, stacklevel=3)


def suffix_of(name: str) -> str:
    """The suffix of a file's name in lower case, as it is counted."""
    return PurePosixPath(name).suffix.lower()[:LONGEST_SUFFIX] or "without a suffix"


def _shown(counts: Counter[str]) -> str:
    shown = [f"{count:,} {suffix}" for suffix, count in counts.most_common(SUFFIXES_SHOWN)]
    rest = counts.total() - sum(count for _, count in counts.most_common(SUFFIXES_SHOWN))
    return ", ".join([*shown, f"{rest:,} others"] if rest else shown)
