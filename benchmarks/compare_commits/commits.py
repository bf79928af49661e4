"""A commit's packages, as files that a process can import."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(".asv") / "commits"
PACKAGES = ("etl", "presave")


class NoSuchCommit(ValueError):  # noqa: N818 - the word the reader looks for
    """No commit of this repository has the given name, or it has no packages to measure, or git cannot be run."""


@dataclass(frozen=True)
class Commit:
    """A commit whose packages were extracted.

    Attributes
    ----------
    name, sha : str
        The name that was asked for, and the hash.
    slower : float
        Share of its time by which loading is slowed down; 0 for the commit itself. The A/A study checks that
        compare_commits finds such a change.
    """

    name: str
    sha: str
    folder: Path
    slower: float = 0.0

    def __str__(self) -> str:
        name = self.sha[:8] if self.sha.startswith(self.name) else f"{self.name} ({self.sha[:8]})"
        return f"{name} slower by {self.slower:.0%}" if self.slower else name


def extract(name: str, repository: Path = ROOT) -> Commit:
    """Extract the packages of commit `name` below .asv/commits of `repository`, or raise `NoSuchCommit`.

    They stay there, and are not extracted again.
    """
    sha = find_commit(name, repository)
    folder = repository / FOLDER / sha
    if not folder.is_dir():
        archive = _git(repository, "archive", "--format=tar", sha, *PACKAGES)
        if archive.returncode != 0:
            raise NoSuchCommit(f"commit {name} has no {' and '.join(PACKAGES)}: {archive.stderr.decode().strip()}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=folder.parent) as unfinished,
            tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files,
        ):
            complete = Path(unfinished) / "complete"
            if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
                files.extraction_filter = tarfile.data_filter
            files.extractall(complete)  # noqa: S202 - git has made the archive
            os.rename(complete, folder)
    return Commit(name, sha, folder)


def find_commit(name: str, repository: Path) -> str:
    """Return the hash of commit `name` of `repository`, or raise `NoSuchCommit`."""
    resolved = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if resolved.returncode != 0:
        said = resolved.stderr.decode().strip()
        raise NoSuchCommit(
            f"{name!r} is not a commit of {repository}{f': {said}' if said else ''}; `git log` lists them"
        )
    return resolved.stdout.decode().strip()


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=False)
    except OSError as error:
        raise NoSuchCommit(f"git cannot be run: {error}") from error
