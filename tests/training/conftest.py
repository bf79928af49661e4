"""Fixtures of trainings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import etl


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One compute thread: the order of additions, and so every bit of a score, is then the same in each run."""
    with etl.runtime.ThreadPolicy(1):
        yield
