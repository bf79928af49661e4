"""A loader that misbehaves costs one sentence of the report: the others are measured, and nothing is left behind."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import etl
from etl.comparison.compare import run_comparison
from etl.comparison.request.settings import Settings
from etl.comparison.run import measuring_processes as processes_module
from etl.comparison.show.report import Report
from tests.comparison_workloads import broken_rules, write_table

pytestmark = pytest.mark.slow

LOADERS = Path(__file__).with_name("misbehaving_loaders.py")
ROWS, BATCH_SIZE = 50, 10
# All processes below a test have this environment variable.
TEST = "ETL_TEST_OF_MISBEHAVING_LOADERS"
LIMIT_SECONDS = 120
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - of the system
# Longer than any loader here takes that does not hang.
ANSWER_SECONDS = 10.0
# They can be measured.
MISBEHAVING = ["loses_records", "changes_shapes", "prints", "leaves_a_worker", "leaves_a_daemon"]
# How the report tells of each loader, in `LOADERS` or a module of its own; "PLACE" is the line with its comment.
FIRST = "when it was first tried"
SENTENCES = {
    "raises_at_once": rf"Broken: the disk is on fire, at PLACE \(__iter__\), {FIRST}",
    "raises_in_the_middle": rf"ValueError: 3.jpg is no image, at PLACE \(load_image\), {FIRST}",
    "raises_without_a_message": rf"AssertionError, at PLACE \(__iter__\), {FIRST}",
    "exits": rf"SystemExit: no more, at PLACE \(__iter__\), {FIRST}",
    "ends_the_process": rf"its process ended with exit code 0, {FIRST}",
    "yields_nothing": rf"its first epoch has no batches, {FIRST}",
    "returns_nothing": rf"returns_nothing returned a NoneType, not an iterable of batches, {FIRST}",
    "is_exhausted": (
        "its second epoch has no batches: return an object that begins another epoch each time it is iterated, when "
        "its epoch was checked"
    ),
    "segfaults": rf"its process was killed by signal 11 \(segmentation fault\), at PLACE \(crash\), {FIRST}",
    "hangs_when_closed": (
        rf"its process gave no answer for {ANSWER_SECONDS:g} s, at PLACE \(close\); "
        f"a higher --budget allows more time, {FIRST}"
    ),
    "holds_on": rf"its process was killed by signal 9 \(out of memory\?\), {FIRST}",
    "reads_input": rf"EOFError: EOF when reading a line, at PLACE \(__iter__\), {FIRST}",
    "closes_everything": rf"its process .*Bad file descriptor, {FIRST}",
    "allocates": rf"MemoryError: Unable to allocate 2.00 GiB .*, at PLACE \(__iter__\), {FIRST}",
}
# Of the loader `load` in each module.
IMPORTED = {
    "missing": rf"--strategies missing:load: ModuleNotFoundError: No module named 'missing'; .*, {FIRST}",
    "broken": rf"--strategies broken:load: ZeroDivisionError: .* by zero; .*, at broken.py:1 .*, {FIRST}",
    "waiting": (
        rf"its process gave no answer for {ANSWER_SECONDS:g} s, at waiting.py:2 .*; a higher --budget .*, {FIRST}"
    ),
}
MODULES = {
    "broken": "1 / 0\n",
    "waiting": "import time\ntime.sleep(600)\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with modules of loaders; afterwards, check that nothing is left behind."""
    shutil.copy(LOADERS, tmp_path / "my_loaders.py")
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    write_table(tmp_path, ROWS)
    monkeypatch.setenv(TEST, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    # A short path, because those of sockets are limited.
    with tempfile.TemporaryDirectory() as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        monkeypatch.setenv("TMPDIR", temporary)
        yield tmp_path
        assert running(tmp_path) == []
        assert list(Path(temporary).iterdir()) == []
        assert list(SHARED_MEMORY.glob(f"holds-on-{tmp_path.name}-*")) == []


def running(folder: Path) -> list[str]:
    """Return the command lines of the processes that a test in `folder` has started, directly or not."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"{TEST}={folder}".encode() in (each / "environ").read_bytes().split(b"\0"):
                found.append((each / "cmdline").read_text())
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def compare(*strategies: str, rounds: int, **chosen: Any) -> Report:
    settings = Settings(
        source="table.csv",
        strategies=strategies,
        table_options={"label": "kind"},
        compute="simulated:1ms",
        batch_size=BATCH_SIZE,
        rounds=rounds,
        budget_seconds=20.0,
        **chosen,
    )
    return run_comparison(settings)


def named(name: str) -> str:
    return f"{name}=my_loaders:{name}"


def note(report: Report, name: str) -> str:
    """Return the only note on the strategy `name`."""
    (found,) = [each for each in report.notes if each.startswith(f"{name} ")]
    return found


def place(name: str) -> str:
    """Return the line of the loaders that is marked as the place where `name` misbehaves."""
    lines = enumerate(LOADERS.read_text().splitlines(), start=1)
    return next((f"my_loaders.py:{number}" for number, line in lines if line.endswith(f"# place: {name}")), "")


def assert_failed(report: Report, name: str, sentence: str) -> None:
    expected = rf"{name} failed: {sentence.replace('PLACE', re.escape(place(name)))}"
    assert re.fullmatch(expected, note(report, name)), note(report, name)


def disqualified(report: Report) -> dict[str, list[str]]:
    broken = {each.name: broken_rules(each.disqualified) for each in report.strategies}
    return {name: rules for name, rules in broken.items() if rules}


def pythons(*strategies: str) -> dict[str, str]:
    """Let `strategies` run in "another" Python: it starts fast, since it imports nothing but the loader."""
    return {each.partition("=")[0]: sys.executable for each in strategies}


def test_loaders_that_fail_at_once_are_named_and_the_others_are_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes_module, "MIN_FOREIGN_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr(processes_module, "FOREIGN_BUDGETS", 0.0)
    failing = [*map(named, SENTENCES), *(f"{name}={name}:load" for name in IMPORTED)]
    user_loaders = [*failing, named("good"), named("never_ends")]
    report = compare(*user_loaders, rounds=1, pythons=pythons(*user_loaders), epoch_batches=ROWS // BATCH_SIZE)
    for name, sentence in {**SENTENCES, **IMPORTED}.items():
        assert_failed(report, name, sentence)
    assert [each.name for each in report.strategies] == ["good", "never_ends"]
    assert disqualified(report) == {}
    assert all(each.rounds[0].round == 0 for each in report.strategies)
    assert "good is the reference instead of raises_at_once." in report.notes


def test_a_loader_that_fails_in_a_later_round_has_no_result(folder: Path) -> None:
    strategies = list(map(named, ["fails_later", "good"]))
    report = compare(*strategies, rounds=8)
    assert_failed(report, "fails_later", r"Broken: that was too much, at PLACE \(__iter__\), in round [2-8]")
    assert "good is the reference instead of fails_later." in report.notes
    assert [(each.name, len(each.rounds)) for each in report.strategies] == [("good", 8)]


def test_what_is_wrong_with_a_loader_that_can_be_measured_is_in_the_report(folder: Path) -> None:
    strategies = list(map(named, ["good", "never_ends", *MISBEHAVING]))
    report = compare(*strategies, rounds=1, pythons=pythons(named("prints"), named("leaves_a_worker")))
    assert [each.name for each in report.strategies] == ["good", *MISBEHAVING]
    assert disqualified(report).keys() == {"loses_records", "changes_shapes"}, disqualified(report)
    assert_failed(report, "never_ends", "its epoch does not end: .*--epoch-batches N .*, when its epoch was checked")
    printed = note(report, "prints")
    assert printed == (
        "prints printed to standard output, which takes time and is not shown: 30 lines, the first of them: "
        '{"answer": {}}'
    )
    assert re.match(
        "leaves_a_worker left 2 processes running when it was closed, .* # left$", note(report, "leaves_a_worker")
    )
    assert "leaves_a_daemon left 2 processes" in note(report, "leaves_a_daemon")


def test_processes_that_are_forked_from_the_common_server_are_as_robust(folder: Path) -> None:
    failing = ["ends_the_process", "segfaults", "holds_on"]
    report = compare("raw", *map(named, [*failing, "good", "moves", "sets_threads", "needs_its_cpus"]), rounds=1)
    for name in failing:
        assert_failed(report, name, SENTENCES[name])
    assert [each.name for each in report.strategies] == ["raw", "good", "moves", "sets_threads", "needs_its_cpus"]
    assert disqualified(report).keys() == {"moves"}
    assert re.fullmatch(r"sets_threads set the compute threads to 7; it was given \d+\.", note(report, "sets_threads"))


@pytest.mark.parametrize("name", ["hangs_in_the_try", "hangs_in_a_later_round"])
def test_an_interruption_ends_a_loader_that_hangs(name: str, folder: Path) -> None:
    options = ["--label", "kind", "--compute", "simulated:1ms", "--rounds", "8", "--python", f"{name}={sys.executable}"]
    strategies = ["--strategies", f"{named('good')},{named(name)}", "--python", f"good={sys.executable}"]
    command = [sys.executable, "-m", "etl", "compare", "--quiet", "table.csv", *strategies, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + LIMIT_SECONDS
    while not (folder / "waits").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=LIMIT_SECONDS)
    if name == "hangs_in_the_try":
        assert (process.returncode, printed) == (130, "")
    else:
        assert (process.returncode, errors) == (0, "")
        assert re.search(r"STOPPED EARLY, after [1-7] rounds?", printed)


def test_a_function_that_cannot_be_carried_to_another_process_is_named(folder: Path) -> None:
    lock = threading.Lock()

    def locked(path: str) -> list[object]:
        with lock:
            return []

    message = "locked cannot be carried to another process: TypeError: cannot pickle '_thread.lock' object"
    with pytest.raises(ValueError, match=message):
        etl.compare("table.csv", ["raw", locked])
