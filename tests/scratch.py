"""A scratch repository of this project, in which commits can be made and asv can be run on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Kept between runs, and apart from the environments that `make bench` uses: making one takes a minute.
ENVIRONMENTS = ROOT / ".asv" / "test-env"


@dataclass(frozen=True)
class Scratch:
    """A git repository with the files of the working tree, and where asv finds its data."""

    folder: Path
    data: Path

    def commit(self, message: str) -> str:
        """Commit all that has changed; the hash."""
        self.git("add", "--all")
        self.git("-c", "user.name=test", "-c", "user.email=test@example.org", "commit", "--quiet", "-m", message)
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        """What git says."""
        return subprocess.run(["git", *arguments], cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def replace(self, file: str, before: str, after: str) -> None:
        """Replace the one place in `file` where `before` stands."""
        path = self.folder / file
        text = path.read_text()
        assert text.count(before) == 1, f"{file} has {text.count(before)} times {before!r}"
        path.write_text(text.replace(before, after))

    def asv(self, *arguments: str, rounds: int | None = None) -> subprocess.CompletedProcess[str]:
        """Run asv as a user would; `rounds` replaces the profile's number of them."""
        return self.run("asv", *arguments, **({} if rounds is None else {"FAIR_ETL_ROUNDS": str(rounds)}))

    def run(self, module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a module with profile `check`; what it printed on both streams, in the order of writing."""
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env={**os.environ, "FAIR_ETL_PROFILE": "check", "FAIR_ETL_DATA": str(self.data), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


def make_scratch(folder: Path) -> Scratch:
    """A new repository below `folder`, without commits, whose asv keeps its environments in the project's folder."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    scratch = Scratch(folder / "scratch", folder / "data")
    for name in listing.stdout.splitlines():
        file = ROOT / name
        if file.is_file() or file.is_symlink():
            target = scratch.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target, follow_symlinks=False)
    scratch.git("init", "--quiet", "--initial-branch=main")
    scratch.replace("asv.conf.json", '"env_dir": ".asv/env"', f'"env_dir": "{ENVIRONMENTS}"')
    return scratch
