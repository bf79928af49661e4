"""A virtual environment for each peer, from its file in requirements/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements")
INSTALL_TIMEOUT_SECONDS = 3600


class NotInstalled(Exception):  # noqa: N818 - the word the reader looks for
    """A peer's environment cannot be made; the text is the reason."""


def make_environment(peer: str, folder: Path) -> str:
    """The interpreter of the peer's environment below `folder`, made where it is missing or its pins have changed.

    Raises `NotInstalled` with the first line of what pip says is wrong.
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


def _run(command: list[str], folder: Path) -> None:
    # One cache for all of them, beside the environments, so that torch is fetched once.
    variables = {**os.environ, "PIP_CACHE_DIR": str(folder / "cache"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=variables, timeout=INSTALL_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not installed after {INSTALL_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        raise NotInstalled(find_reason(done.stdout + done.stderr))


def find_reason(output: str) -> str:
    """The line of pip's `output` that says most: the first that names an error, not what only surrounds it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not _surrounds(line)]
    return (named or lines or ["it ended without a word"])[0]


def _surrounds(line: str) -> bool:
    return any(
        words in line
        for words in (
            "subprocess-exited-with-error",
            "note: This error originates",
            "exit code:",
            "metadata-generation",
        )
    )
