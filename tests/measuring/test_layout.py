"""Memory layout randomization: servers differ in their memory layout, and in nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from etl.measuring.layout import MAX_PADDING, PADDING_VARIABLE, draw_environment, import_in_drawn_order


def test_the_environment_has_another_size_for_every_server() -> None:
    drawn = [draw_environment() for _ in range(50)]
    assert all(list(each) == [PADDING_VARIABLE] for each in drawn)
    assert all(each[PADDING_VARIABLE].isascii() and len(each[PADDING_VARIABLE]) <= MAX_PADDING for each in drawn)
    assert len({len(each[PADDING_VARIABLE]) for each in drawn}) > 10


def test_modules_are_imported_each_time_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"drawn_{number}" for number in range(8)]
    for name in names:
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    orders = set()
    for _ in range(10):
        import_in_drawn_order(names)
        orders.add(tuple(name for name in sys.modules if name in names))
        for name in names:
            del sys.modules[name]
    assert all(sorted(each) == names for each in orders)
    assert len(orders) > 1
