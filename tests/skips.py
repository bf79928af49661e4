"""Skips and their reasons over several runs of pytest: a plugin that notes them, and a command that shows them.

`python -m pytest -p tests.skips --skips FILE` adds to a file, `python -m tests.skips FILE` prints it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skips", metavar="FILE", help="add what is skipped to FILE, a line of JSON each")


def pytest_configure(config: pytest.Config) -> None:
    if (path := config.getoption("--skips")) is not None:
        config.pluginmanager.register(_Recorder(Path(path)))


@dataclass(frozen=True)
class Skip:
    """One test that was skipped; `test` is the path of the file if all of it was."""

    test: str
    reason: str

    @property
    def file(self) -> str:
        """The path of the test's file."""
        return self.test.partition("::")[0]


class _Recorder:
    """Appends skips to a file, in every process: xdist hands a skip of a whole file to no other one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One write for each line, at the end of the file: lines of several processes do not mix.
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._record(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._record(report)

    def pytest_unconfigure(self) -> None:
        os.close(self._descriptor)

    def _record(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        # An expected failure counts as skipped for pytest, and did run.
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        _, _, message = report.longrepr  # of a skip: path, line and message
        skip = Skip(report.nodeid, message.removeprefix("Skipped: "))
        os.write(self._descriptor, f"{json.dumps(asdict(skip))}\n".encode())


def read_skips(path: Path) -> list[Skip]:
    """Return the skips in `path`, each once, although several processes may have seen it."""
    return list(dict.fromkeys(Skip(**json.loads(line)) for line in path.read_text().splitlines()))


def describe_skips(skips: Iterable[Skip]) -> str:
    """Return a list of reasons, each with the number of tests and their files."""
    by_reason: dict[str, list[Skip]] = defaultdict(list)
    for skip in skips:
        by_reason[skip.reason].append(skip)
    if not by_reason:
        return "Nothing was skipped."
    lines = ["Skipped:"]
    for reason, skipped in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        whole_files = {each.test for each in skipped if each.test == each.file}
        tests = len(skipped) - len(whole_files)
        files = [f"{each} (all of it)" if each in whole_files else each for each in sorted({s.file for s in skipped})]
        count = f"{tests:,} test{'s' * (tests != 1)} of " if tests else ""
        lines.append(f"  {reason}: {count}{', '.join(files)}")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        print(describe_skips(read_skips(Path(sys.argv[1]))))
    except FileNotFoundError as error:
        sys.exit(f"{error.filename} is not there: no pytest ran with --skips {error.filename}")
