"""Copies of a commit that load more slowly by a known share of the time that loading takes."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.compare_commits.commits import Commit

LOADING = Path("etl") / "loading" / "loading.py"
# Of the thread's own CPU time, so that a busy machine does not make the copy slower still.
SLOWER = """

_load = Loading.load


def _load_more_slowly(self: Loading, *arguments: Any, **keywords: Any) -> None:
    from time import thread_time

    started = thread_time()
    _load(self, *arguments, **keywords)
    ended = thread_time()
    until = ended + {share!r} * (ended - started)
    while thread_time() < until:
        pass


Loading.load = _load_more_slowly  # type: ignore[method-assign]
"""


class CannotSlow(Exception):  # noqa: N818 - the word the reader looks for
    """A commit does not have the file that is made slower."""


def slowed(commit: Commit, share: float) -> Commit:
    """Make a copy of `commit`, beside it, in which every part of a batch takes `share` more of its time to load.

    Raises `CannotSlow` if the commit does not have the file that is made slower.
    """
    name = f"{commit.sha}-slower-by-{share:g}"
    folder = commit.folder.with_name(name)
    if not folder.is_dir():
        if not (commit.folder / LOADING).is_file():
            raise CannotSlow(f"commit {commit} has no {LOADING}, where copies are made slower; study a later commit")
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            complete = Path(unfinished) / "complete"
            shutil.copytree(commit.folder, complete, ignore=shutil.ignore_patterns("__pycache__"))
            with (complete / LOADING).open("a") as file:
                file.write(SLOWER.format(share=share))
            os.rename(complete, folder)
    return replace(commit, name=f"{commit.name} slower by {share:.0%}", sha=name, folder=folder)
