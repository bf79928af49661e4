"""TurboJPEG 3, which no package of PyPI has: built from libjpeg-turbo's source code, which simplejpeg's includes."""

from __future__ import annotations

import fcntl
import io
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
from functools import cache
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urljoin

import pytest

FOLDER = Path(__file__).parents[1] / ".asv" / "turbojpeg"
SOURCE = "simplejpeg-1.9.0/lib/libjpeg-turbo-3.1.2"
LIBRARY = FOLDER / SOURCE / "build" / "libturbojpeg.so.0"
OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DENABLE_STATIC=OFF", "-DWITH_TESTS=OFF")
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/simplejpeg/"


def turbojpeg() -> str:
    """Return the path of the library, built by the first test of this checkout; skips the test if it cannot be."""
    if (reason := _make_library()) is not None:
        pytest.skip(f"TurboJPEG 3 could not be built: {reason}")
    return str(LIBRARY)


@cache
def _make_library() -> str | None:
    """Build the library, unless it is there; return the reason if that fails, which no other test tries again."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not LIBRARY.exists():
            try:
                _build(FOLDER / SOURCE)
            except (OSError, HTTPException, tarfile.TarError, ValueError, subprocess.CalledProcessError) as error:
                return str(error)
    return None


def _build(source: Path) -> None:
    page = urllib.request.urlopen(INDEX, timeout=60).read().decode()  # noqa: S310 - the index of pip
    (link,) = re.findall(r'href="([^"#]*simplejpeg-1\.9\.0\.tar\.gz)', page)
    content = urllib.request.urlopen(urljoin(INDEX, link), timeout=60).read()  # noqa: S310 - the index of pip
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(FOLDER)  # noqa: S202 - the archive that pip installs from
    for call in (
        ["-S", source, "-B", source / "build", *OPTIONS],
        ["--build", source / "build", "--target", "turbojpeg", "--parallel", "2"],
    ):
        subprocess.run([sys.executable, "-m", "cmake", *call], check=True, capture_output=True)
