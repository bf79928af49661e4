"""Environments of the peers: one for each, below a folder, with the pinned packages of requirements/."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")
INSTALL_TIMEOUT_SECONDS = 3600
# Words of lines of pip that name an error without its reason.
BOILERPLATE = ("subprocess-exited-with-error", "note: This error originates", "exit code:", "metadata-generation")


def make_environment(peer: str, folder: Path) -> str:
    """Return the interpreter of the peer's environment below `folder`; make it if it is missing or has other pins.

    Raises `NotInstalled` with the line of pip's output that gives the reason.
    """
    requirements = (REQUIREMENTS / f"{peer}.txt").read_text()
    environment = folder / peer
    interpreter = environment / "bin" / "python"
    made_from = environment / "requirements.txt"
    if made_from.is_file() and made_from.read_text() == requirements:
        return str(interpreter)
    shutil.rmtree(environment, ignore_errors=True)
    _run([sys.executable, "-m", "virtualenv", "--quiet", str(environment)], folder)
    _run([str(interpreter), "-m", "pip", "install", "-r", str(REQUIREMENTS / f"{peer}.txt")], folder)
    made_from.write_text(requirements)
    return str(interpreter)


def find_versions(interpreter: str, peer: str) -> dict[str, str]:
    """Return the versions of the peer's packages that the environment of `interpreter` has, and that of Python."""
    lines = (REQUIREMENTS / f"{peer}.txt").read_text().split()
    script = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {n: d[0].version for n in sys.argv[1:] if (d := list(m.distributions(name=n)))}\n"
        "print(json.dumps({'python': platform.python_version(), **found}))"
    )
    command = [interpreter, "-c", script, *(line.partition("==")[0] for line in lines)]
    found: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


class NotInstalled(Exception):  # noqa: N818 - the word the reader looks for
    """A peer's environment cannot be made, for the reason in the text."""


def _run(command: list[str], folder: Path) -> None:
    # All environments share a cache, beside them, so that torch is fetched once. PIP_USER is for a configuration of pip
    # that says `user = true`.
    variables = {"PIP_CACHE_DIR": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_USER": "0"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, **variables},
            timeout=INSTALL_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed after {INSTALL_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        raise NotInstalled(find_reason(done.stdout + done.stderr))


def find_reason(output: str) -> str:
    """Return the most informative line of pip's `output`: the first that names an error and is not boilerplate."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not any(words in line for words in BOILERPLATE)]
    return (named or lines or ["it ended without a word"])[0]
