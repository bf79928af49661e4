"""Installs the programs and libraries that tests need beyond Python's packages: `python -m tests.system_packages`.

As root where there is apt, and nothing if all are there. What cannot be installed is named and no error: the tests that
need it are skipped.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.settings.setting import ALLOCATORS
from tests.browser import find_chromium

UPDATE_SECONDS, INSTALL_SECONDS = 120, 900
# Recommended packages would triple what Chromium takes. A mirror that does not answer is not waited for.
APT_OPTIONS = (
    "--quiet",
    "--yes",
    "--no-install-recommends",
    *("-o", "Acquire::http::Timeout=30"),
    *("-o", "Acquire::https::Timeout=30"),
    *("-o", "Acquire::Retries=2"),
    *("-o", "DPkg::Lock::Timeout=120"),
)


@dataclass(frozen=True)
class Need:
    """Something that tests need, and a regular expression for the names of its package in Debian's releases."""

    name: str
    package: str
    is_here: Callable[[], bool]


class InstallError(Exception):
    """Why a package could not be installed, in one line."""


def _has_library(name: str) -> bool:
    return ctypes.util.find_library(name) is not None


_LIBRARY_PACKAGES = {
    "jemalloc": r"^libjemalloc[0-9]+$",
    "tcmalloc_minimal": r"^libtcmalloc-minimal[0-9]+(t64)?$",
    "mimalloc": r"^libmimalloc[0-9.]+$",
}
NEEDS = (
    Need("Chromium", "^chromium$", lambda: find_chromium() is not None),
    Need("npm", "^npm$", lambda: shutil.which("npm") is not None),
    *(Need(name, _LIBRARY_PACKAGES[name], partial(_has_library, name)) for name in ALLOCATORS),
)


def install(needs: Sequence[Need]) -> dict[str, str]:
    """Install what is missing of `needs`, if that can be done here.

    Returns the names of what is still missing, each with the reason.
    """
    missing = [need for need in needs if not need.is_here()]
    if not missing:
        return {}
    if os.geteuid() != 0:
        return {need.name: "only root may install it" for need in missing}
    if shutil.which("apt-get") is None:
        return {need.name: "there is no apt-get to install it with" for need in missing}
    print(f"Installing {', '.join(need.name for need in missing)} for the tests that need it", flush=True)
    reasons = {}
    no_update = ""
    try:
        _run("apt-get", *APT_OPTIONS, "update", limit_seconds=UPDATE_SECONDS)
    except InstallError as error:
        no_update = f"; before that, update failed: {error}"  # of one archive perhaps, and others have what is needed
    for need in missing:
        begin = time.monotonic()
        try:
            # One by one: apt installs none of several if it does not know one of them.
            _run("apt-get", *APT_OPTIONS, "install", _find_package(need), limit_seconds=INSTALL_SECONDS)
            if not need.is_here():
                raise InstallError("it was installed and is still not found")
        except InstallError as error:
            reasons[need.name] = f"{error}{no_update}"
        else:
            print(f"  {need.name}: {time.monotonic() - begin:.0f} s", flush=True)
    return reasons


def _find_package(need: Need) -> str:
    """Return the name of the package in this release of the distribution."""
    found = _run("apt-cache", "--names-only", "search", need.package).splitlines()
    if not found:
        raise InstallError(f"apt knows no package {need.package}")
    return max(line.partition(" - ")[0] for line in found)


def _run(*command: str, limit_seconds: float | None = None) -> str:
    """Return what `command` prints; raises `InstallError` with its last line if it fails."""
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=limit_seconds,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"},
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or error.stdout.strip() or f"exit code {error.returncode}").splitlines()[-1]
        raise InstallError(f"{command[0]}: {said}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallError(str(error)) from error
    return ran.stdout


if __name__ == "__main__":
    still_missing = install(NEEDS)
    for reason in dict.fromkeys(still_missing.values()):
        names = ", ".join(name for name in still_missing if still_missing[name] == reason)
        print(f"Not installed, so the tests that need it are skipped: {names} ({reason})")
