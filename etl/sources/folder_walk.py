"""Going through a folder that others may have made: no link leads out of it, and no folder is listed twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from etl.sources.left_out import LeftOut

SHOWN = 3


class FolderWalk:
    """The entries of `root` and of folders in it, but for names that begin with a dot.

    Links that are named with one of `suffixes`, or lead to folders, may lead to what is in `root`; with `follow_links`
    anywhere. Raises `ValueError` that names the link for any other, and for a folder that is met twice, which links in
    a circle would be for ever.

    `left_out` counts the files that `files` has passed over, which are `other`.
    """

    def __init__(self, root: Path, suffixes: tuple[str, ...], follow_links: bool, other: str) -> None:
        self._root = root
        self._real = Path(os.path.realpath(root))
        self._suffixes = suffixes
        self._follow_links = follow_links
        self._other = other
        self.left_out = LeftOut()
        self._seen: dict[tuple[int, int], str] = {}

    def entries(self, folder: str = "") -> list[os.DirEntry[str]]:
        """What is in `folder`, a path below the root with forward slashes, sorted by name."""
        path = f"{self._root}/{folder}" if folder else str(self._root)
        status = os.stat(path)  # noqa: PTH116 - paths are text here, of which there may be a hundred thousand
        earlier = self._seen.setdefault((status.st_dev, status.st_ino), path)
        if earlier is not path:
            raise ValueError(f"{path} is the same folder as {earlier}: links lead there, remove one of them")
        with os.scandir(path) as found:
            entries = sorted((each for each in found if not each.name.startswith(".")), key=lambda each: each.name)
        if not self._follow_links:
            for entry in entries:
                if entry.is_symlink() and (entry.is_dir() or entry.name.lower().endswith(self._suffixes)):
                    self._check(entry.path)
        return entries

    def files(self, folder: str) -> Iterator[str]:
        """Paths below the root of all with one of the suffixes but folders, in `folder` and in folders within it."""
        folders = [folder]
        while folders:
            inner = folders.pop()
            for entry in self.entries(inner):
                if entry.is_dir():
                    folders.append(f"{inner}/{entry.name}")
                elif entry.name.lower().endswith(self._suffixes):
                    yield f"{inner}/{entry.name}"
                else:
                    self.left_out.add(entry.name, self._other)

    def refuse_empty(self, classes: dict[str, list[str]], what: str) -> None:
        """Raise `ValueError` if a class folder has no files among `classes`, which maps folders to theirs."""
        empty = [name for name, files in classes.items() if not files]
        if empty:
            more = f" and {len(empty) - SHOWN:,} more" if len(empty) > SHOWN else ""
            left_out = f"; left out of all folders: {self.left_out}" if self.left_out else ""
            raise ValueError(
                f"{self._root}: no {what} in class folder{'s' * (len(empty) > 1)} {', '.join(empty[:SHOWN])}{more}; "
                f"remove what is no class, or pass allow_empty=True (--allow-empty){left_out}"
            )

    def _check(self, path: str) -> None:
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(self._real):
            raise ValueError(
                f"{path} is a link to {target}, out of {self._root}; pass follow_links=True (--follow-links) if "
                "whoever made the folder may choose what is read"
            )
