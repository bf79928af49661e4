"""A plugin that skips what needs torch where it is not installed: `python -m pytest -p tests.without_torch`."""

from __future__ import annotations

from collections.abc import Generator
from importlib.util import find_spec

import pytest

HAS_TORCH = find_spec("torch") is not None
# How files, tests, and the processes that they start fail without it.
REASONS = ("No module named 'torch'", "needs torch: pip install")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if _needs_torch(report):
        report.outcome, report.longrepr = "skipped", _skip_of(collector)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _needs_torch(report):
        report.outcome, report.longrepr = "skipped", _skip_of(item)
    return report


def _needs_torch(report: pytest.CollectReport | pytest.TestReport) -> bool:
    return not HAS_TORCH and report.failed and any(reason in str(report.longrepr) for reason in REASONS)


def _skip_of(node: pytest.Collector | pytest.Item) -> tuple[str, int, str]:
    return str(node.path), 0, "Skipped: torch is not installed"
