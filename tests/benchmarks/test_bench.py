"""`make bench` shows progress while asv is silent, and goes on after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from rich.console import Console

from benchmarks import bench
from benchmarks.cells import PROFILE_VARIABLE, STRATEGIES_VARIABLE, Cell, Profile
from benchmarks.journal import CELLS as KIND
from benchmarks.journal import JOURNAL_VARIABLE, CellMetrics, by_variant, open_rounds, remove_ended
from benchmarks.measuring.clock import EpochMetrics, Split
from tests import other_pythons
from tests.programs import output_of
from tests.scratch import Scratch

REQUIREMENTS = Path(bench.__file__).parents[1] / ".ci" / "asv.txt"
PROFILE = Profile("test", samples=32, image_size=32, rounds=3, seconds_per_figure=0.0, grid=False)
CELLS = [Cell("raw"), Cell("presaved"), Cell("presaved", dtype="float64")]
NOTHING = Split(0.0, 0.0)


def sample(wall: float) -> CellMetrics:
    """Return a sample with this wall time, of which half is the first batch."""
    epoch = EpochMetrics(1, 32, Split(wall / 2, wall / 2), NOTHING, NOTHING, NOTHING)
    return CellMetrics(1.0, epoch, 0.0, 0.0, 1, "a", 2.3, [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def without_asv(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """The folder of journals; the commands that `make bench` runs do nothing and succeed."""
    monkeypatch.setattr(bench, "JOURNALS", folder)
    monkeypatch.setattr(bench, "unsupported_reason", str)
    monkeypatch.setenv(PROFILE_VARIABLE, "full")
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=""))
    return folder


def interrupt(rounds: int, samples: int, failed: Cell | None = None, profile: Profile = PROFILE) -> None:
    """Write a journal of complete rounds, and of some samples of the next round."""
    with contextlib.suppress(KeyboardInterrupt), open_rounds(KIND, CELLS, profile) as journal:
        if failed is not None:
            journal.note_failure((failed, 0))
        for number in range(rounds + 1):
            for cell in [each for each in CELLS if each != failed][: None if number < rounds else samples]:
                journal.note((cell, number), sample(1.0 + number))
        raise KeyboardInterrupt


def test_complete_rounds_are_taken_over_after_an_interruption_and_others_are_not(folder: Path) -> None:
    interrupt(rounds=2, samples=1)
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        assert by_variant(journal.results) == {cell: {0: sample(1.0), 1: sample(2.0)} for cell in CELLS}
        for cell in CELLS:
            journal.note((cell, 2), sample(3.0))
    # asv loses them if it is interrupted before it ends, so they are kept.
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        assert {len(each) for each in by_variant(journal.results).values()} == {3}


def test_only_journals_of_this_run_that_have_ended_are_removed(folder: Path) -> None:
    interrupt(rounds=1, samples=1)
    (interrupted,) = folder.iterdir()
    with open_rounds(KIND, CELLS[:1], PROFILE):
        pass
    (ended,) = set(folder.iterdir()) - {interrupted}
    remove_ended(folder, since=ended.stat().st_mtime + 1)
    assert set(folder.iterdir()) == {interrupted, ended}
    remove_ended(folder, since=0)
    assert set(folder.iterdir()) == {interrupted}


def test_the_journal_of_a_later_suite_outlives_the_suites_before_it(
    monkeypatch: pytest.MonkeyPatch, without_asv: Path
) -> None:
    interrupt(rounds=2, samples=0)
    seen: list[int] = []

    def watch(*_: object) -> int:
        seen.append(len(list(without_asv.iterdir())))
        return 0

    monkeypatch.setattr(bench, "show_progress_of", watch)
    assert bench.main(["--profile", "full"]) == 0
    assert seen == [1] * (len(bench.SUITES["full"]) + 1)  # and asv publish


def test_a_cell_that_failed_is_tried_again_and_keeps_no_round_from_being_complete(folder: Path) -> None:
    interrupt(rounds=1, samples=1, failed=CELLS[1])
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        assert by_variant(journal.results) == {cell: {0: sample(1.0)} for cell in (CELLS[0], CELLS[2])}


@pytest.mark.parametrize(
    "other",
    [
        (CELLS[:2], PROFILE),
        (CELLS, dataclasses.replace(PROFILE, samples=64)),
        (CELLS, dataclasses.replace(PROFILE, name="other")),
        (CELLS, dataclasses.replace(PROFILE, rounds=2)),  # FAIR_ETL_ROUNDS
    ],
)
def test_samples_of_other_cells_or_another_profile_are_not_taken_over(
    folder: Path, other: tuple[list[Cell], Profile]
) -> None:
    interrupt(rounds=2, samples=0)
    with open_rounds(KIND, *other) as journal:
        assert by_variant(journal.results) == {}


def test_those_of_another_commit_are_not_either(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt(rounds=2, samples=0)
    monkeypatch.setenv("ASV_COMMIT", "f" * 40)
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        assert by_variant(journal.results) == {}


@pytest.mark.parametrize(
    ("function", "value"), [("platform.node", "another machine"), ("os.sched_getaffinity", {0, 1000})]
)
def test_those_of_another_machine_or_other_cpus_are_not_either(
    folder: Path, monkeypatch: pytest.MonkeyPatch, function: str, value: object
) -> None:
    interrupt(rounds=2, samples=0)
    monkeypatch.setattr(function, lambda *_: value)
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        assert by_variant(journal.results) == {}


def test_those_with_a_loader_of_a_user_whose_code_may_have_changed_are_not_either(folder: Path) -> None:
    profile = dataclasses.replace(PROFILE, functions={"mine": "my_loaders:dataloader"})
    interrupt(rounds=2, samples=0, profile=profile)
    with open_rounds(KIND, CELLS, profile) as journal:
        assert by_variant(journal.results) == {}


def test_the_full_profile_leaves_out_what_asv_has_but_not_the_suites_with_loaders_of_a_user(
    monkeypatch: pytest.MonkeyPatch, without_asv: Path
) -> None:
    left_out: list[bool] = []

    def watch(command: list[str], *_: object) -> int:
        left_out.append("--skip-existing-successful" in command)
        return 0

    monkeypatch.setattr(bench, "show_progress_of", watch)
    others = [True] * (len(bench.SUITES["full"]) - 1)
    for loaders, end_to_end in (("", True), ("mine=my_loaders:dataloader", False)):
        monkeypatch.setenv(STRATEGIES_VARIABLE, loaders)
        left_out.clear()
        assert bench.main(["--profile", "full"]) == 0
        assert left_out == [end_to_end, *others, False]  # the last one publishes


def test_a_preview_before_anything_is_published_says_what_publishes(tmp_path: Path) -> None:
    made = make(tmp_path, "preview")
    assert made.returncode == 2
    assert "Nothing is published here yet: make bench" in made.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["Makefile"]  # no environment was made for that


def test_without_a_folder_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JOURNAL_VARIABLE, raising=False)
    interrupt(rounds=2, samples=0)
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        assert by_variant(journal.results) == {}


def test_progress_counts_samples_and_shows_the_strategies_after_each_round(folder: Path) -> None:
    progress = bench.Progress(folder)
    assert progress() is None
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        for cell in CELLS[:2]:
            journal.note((cell, 0), sample(0.2))
        assert progress() is None
        assert progress.doing == "measured 2 of 9 samples of end_to_end"
        journal.note((CELLS[2], 0), sample(9.0))
        assert progress() == "round 1 of 3: an epoch takes 200 ms with raw, 200 ms with presaved"
        assert progress() is None  # nothing new


def test_progress_is_that_of_journals_written_since_it_began_even_by_a_slow_clock(folder: Path) -> None:
    interrupt(rounds=1, samples=0)
    (journal,) = folder.iterdir()
    progress = bench.Progress(folder)
    assert progress() is None
    interrupt(rounds=1, samples=0)
    os.utime(journal, (0, 0))
    assert progress() is not None


def test_a_cell_that_failed_keeps_no_round_from_being_shown(folder: Path) -> None:
    progress = bench.Progress(folder)
    with open_rounds(KIND, CELLS, PROFILE) as journal:
        journal.note_failure((CELLS[2], 0))
        for cell in CELLS[:2]:
            journal.note((cell, 0), sample(0.2))
        assert progress() == "round 1 of 3: an epoch takes 200 ms with raw, 200 ms with presaved"


def test_a_step_is_named_before_its_line_ends_and_while_it_is_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "EVERY_SECONDS", 0.2)
    monkeypatch.setattr(bench, "LOOK_SECONDS", 0.05)
    printed, named = io.StringIO(), tmp_path / "named"
    program = (
        "import os, sys, time; print('[50.00%] ·· Installing into virtualenv-py3.11-numpy2.2.6')\n"
        "print('===== table')\n"
        "sys.stdout.write('· Creating environments'); sys.stdout.flush()\n"
        f"while not os.path.exists({str(named)!r}): time.sleep(0.01)\n"
        "sys.exit(3)"
    )

    def progress() -> None:
        if "Creating environments: " in printed.getvalue():
            named.touch()

    console = Console(file=printed, width=200)
    assert bench.show_progress_of([sys.executable, "-c", program], "asv starts", progress, console) == 3
    lines = [line for line in printed.getvalue().splitlines() if not line.startswith("asv starts: ")]
    assert lines[:2] == ["[50.00%] ·· Installing into asv's environment", "===== table"]
    assert re.fullmatch(r"Creating environments: \d+ s", lines[2])
    assert lines[-1] == "· Creating environments"


def test_what_runs_outside_of_asv_s_environments_needs_the_packages_of_its_list_only() -> None:
    modules = [
        "benchmarks.bench",
        *(f"benchmarks.publish.{name}" for name in ("history_table", "front_page", "offline_pages")),
    ]
    code = f"import importlib, sys; [importlib.import_module(name) for name in {modules}]; print(*sys.modules)"
    owners = importlib.metadata.packages_distributions()
    used = {canonicalize_name(owner) for name in output_of("-c", code).split() for owner in owners.get(name, [])}
    listed = {name_of(line) for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")}
    needed = {name_of(requirement) for requirement in importlib.metadata.requires("fair-etl") or ()}
    assert used & {*needed, "torch"} <= listed | {"markupsafe"}  # which is part of jinja2
    assert listed <= needed  # so the Makefile need not install the list before the extras


def name_of(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def test_every_suite_is_in_the_full_profile() -> None:
    folder = Path(bench.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "    def track_" in path.read_text()}
    assert set(bench.SUITES["full"]) == {*modules, "settings"}


def test_an_interruption_ends_the_command_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = (
        "import pathlib, time\n"
        "try:\n    print('ready', flush=True); time.sleep(60)\n"
        f"except KeyboardInterrupt:\n    pathlib.Path({str(ended)!r}).write_text('')"
    )
    printed = io.StringIO()

    def progress() -> None:
        if "ready" in printed.getvalue():
            raise KeyboardInterrupt

    monkeypatch.setattr(bench, "LOOK_SECONDS", 0.05)
    with pytest.raises(KeyboardInterrupt):
        bench.show_progress_of([sys.executable, "-c", program], "starting", progress, Console(file=printed))
    assert ended.exists()


def test_a_process_that_the_command_leaves_behind_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(bench, "LOOK_SECONDS", 0.05)
    ended, printed = tmp_path / "ended", io.StringIO()
    left = f"import os, time\nwhile not os.path.exists({str(ended)!r}): time.sleep(0.01)"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {left!r}]); print('the last line')"
    try:
        bench.show_progress_of([sys.executable, "-c", program], "starting", lambda: None, Console(file=printed))
    finally:
        ended.touch()
    assert "the last line\n" in printed.getvalue()


def test_what_interrupted_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setenv(PROFILE_VARIABLE, "quick")
    monkeypatch.setenv(JOURNAL_VARIABLE, "")  # `main` sets it, and this restores it
    monkeypatch.setattr(bench, "show_progress_of", interrupted)
    monkeypatch.setattr(bench, "unsupported_reason", str)
    monkeypatch.setattr(bench.subprocess, "run", lambda *_, **__: None)
    assert bench.main([]) == bench.INTERRUPTED
    assert "goes on after the last complete round" in capsys.readouterr().out


@pytest.mark.parametrize("commits", ["v0.1^!", "main~2..main~1", "NEW"])
def test_the_table_is_that_of_the_newest_commit_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: str
) -> None:
    scratch = Scratch(tmp_path, tmp_path)
    scratch.git("init", "--quiet", "--initial-branch=main")
    hashes = []
    for number in range(3):
        (tmp_path / "file").write_text(str(number))
        hashes.append(scratch.commit(f"Commit {number}"))
    scratch.git("tag", "v0.1", hashes[0])
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    assert bench.find_newest(commits) == {"v0.1^!": hashes[0], "NEW": "HEAD"}.get(commits, hashes[1])


def test_the_profile_is_that_of_the_environment_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(PROFILE_VARIABLE, raising=False)
    assert bench.parse([]).profile == "quick"
    monkeypatch.setenv(PROFILE_VARIABLE, "full")
    assert bench.parse([]).profile == "full"
    assert bench.parse(["--profile", "quick"]).profile == "quick"
    monkeypatch.setenv(PROFILE_VARIABLE, "check")
    with pytest.raises(SystemExit, match="2"):
        bench.parse([])
    assert "FAIR_ETL_PROFILE='check': this command measures quick or full" in capsys.readouterr().err


def test_a_clone_without_the_branch_that_asv_publishes_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = Scratch(tmp_path, tmp_path)
    scratch.git("init", "--quiet", "--initial-branch=topic")
    shutil.copy(bench.ROOT / "asv.conf.json", tmp_path)
    scratch.commit("On another branch")
    monkeypatch.setenv(PROFILE_VARIABLE, "quick")
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    monkeypatch.setattr(bench, "show_progress_of", pytest.fail)
    assert bench.main([]) == 2
    assert "`git branch main origin/main`" in capsys.readouterr().err
    scratch.git("branch", "main")
    assert bench.unsupported_reason() == ""


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make on a copy of the Makefile, as if no other make ran this."""
    shutil.copy(bench.ROOT / "Makefile", folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("target", ["bench", "bench-full", "compare-commits", "power"])
def test_what_measures_commits_says_in_one_line_that_an_archive_has_none(tmp_path: Path, target: str) -> None:
    made = make(tmp_path, target)
    said, end = made.stderr.splitlines()
    assert said == "Commits are measured in a clone made by git; this folder is not one: clone the repository."
    assert (end.startswith("make: "), made.stdout, made.returncode) == (True, "", 2)


def test_a_clone_that_git_refuses_is_refused_in_the_words_of_git(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("no clone\n")
    made = make(tmp_path, "bench")
    assert made.stderr.startswith("fatal: invalid gitfile format")
    assert ("clone the repository" in made.stderr, made.stdout, made.returncode) == (False, "", 2)


def test_the_tests_run_in_a_folder_with_a_space_in_its_path(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    (folder / ".venv").mkdir(parents=True)
    (folder / ".venv" / "test").touch()
    checks = next(
        line for line in make(folder, "-n", "-o", ".venv/test", "test").stdout.splitlines() if "asv check" in line
    )
    assert shlex.split(checks)[-1] == f"existing:{folder}/.venv/bin/python"


@pytest.mark.parametrize("named", [(), ("PYTHON=python3",)])
def test_a_python_that_is_not_supported_is_refused_before_the_environment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...]
) -> None:
    for name in (".ci/asv.txt", ".ci/constraints.txt", "pyproject.toml", "python3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "python3").write_text('#!/bin/sh\necho "$@" >> called\nexit 1\n')
    (tmp_path / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = make(tmp_path, *named, ".venv/test")
    said, *_ = made.stderr.splitlines()
    assert said == "Python 3.11 to 3.13 is needed: name one, as in make test PYTHON=python3.13"
    assert (made.returncode, "venv" in (tmp_path / "called").read_text()) == (2, False)


def test_the_supported_pythons_are_those_of_the_package() -> None:
    text = (bench.ROOT / "pyproject.toml").read_text()
    versions = [(3, int(minor)) for minor in re.findall(r'"Programming Language :: Python :: 3\.(\d+)"', text)]
    oldest, newest = min(versions), max(versions)
    assert (oldest, newest) == (other_pythons.OLDEST, other_pythons.NEWEST)
    assert f"{oldest} <= sys.version_info[:2] <= {newest}" in (bench.ROOT / "Makefile").read_text()


def test_the_tests_with_other_pythons_leave_out_those_that_are_not_supported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minor in range(9, 16):
        (tmp_path / f"python3.{minor}").write_text("#!/bin/sh\n")
        (tmp_path / f"python3.{minor}").chmod(0o755)
    for variable in ("PATH", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    expected = [(3, minor) for minor in (11, 12, 13) if (3, minor) != sys.version_info[:2]]
    assert list(other_pythons.find_pythons()) == expected


def test_no_installation_goes_to_the_user_s_folder_whatever_pip_s_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "print.mk").write_text("include Makefile\nprint:\n\t@echo $$PIP_USER\n")
    assert make(tmp_path, "-f", "print.mk", "print").stdout == "0\n"


def test_another_python_that_is_named_makes_the_environment_anew(tmp_path: Path) -> None:
    for name in (".ci/asv.txt", ".ci/constraints.txt", "pyproject.toml", "python", ".venv/test"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "python").write_text("#!/bin/sh\necho 3.0\n")
    (tmp_path / "python").chmod(0o755)
    named = ("-n", "PYTHON=./python", ".venv/test")
    assert "./python -m venv --clear .venv" in make(tmp_path, *named).stdout.splitlines()
    assert "pip install" not in make(tmp_path, "-n", ".venv/test").stdout
    (tmp_path / ".venv/lib/python3.0").mkdir(parents=True)
    (tmp_path / ".venv/test").touch()
    assert "pip install" not in make(tmp_path, *named).stdout
