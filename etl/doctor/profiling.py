"""A sampled profile of this process, its threads and its worker processes, written by py-spy."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Formats of py-spy by suffix of the file: a flame graph for a browser, a profile for https://www.speedscope.app, and
# text with a line for each stack and its number of samples.
FORMATS = {".svg": "flamegraph", ".json": "speedscope", ".txt": "raw"}
SAMPLES_PER_SECOND = 100
READY = b"Sampling process"
END_TIMEOUT_SECONDS = 60.0
# For prctl(2): allows any process to trace this one. Some systems otherwise allow this only to its parents, and py-spy
# is a child.
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, -1


def check_profile_path(path: Path) -> None:
    """Check that a profile can be written to `path`.

    Raises
    ------
    ValueError
        If the suffix names no format.
    RuntimeError
        If py-spy is not installed.
    """
    if path.suffix not in FORMATS:
        known = ", ".join(f"{suffix} ({name})" for suffix, name in FORMATS.items())
        raise ValueError(f"{path}: the name of a profile must end with one of {known}")
    _py_spy()


@contextmanager
def profiled(path: Path) -> Iterator[None]:
    """Write a profile of the block to `path`: all threads and child processes, sampled 100 times a second.

    Raises the errors of `check_profile_path`; and `RuntimeError` with what py-spy printed, if it may not trace this
    process or writes no file.
    """
    check_profile_path(path)
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
    command = [_py_spy(), "record", "--pid", str(os.getpid()), "--output", str(path), "--format", FORMATS[path.suffix]]
    options = ["--rate", str(SAMPLES_PER_SECOND), "--subprocesses", "--threads"]
    spy = subprocess.Popen(
        [*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    printed = b""
    try:
        for line in spy.stdout or ():
            printed += line
            if READY in line:
                break
        else:
            raise RuntimeError(f"py-spy cannot trace this process: {_last_line(printed)}")
        yield
        spy.send_signal(signal.SIGINT)
        rest, _ = spy.communicate(timeout=END_TIMEOUT_SECONDS)
        if spy.returncode != 0 or not path.is_file():
            raise RuntimeError(f"py-spy wrote no profile: {_last_line(printed + rest)}")
    finally:
        spy.kill()
        spy.communicate()


def _py_spy() -> str:
    """Return the path of py-spy, which is installed beside this Python or on the PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(beside) if beside.is_file() else shutil.which("py-spy")
    if found is None:
        raise RuntimeError("a profile needs py-spy, which is not installed: pip install 'fair-etl[doctor]'")
    return found


def _last_line(text: bytes) -> str:
    lines = [line.strip() for line in text.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"
