"""The harness of these tests names a program that dies, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.harness import Server


@pytest.mark.parametrize("answer", ["", "print('half an ans', end='')\n"])
def test_a_program_that_dies_is_named_with_its_exit_code(answer: str, tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(f"{answer}raise SystemExit(3)")
    said = r"dying\.py'\)\] ended with exit code 3 when it was asked \[7\]"
    with Server(str(tmp_path / "dying.py")) as server, pytest.raises(AssertionError, match=said):
        server.ask([7])
