"""Every measurement comes from a fresh process; a failure does not affect the measurements after it."""

from __future__ import annotations

import os
import signal
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from etl.comparison.request.candidates import Candidate
from etl.comparison.request.settings import Settings
from etl.comparison.run import measuring_processes as processes_module
from etl.comparison.run.measuring_processes import InputError, MeasuringProcesses, own_folders
from etl.comparison.run.workload import Workload
from etl.measuring.layout import PADDING_VARIABLE
from etl.measuring.processes import MeasurementError
from etl.measuring.sample import Recipe
from tests.comparison_workloads import make_workload
from tests.user_modules import user_module

RAW = Candidate("raw")
# A user's model, which does what a file says before it is made.
MODULE = """
import os, pathlib, signal, sys, threading, time

import torch

FAULT = pathlib.Path(__file__).with_name("fault")

def make(input_shape, outputs):
    fault = FAULT.read_text() if FAULT.exists() else ""
    with FAULT.with_name("processes").open("a") as processes:
        print(os.getpid(), file=processes)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "error":
        raise SystemExit("the model went away")
    if fault == "input":
        raise TypeError("three layers, not four")
    if fault == "hang":
        FAULT.with_name("hangs").touch()
        time.sleep(600)
    print("what a model prints is no answer")
    return torch.nn.Linear(input_shape[0], outputs)
"""


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return the server's working folder; calling it with a name chooses the fault of the model."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "own_model.py").write_text(MODULE)
    before = Path.cwd()

    def make_fault(fault: str) -> Path:
        (folder / "fault").write_text(fault)
        return folder

    os.chdir(folder)
    yield make_fault
    os.chdir(before)


@pytest.fixture(scope="module")
def processes(faults: Callable[[str], Path]) -> Iterator[MeasuringProcesses]:
    """Yield one server for the tests that leave it running."""
    workload = make_workload(faults(""), model="own_model:make")
    with MeasuringProcesses(workload, [min(os.sched_getaffinity(0))]) as made:
        yield made
    assert servers() == []


def servers() -> list[psutil.Process]:
    """Return the running servers."""
    return [child for child in psutil.Process().children() if "etl.comparison.worker.main:prepare" in child.cmdline()]


def assert_measures(processes: MeasuringProcesses, faults: Callable[[str], Path]) -> None:
    faults("")
    seen = processes.check(RAW, 1, trains=True)
    content = seen.content
    assert (content.samples, len(content.digests), len(set(content.records))) == (200, 20, 200)
    assert seen.peak_memory > 10e6


def test_each_measurement_has_a_process_of_its_own(
    processes: MeasuringProcesses, faults: Callable[[str], Path]
) -> None:
    assert_measures(processes, faults)
    (server,) = servers()
    made_in = Path("processes")
    made_in.write_text("")
    one, other = (processes.check(RAW, 1, trains=True) for _ in range(2))
    assert one.content.signatures != other.content.signatures  # each has a file of its own
    assert one.content == replace(other.content, signatures=one.content.signatures)
    assert (one.score, one.weights) == (other.score, other.weights)
    for candidate, with_etl_alone in ((RAW, True), (Candidate("async-raw"), False)):
        sample = processes.measure(candidate, Recipe(etl_alone=with_etl_alone))
        assert (sample.epoch.samples, sample.etl_alone is not None) == (200, with_etl_alone)
        assert sample.affinity == [min(os.sched_getaffinity(0))]
        assert server.children() == []
    numbers = [int(each) for each in made_in.read_text().split()]
    assert len(set(numbers)) == len(numbers) == 4
    assert server.pid not in numbers
    assert servers() == [server]


def test_a_new_server_has_another_layout(processes: MeasuringProcesses, faults: Callable[[str], Path]) -> None:
    def layout(server: psutil.Process) -> tuple[str, str]:
        environment = server.environ()
        return environment["PYTHONHASHSEED"], environment[PADDING_VARIABLE]

    assert_measures(processes, faults)
    (server,) = servers()
    before = layout(server)
    processes.renew()
    assert not server.is_running()
    (server,) = servers()
    assert layout(server) != before


@pytest.mark.slow
def test_a_run_in_which_nothing_is_wrong_ends_without_an_alarm(photographs: Path, tmp_path: Path) -> None:
    # Loading OpenCV takes place after the number of threads was set, and gives it one.
    settings = Settings(str(photographs), decoder="turbo", size=32, batch_size=8, budget_seconds=2.0)
    workload = Workload(settings, tmp_path, 2)
    workload.plain_compute_threads = 2
    with MeasuringProcesses(workload, sorted(os.sched_getaffinity(0))[:2]) as processes:
        audits = {each.setting: each for each in processes.measure(RAW, Recipe(etl_alone=True)).runtime}
    assert (audits["threads"].requested, "opencv 1" in audits["threads"].in_force) == ("2", True)
    assert {name: each.alarm for name, each in audits.items()} == {"heap": "", "gc": "", "threads": ""}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        ("killed", MeasurementError, "the process of raw was killed by signal 9"),
        ("error", MeasurementError, "raw cannot be measured: SystemExit: the model went away"),
        ("input", InputError, "--model own_model:make: TypeError: three layers, not four"),
    ],
)
def test_a_failure_is_an_error_that_says_what_happened(
    processes: MeasuringProcesses, faults: Callable[[str], Path], fault: str, error: type[Exception], message: str
) -> None:
    faults(fault)
    with pytest.raises(error, match=message) as raised:
        processes.check(RAW, 1, trains=True)
    assert fault != "error" or "own_model.py" in raised.value.text  # type: ignore[attr-defined]
    assert servers() == []


def test_after_a_failure_the_next_measurement_is_none_even_if_the_server_is_killed(
    processes: MeasuringProcesses, faults: Callable[[str], Path]
) -> None:
    assert_measures(processes, faults)
    (server,) = servers()
    server.kill()
    while server.status() != psutil.STATUS_ZOMBIE:  # and not waited for, which is its parent's to do
        threading.Event().wait(0.01)
    with pytest.raises(MeasurementError, match="the process of raw was killed by signal 9"):
        processes.check(RAW, 1, trains=True)
    assert_measures(processes, faults)


def test_an_interrupted_request_leaves_no_answer_for_the_next_and_no_process(
    processes: MeasuringProcesses, faults: Callable[[str], Path]
) -> None:
    assert_measures(processes, faults)
    folder = faults("hang")
    (server,) = servers()

    def interrupt() -> None:
        while not (folder / "hangs").exists():
            threading.Event().wait(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    started = threading.Thread(target=interrupt)
    started.start()
    with pytest.raises(KeyboardInterrupt):
        processes.check(RAW, 1, trains=True)
    started.join()
    assert not server.is_running()
    assert_measures(processes, faults)


def test_one_that_does_not_answer_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = servers()
    for name, seconds in (("ANSWER_SECONDS", 0.01), ("MIN_FOREIGN_SECONDS", 0.0), ("FOREIGN_BUDGETS", 0.0)):
        monkeypatch.setattr(processes_module, name, seconds)
    with MeasuringProcesses(make_workload(tmp_path), [0]) as processes:
        message = r"the comparison gave no answer for 0\.01 s.*; a higher --budget allows more time"
        with pytest.raises(MeasurementError, match=message):
            processes.profile()
        assert servers() == before


def test_a_long_comparison_waits_longer_for_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes_module, "ANSWER_SECONDS", 0.01)  # as if it took hours
    workload = make_workload(tmp_path, compute="simulated:1ms", budget_seconds=60.0)
    with MeasuringProcesses(workload, [min(os.sched_getaffinity(0))]) as processes:
        assert processes.load(RAW).etl_alone.total > 0


@pytest.mark.slow
def test_a_server_that_an_import_left_a_thread_in_cannot_fork_but_still_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, threading\n"
        "if 'etl.comparison.worker.main:prepare' in sys.orig_argv:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), root]))
    before = servers()
    with MeasuringProcesses(make_workload(tmp_path, model="mlp"), sorted(os.sched_getaffinity(0))[:1]) as processes:
        first = processes.check(RAW, 1, trains=True)
        assert servers() == before  # a process that has computed is not used again
        second = processes.check(RAW, 1, trains=True)
    assert first.content == replace(second.content, signatures=first.content.signatures)
    assert first.content.samples == 200


RECORDS = """
    import numpy as np

    def dataset():
        return [{"features": np.ones(1 << 20, np.float32), "label": number % 2} for number in range(20)]
"""


def test_servers_that_hold_the_records_in_memory_are_started_ahead_as_far_as_they_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with user_module(tmp_path, "my_records", RECORDS):
        settings = Settings("my_records:dataset", strategies=("raw",), batch_size=10, compute="simulated:1ms")
        workload = Workload(settings, tmp_path, 1)
        with MeasuringProcesses(workload, [min(os.sched_getaffinity(0))]) as processes:
            processes.load(RAW)
            nbytes, before = processes._servers.nbytes, len(servers())
            assert nbytes > 20 * (4 << 20)
            monkeypatch.setattr(processes_module, "SERVER_NBYTES", 1)
            monkeypatch.setattr(processes_module, "available_nbytes", lambda: 5 * nbytes)  # of which half may be taken
            processes.start_ahead(8)
            assert len(servers()) == before + 2


def test_a_source_that_the_server_cannot_open_is_an_error_at_its_start(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    Path(workload.settings.source).unlink()
    with MeasuringProcesses(workload, [0]) as processes, pytest.raises(InputError, match=r"table\.csv"):
        processes.profile()


NO_TORCH = """
import sys

import etl

def check(record):
    assert "torch" not in sys.modules
    return record

def pipeline():
    return etl.Pipeline([check])
"""


def test_simulated_compute_does_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_torch.py").write_text(NO_TORCH)
    monkeypatch.chdir(tmp_path)
    workload = make_workload(tmp_path, pipeline="no_torch:pipeline", compute="simulated:1ms", budget_seconds=2.0)
    with MeasuringProcesses(workload, sorted(os.sched_getaffinity(0))[:2]) as processes:
        assert processes.profile().device == "none"
        assert processes.measure(RAW, Recipe(etl_alone=True)).torch_threads == 0


LATE_LIBRARY = """
import os

import etl

def check(record):
    # A library such as pyarrow reads this when it is first used.
    assert os.environ["OMP_NUM_THREADS"] == "2", os.environ["OMP_NUM_THREADS"]
    return record

def pipeline():
    return etl.Pipeline([check])
"""


def test_libraries_that_are_loaded_late_beside_a_strategy_have_as_many_threads_as_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_library.py").write_text(LATE_LIBRARY)
    monkeypatch.chdir(tmp_path)
    workload = make_workload(tmp_path, pipeline="late_library:pipeline", compute="simulated:1ms", budget_seconds=2.0)
    assert workload.threads(RAW).compute == 2
    with MeasuringProcesses(workload, sorted(os.sched_getaffinity(0))[:2]) as processes:
        assert processes.measure(RAW, Recipe()).epoch.samples == 200


TRIED = """
import os, pathlib

import numpy as np

def note(name):
    with open("notes", "a") as notes:
        print(name, os.getpid(), file=notes)

class Plain:
    def __iter__(self):
        note("load")
        return iter([(np.zeros((10, 4), np.float32), np.zeros(10, int))] * 20)

class Prepared(Plain):
    @staticmethod
    def prepare(folder):
        note("prepare")
        pathlib.Path(folder, "records").write_text("all")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "noted"), [("Plain", ["load"]), ("Prepared", ["prepare", "load"])])
def test_what_a_loader_prepares_is_prepared_in_a_process_of_its_own(
    name: str, noted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tried_loaders.py").write_text(TRIED)
    monkeypatch.chdir(tmp_path)
    workload = make_workload(tmp_path, strategies=(f"mine=tried_loaders:{name}",), compute="simulated:1ms")
    with MeasuringProcesses(workload, sorted(os.sched_getaffinity(0))[:2]) as processes:
        prepared, tried = processes.try_loader(workload.candidates()[0], 0.5)
    assert (prepared and prepared.nbytes) == (3 if name == "Prepared" else None)
    assert (tried.batches, tried.samples) == (20, 200)
    names, numbers = zip(*map(str.split, Path("notes").read_text().splitlines()), strict=True)
    assert list(names) == noted
    assert len(set(numbers)) == len(noted)


IMPORTED = """
import os

import numpy as np

with open("imports", "a") as imports:
    print(os.getpid(), __name__, file=imports)

def load(batch_size):
    return [(np.zeros((batch_size, 4), np.float32), np.zeros(batch_size, int))] * 20
"""


@pytest.mark.slow
def test_the_common_server_has_imported_the_modules_of_all_loaders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("one", "other")
    for name in names:
        (tmp_path / f"{name}_loader.py").write_text(IMPORTED)
    monkeypatch.chdir(tmp_path)
    strategies = tuple(f"{name}={name}_loader:load" for name in names)
    workload = make_workload(tmp_path, strategies=strategies, compute="simulated:1ms")
    before = servers()
    with MeasuringProcesses(workload, sorted(os.sched_getaffinity(0))[:2]) as processes:
        for candidate in workload.candidates():
            _, workload.tried[candidate] = processes.try_loader(candidate, 0.5)
        processes.load(RAW)
        (server,) = (each for each in servers() if each not in before)
        imports = [line.split() for line in Path("imports").read_text().splitlines()]
    assert {module for pid, module in imports if int(pid) == server.pid} == {f"{name}_loader" for name in names}


def test_another_python_searches_the_folders_of_the_user_and_no_packages_of_this_one(tmp_path: Path) -> None:
    user = [str(tmp_path), str(tmp_path / "modules")]
    site = [sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(tmp_path / "lib" / "site-packages")]
    assert own_folders([user[0], *site, user[1]]) == user
