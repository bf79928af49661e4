"""Runs the quick tests that need no torch on the oldest and the newest other Python that this machine has.

`python -m tests.other_pythons`: each Python gets an environment below .asv/pythons/. Interpreters are looked for on the
path and among those of pyenv.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ROOT / ".asv" / "pythons"
OLDEST, NEWEST = (3, 11), (3, 13)
TESTED = ("presave", "sources", "stages", "loading", "kernels", "iterators", "runtime", "demonstration")
PACKAGES = ("--editable", ".[fast,formats,demo]", "hypothesis", "jsonschema", "pytest", "pytest-xdist")


def find_pythons() -> dict[tuple[int, int], str]:
    """Return the interpreters of other supported versions, the oldest first: one of each, the one on the path first."""
    found: dict[tuple[int, int], str] = {}
    folders = [*os.get_exec_path(), *map(str, sorted(Path.home().glob(".pyenv/versions/*/bin"), reverse=True))]
    for folder in map(Path, folders):
        for path in sorted(folder.glob("python3.*")):
            match = re.fullmatch(r"python3\.(\d+)", path.name)
            version = (3, int(match[1])) if match else (0, 0)
            is_other = OLDEST <= version <= NEWEST and version != sys.version_info[:2]
            if is_other and version not in found and _runs(path):
                found[version] = str(path)
    return dict(sorted(found.items()))


def main() -> int:
    """Test the oldest and the newest interpreter that were found; return 1 if a test failed."""
    failed = []
    pythons = find_pythons()
    tested = [version for version in pythons if version in (min(pythons), max(pythons))]
    for major, minor in tested:
        name = f"Python {major}.{minor}"
        print(f"{name}: making an environment", flush=True)
        folder = ENVIRONMENTS / f"{major}.{minor}"
        own = str(folder / "bin" / "python")
        subprocess.run([pythons[major, minor], "-m", "venv", "--clear", folder], check=True)
        pip = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ".ci/constraints.txt"]
        # Into that environment, even if pip's configuration says `user = true`.
        subprocess.run([*pip, *PACKAGES], cwd=ROOT, check=True, env={**os.environ, "PIP_USER": "0"})
        tests = [own, "-m", "pytest", "-q", "-r", "fE", "-p", "tests.without_torch", "--numprocesses", "2"]
        folders = [f"tests/{each}" for each in TESTED]
        ran = subprocess.run([*tests, "-m", "not slow and not alone", *folders], cwd=ROOT, check=False)
        if ran.returncode:
            failed.append(name)
    names = ", ".join(f"{major}.{minor}" for major, minor in tested) or "none was found"
    print(f"Other Pythons that were tested, without torch: {names}")
    if failed:
        print(f"Failed: {', '.join(failed)}")
    return 1 if failed else 0


def _runs(python: Path) -> bool:
    """Return True if it is an interpreter: that of pyenv's path may be one for another version."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
