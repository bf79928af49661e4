"""Real data that tests share, made once a session; a network file system; what tests restore or must not leave."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import etl
from etl.images.settings import pillow_settings, take_over
from tests.leftovers import prefetch_threads
from tests.tallies import show_tallies

ROOT = Path(__file__).parents[1]

# The same examples each time, however slow the machine; `--hypothesis-profile=default` draws others.
hypothesis.settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Let programs that tests start import `tests`, too, and let them and the tests be interrupted.

    A shell starts programs in the background with SIGINT ignored, nohup with SIGHUP, and so does everything that they
    start.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "COLUMNS"):  # of a terminal that is not there
        os.environ.pop(name, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("torture")
    group.addoption("--torture", action="store_true", help="try every promise as often as `make torture` does")
    group.addoption("--counts", type=Path, metavar="FILE", help="write what was tried, and what came of it, as JSON")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Print what tests/torture tried, and write it to a file if no test failed."""
    if hasattr(config, "workerinput"):  # of xdist: a worker knows its own tests alone
        return
    show_tallies(terminalreporter, None if exitstatus else config.getoption("--counts"))


@pytest.fixture
def network_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other processes, as if on other machines, see the locks of files, but not those of folders."""
    flock = fcntl.flock

    def flock_on_a_network(descriptor: int, operation: int) -> None:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock_on_a_network)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder of 40 JPEG photographs in 10 classes. Not to be written to."""
    folder = tmp_path_factory.mktemp("data") / "photographs"
    etl.demonstration.photographs(folder, 40)
    return folder


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the handwritten digits as MNIST's files, gzip. Not to be written to."""
    folder = tmp_path_factory.mktemp("data") / "digits"
    etl.demonstration.digits(folder)
    return folder


@pytest.fixture
def user_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's caches, empty."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def pillow_settings_kept() -> Iterator[None]:
    """Restore Pillow's settings after the test."""
    before = pillow_settings()
    yield
    take_over(before)


@pytest.fixture
def no_prefetch_thread_is_left() -> Iterator[None]:
    """Fails a test that leaves a thread that loads ahead."""
    before = set(prefetch_threads())  # of a test that failed
    yield
    assert set(prefetch_threads()) <= before


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One compute thread: the order of additions, and so every bit of a score, is then the same in each run."""
    with etl.runtime.ThreadPolicy(1):
        yield
