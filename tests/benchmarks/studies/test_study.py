"""A study goes on where it was interrupted, takes no results of another one, and says what failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import etl
from benchmarks.journal import Kind
from benchmarks.measuring.statistics import Outcome
from benchmarks.measuring.values import JsonValues
from benchmarks.studies import study
from benchmarks.studies.study import INTERRUPTED, Plan, run_study, study_parser


@dataclass(frozen=True)
class Square(JsonValues):
    """A square, with some outcome."""

    value: int
    outcome: Outcome


KIND: Kind[tuple[str, int], Square] = Kind("squares", tuple[str, int], Square)
PLAN = Plan("how large?", "squares", "three", "none", "when all are there", "none", "the value")
WANTED = [("a", 1), ("a", 2), ("b", 3)]


def header(**changed: Any) -> str:
    """Return the first line of the journal."""
    return json.dumps({"experiment": "squares", "plan": PLAN.to_json(), "size": 3, **changed}) + "\n"


def square(key: tuple[str, int]) -> Square:
    return Square(key[1] ** 2, Outcome.SAME)


def run(path: Path, measure: Callable[[Any], Square] = square, **header: Any) -> tuple[int, list[int]]:
    """Return the exit code, and the values that were shown."""
    shown: list[int] = []

    def show(results: dict[tuple[str, int], Square], _: Console) -> None:
        assert all(each.outcome is Outcome.SAME for each in results.values())
        shown.extend(each.value for each in results.values())

    return run_study(KIND, path, PLAN, {"size": 3, **header}, WANTED, measure, show), shown


def test_a_study_shows_what_it_measured_and_keeps_it(tmp_path: Path) -> None:
    assert run(tmp_path / "study.jsonl") == (0, [1, 4, 9])
    assert len((tmp_path / "study.jsonl").read_text().splitlines()) == 5


def test_what_an_interrupted_study_has_measured_is_not_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, measured = tmp_path / "new folder" / "study.jsonl", []

    def interrupt(key: tuple[str, int]) -> Square:
        if key == WANTED[1]:
            raise KeyboardInterrupt
        return square(key)

    def count(key: tuple[str, int]) -> Square:
        measured.append(key)
        return square(key)

    assert run(path, interrupt) == (INTERRUPTED, [])
    assert "the same command continues" in capsys.readouterr().err
    with path.open("a") as file:
        file.write('{"key": ["a", 2], "resu')  # cut off while it was written
    assert run(path, count) == (0, [1, 4, 9])
    assert measured == WANTED[1:]
    assert "2 of 2, 0 min left: ('b', 3)" in capsys.readouterr().err
    results = [{"environment"}, {"key", "result", "at"}]
    assert [set(json.loads(line)) for line in path.read_text().splitlines()][1:] == [*results, *results, results[1]]
    assert run(path, pytest.fail) == (0, [1, 4, 9])


def test_results_of_another_machine_or_version_are_shown_but_nothing_is_added_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.jsonl"
    assert run(path) == (0, [1, 4, 9])
    assert "Nothing was measured" not in capsys.readouterr().err
    header, first, *results = path.read_text().splitlines(keepends=True)
    changes = (("machine", "processor", "an abacus"), ("machine", "cpus", 10_000), ("versions", "numpy", "0.0.7"))
    for part, name, value in changes:
        noted = json.loads(first)
        noted["environment"][part][name] = value
        text = "".join([header, json.dumps(noted) + "\n", *results])
        path.write_text(text)
        assert run(path, pytest.fail) == (0, [1, 4, 9])
        assert f"Nothing was measured: {path} had all results" in capsys.readouterr().err
        path.write_text(text.removesuffix(results[-1]))
        assert run(path, pytest.fail) == (2, [])
        assert str(value) in capsys.readouterr().err
        assert path.read_text() == text.removesuffix(results[-1])


def test_a_study_describes_its_machine_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[dict[str, Any]] = []
    describe_machine = etl.doctor.describe_machine

    def describe() -> dict[str, Any]:
        described.append(describe_machine())
        return described[-1]

    monkeypatch.setattr(etl.doctor, "describe_machine", describe)
    assert run(tmp_path / "study.jsonl") == (0, [1, 4, 9])
    assert len(described) == 1


def test_details_of_machines_and_this_projects_own_version_do_not_end_a_study(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    assert run(path) == (0, [1, 4, 9])
    header, first, result, *_ = path.read_text().splitlines(keepends=True)
    noted = json.loads(first)
    noted["environment"]["machine"] |= {"frequency_mhz": [1.0], "memory_nbytes": 1}
    noted["environment"]["versions"] |= {"fair-etl": "0.0.7", "instruments": "others"}
    path.write_text("".join([header, json.dumps(noted) + "\n", result]))
    assert run(path) == (0, [1, 4, 9])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (header(size=4), "was measured with size 4; name another file"),
        (header(experiment="cubes"), "was measured with experiment cubes; name another file"),
        ("[]\n", "holds no results of this experiment"),
        ("no JSON\n", "holds no results of this experiment"),
        (header() + '{"key": ["a", 1], "result": {"side": 2}}\n', "holds no results"),
    ],
)
def test_results_of_another_study_are_refused_and_kept(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "study.jsonl"
    path.write_text(text)
    assert run(path) == (2, [])
    assert said in " ".join(capsys.readouterr().err.split())
    assert path.read_text() == text


def test_a_failure_ends_a_study_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(key: object) -> Square:
        raise RuntimeError(f"{key} is not square")

    assert run(tmp_path / "study.jsonl", fail) == (2, [])
    assert "('a', 1) is not square" in capsys.readouterr().err
    assert not (tmp_path / "study.jsonl").exists()


def test_without_a_clone_or_without_git_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(study, "ROOT", tmp_path)
        assert study.describe_environment()["commit"] == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert study.describe_environment()["commit"] == "unknown"


def test_every_study_has_its_numbers_and_a_journal_as_options() -> None:
    options = study_parser("benchmarks.studies.squares", "Count squares, 95%.\n", image_size=64).parse_args([])
    assert vars(options) == {"image_size": 64, "samples": None}
    with pytest.raises(SystemExit):
        study_parser("benchmarks.studies.squares", None, runs=1).parse_args(["--runs", "-1"])
