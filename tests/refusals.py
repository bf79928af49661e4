"""Calls of the command line that are refused."""

from __future__ import annotations

import pytest

from etl.commands import main


def refusal(capsys: pytest.CaptureFixture[str], *call: str) -> str:
    """Return the line with which a call is refused, after checking that nothing else is printed."""
    capsys.readouterr()
    assert main(call) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    assert line.startswith("etl: ")
    return line
