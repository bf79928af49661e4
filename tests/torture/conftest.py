"""How often each promise is tried, and the table of what came of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from tests.tallies import PROPERTY
from tests.torture.failing_files import COMPILER, FailingFiles
from tests.torture.harness import Server
from tests.torture.restored import write_stores

FOLDER = Path(__file__).parent
T = TypeVar("T")
# Whoever starts it is root there and may mount.
IN_A_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount")


class HowMany(Protocol):
    def __call__(self, small: T, full: T) -> T: ...


class Tally(Protocol):
    def __call__(self, what: str, outcome: str, times: int = 1) -> None: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder as slow."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def how_many(pytestconfig: pytest.Config) -> HowMany:
    """`how_many(20, 500)` is 500 with `--torture`, otherwise 20."""
    is_full = bool(pytestconfig.getoption("--torture"))
    return lambda small, full: full if is_full else small


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Iterator[Tally]:
    """`tally("presave.write killed, npy", "no store")` counts one try and its outcome for the table at the end."""
    counts: Counter[tuple[str, str]] = Counter()

    def count(what: str, outcome: str, times: int = 1) -> None:
        counts[what, outcome] += times

    yield count
    record_property(PROPERTY, [[what, outcome, times] for (what, outcome), times in counts.items()])


@pytest.fixture(scope="session")
def restorer() -> Iterator[Server]:
    """A program that restores iterators in new processes, see `rest`."""
    with Server("restoring.py") as started:
        yield started


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of stores by kind. Not to be written to."""
    return write_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="session")
def failing_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingFiles]:
    """Runs tasks in processes that are killed, or whose file system fails."""
    _need_compiler()
    with FailingFiles(tmp_path_factory.mktemp("failing")) as started:
        yield started


@pytest.fixture(scope="session")
def small_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingFiles]:
    """Runs tasks on disks of their own, which are as small as is asked for."""
    _need_compiler()
    folder = tmp_path_factory.mktemp("small")
    mounting = [*IN_A_NAMESPACE, "mount", "-t", "tmpfs", "none", folder]
    if shutil.which("unshare") is None or subprocess.run(mounting, capture_output=True).returncode != 0:
        pytest.skip("mounting a disk in a namespace is not allowed here")
    with FailingFiles(folder, within=IN_A_NAMESPACE) as started:
        yield started


def _need_compiler() -> None:
    if sys.platform != "linux" or COMPILER is None:
        pytest.skip("calls are counted by a library for Linux that gcc makes")
