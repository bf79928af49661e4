"""Results reach files and streams in whatever state these are: closed, full, or read by a program that ends early."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from etl.commands import inspect, main
from etl.commands.output import SHARED_MEMORY, PlainConsole, deliver
from tests.refusals import refusal

ETL = f"{shlex.quote(sys.executable)} -m etl"
CLOSED = "standard output is closed, and nothing else would hold the result"
FULL = "etl: standard output cannot be written: No space left on device\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    presave.write(tmp_path / "store", [{"x": np.arange(3), "label": 1}]).close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, **environment: str) -> tuple[int, str]:
    """Run a shell command; return the exit code of its first program that fails, and standard error."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("inspect store --json a.json <&- >&- 2>&-", 0, ""),
        ("inspect store --json a.json | true", 0, ""),
        ("inspect store --json a.json >/dev/full", 2, FULL),
        ("inspect store >&-", 2, CLOSED),
        ("verify store >&-", 0, ""),
        ("--help | true", 0, ""),
        ("missing 2>/dev/full", 2, ""),
        (">/dev/full", 2, FULL),
    ],
)
def test_a_file_is_written_and_the_exit_code_true_whatever_standard_output_is(
    home: Path, call: str, code: int, said: str
) -> None:
    returned, errors = run(f"{ETL} {call}", PYTHONUNBUFFERED="")
    assert returned == code
    assert said in errors if said else errors == ""
    assert "a.json" not in call or json.loads((home / "a.json").read_text())["records"] == 1


@pytest.mark.parametrize("call", ["compare store --json -", "compare store", "tune store"])
def test_a_command_whose_result_is_what_it_shows_needs_standard_output(
    call: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # as Python has it if the descriptor is closed
    assert main(call.split()) == 2
    sys.stdout.close()
    assert CLOSED in capsys.readouterr().err


def test_a_reader_that_ends_does_not_change_what_the_check_found(home: Path) -> None:
    shard = next(path for path in (home / "store").iterdir() if path.suffix == ".npy")
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    assert run(f"{ETL} verify store --json a.json | true", PYTHONUNBUFFERED="1") == (1, "")
    assert json.loads((home / "a.json").read_text())["faults"]


def test_a_dash_is_standard_output_and_tables_are_then_on_standard_error(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "store", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["records"] == 1
    assert "stored after stage" in err
    assert [path.name for path in home.iterdir()] == ["store"]


def test_a_new_file_in_shared_memory_is_written_as_anywhere_else(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        assert main(["inspect", "store", "--json", f"{folder}/a.json"]) == 0
        assert json.loads(Path(folder, "a.json").read_text())["records"] == 1
        assert len(list(Path(folder).iterdir())) == 1


def test_a_dash_is_refused_where_a_path_is_needed_and_for_two_files_at_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--toml -: give the path of a file" in refusal(capsys, "tune", "store", "--toml", "-")
    both = refusal(capsys, "compare", "store", "--json", "-", "--trace", "-")
    assert "--json and --trace cannot both be standard output" in both


def test_a_file_that_fails_keeps_neither_the_other_files_nor_the_tables_from_being_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    written: list[str] = []

    def fail() -> None:
        raise OSError("the disk is full")

    def show(console: PlainConsole) -> None:
        console.print("a table")

    with pytest.raises(OSError, match="the disk is full"):
        deliver(fail, lambda: written.append("page"), fail, show=show)
    assert written == ["page"]
    out, err = capsys.readouterr()
    assert "a table" in out
    assert "the disk is full" in err  # the second error; the first one is raised


@pytest.mark.parametrize("error", [KeyError("x"), IndexError("x"), AttributeError("x"), TypeError("x")])
def test_a_defect_is_shown_as_one_with_its_traceback(
    home: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(inspect, "describe_store", fail)
    assert main(["inspect", "store", "--json", "a.json"]) == 1
    errors = capsys.readouterr().err
    assert "Traceback (most recent call last):" in errors
    assert f"etl: internal error, {type(error).__name__}: " in errors.splitlines()[-1]
