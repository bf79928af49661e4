"""Listing of an untrusted folder: links may not lead out of it, and files that are left out are counted."""

from __future__ import annotations

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from etl.arguments import printable

# What systems and file managers leave in folders, in lower case; like names that begin with a dot, it holds no data.
SYSTEM_NAMES = frozenset(
    ("thumbs.db", "desktop.ini", "__macosx", "@eadir", "lost+found", "$recycle.bin", "system volume information")
)
MAX_FOLDERS_SHOWN = 3
MAX_SUFFIXES_SHOWN = 6
MAX_SUFFIX_CHARACTERS = 16


def is_hidden(name: str) -> bool:
    """Return True if a file or folder of this name holds no data: `._a.csv`, `.DS_Store`, `Thumbs.db`, `__MACOSX`."""
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


class FolderWalk:
    """The entries of a folder and of its sub-folders, except for hidden ones.

    Links that end in one of `suffixes` or lead to a folder must not lead out of `root`, unless `follow_links`.

    Parameters
    ----------
    follow_links : bool
        Follow links that lead out of `root`.
    reason : str
        Why `files` does not list other files, in words.

    Attributes
    ----------
    left_out : LeftOut
        Counts the files that `files` did not list.

    Raises
    ------
    ValueError
        If `root` is not a folder, a link leads out of it, or a folder is met twice, since a cycle of links would never
        end. The error names the folder or link.
    """

    def __init__(self, root: Path, suffixes: tuple[str, ...], follow_links: bool, reason: str) -> None:
        if not root.is_dir():
            raise ValueError(f"{root} is not a folder" if root.exists() else f"{root} does not exist")
        self.root = root
        self._real = Path(os.path.realpath(root))
        self._suffixes = suffixes
        self._follow_links = follow_links
        self.reason = reason
        self.left_out = LeftOut()
        self._seen: dict[tuple[int, int], str] = {}

    def entries(self, folder: str = "") -> list[os.DirEntry[str]]:
        """List `folder`, a path below the root with forward slashes, sorted by name."""
        path = f"{self.root}/{folder}" if folder else str(self.root)
        status = os.stat(path)  # noqa: PTH116 - paths are strings here, since there may be a hundred thousand
        earlier = self._seen.setdefault((status.st_dev, status.st_ino), path)
        if earlier is not path:
            raise ValueError(f"{path} is the same folder as {earlier}: links lead there, remove one of them")
        with os.scandir(path) as found:
            entries = sorted((each for each in found if not is_hidden(each.name)), key=lambda each: each.name)
        if not self._follow_links:
            for entry in entries:
                if entry.is_symlink() and (entry.is_dir() or entry.name.lower().endswith(self._suffixes)):
                    self._check(entry.path)
        return entries

    def files(self, folder: str) -> Iterator[str]:
        """Yield all files with one of the suffixes in `folder` and in folders within it, as paths below the root."""
        folders = [folder]
        while folders:
            inner = folders.pop()
            for entry in self.entries(inner):
                if entry.is_dir():
                    folders.append(f"{inner}/{entry.name}")
                elif entry.name.lower().endswith(self._suffixes):
                    yield f"{inner}/{entry.name}"
                else:
                    self.left_out.add(entry.name, self.reason)

    def refuse_empty(self, classes: dict[str, list[str]], kind: str) -> None:
        """Raise `ValueError` if a folder in `classes`, which maps folders to their files, is empty.

        `kind` is the word for the files in the error, such as "images".
        """
        empty = [name for name, files in classes.items() if not files]
        if empty:
            more = f" and {len(empty) - MAX_FOLDERS_SHOWN:,} more" if len(empty) > MAX_FOLDERS_SHOWN else ""
            left_out = f"; left out of all folders: {self.left_out}" if self.left_out else ""
            raise ValueError(
                f"{self.root}: no {kind} in class folder{'s' * (len(empty) > 1)} "
                f"{', '.join(empty[:MAX_FOLDERS_SHOWN])}{more}; remove what is not a class, or pass allow_empty=True "
                f"(--allow-empty){left_out}"
            )

    def _check(self, path: str) -> None:
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(self._real):
            raise ValueError(
                f"{path} is a link to {target}, out of {self.root}; pass follow_links=True (--follow-links) if "
                "its author may choose which files are read"
            )


class LeftOut:
    """Counts, by reason and suffix, the files that a source does not read.

    Hidden files, `Thumbs.db` and `desktop.ini` are not counted.
    """

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, name: str, reason: str) -> None:
        """Count the file named `name`, without its folders, under `reason`."""
        if not is_hidden(name):
            self._counts[reason][suffix_of(name)] += 1

    def update(self, counts: Mapping[str, int], reason: str) -> None:
        """Add counts by suffix under `reason`."""
        if counts:
            self._counts[reason].update(counts)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __str__(self) -> str:
        return " and ".join(f"{_shown(counts)} ({reason})" for reason, counts in self._counts.items())

    def warn(self, source: str, advice: str = "") -> None:
        """Warn if anything was left out. The warning points at the caller of the source's constructor."""
        if self:
            text = f"{source} leaves out {self}{f'; {advice}' if advice else ''}"
            warnings.warn(printable(text), UserWarning, stacklevel=3)


def suffix_of(name: str) -> str:
    """Return the suffix under which a file name is counted, in lower case."""
    return PurePosixPath(name).suffix.lower()[:MAX_SUFFIX_CHARACTERS] or "without a suffix"


def _shown(counts: Counter[str]) -> str:
    shown = [f"{count:,} {suffix}" for suffix, count in counts.most_common(MAX_SUFFIXES_SHOWN)]
    rest = counts.total() - sum(count for _, count in counts.most_common(MAX_SUFFIXES_SHOWN))
    return ", ".join([*shown, f"{rest:,} others"] if rest else shown)
