"""A rank, the program or torchrun's agent is killed at a random moment: one error or the right result, nothing left."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import current_process
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from tests.torture import rank_training as training
from tests.torture.attempts import PROCESSES
from tests.torture.conftest import Tally

# Attempts with `--torture`; otherwise one of each test.
ATTEMPTS = {"lost_rank": 45, "restarted": 25, "ended_program": 30}
LIMIT_SECONDS = 120.0
# Far above what any moment takes: a rank that hangs before it fails one test, not all by the limit of faulthandler.
MOMENT_SECONDS = 600.0
# From a signal to the end of all processes. A rank that is stopped does not end by SIGTERM: torch's agent waits for
# 30 s, and then kills it. Ranks whose agent was killed look for it for 30 s.
END_SECONDS = 90.0
STOPPED_TIMEOUT, TIMEOUT = 8.0, 60.0
RUNS = {"fit_parallel": partial(training.run_fit_parallel, timeout=TIMEOUT), "torchrun": training.run_torchrun}
LOOK_SECONDS = 0.01
# What to wait for, how often it is noted by a rank, and the seconds that are drawn from.
STARTED = "started"
MOMENTS = [
    *4 * [(STARTED, 1, 4.0)],
    (training.JOINED, 1, 0.05),
    (training.TRAINED, training.ITERATIONS, 2 * training.STEP_SECONDS),
    (training.SAVING, training.ITERATIONS, 0.02),
    (training.EVALUATING, training.EPOCHS, 0.05),
    (training.ENDED, 1, 0.5),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each attempt a test of its own, which can be run again by its number."""
    for name, count in ATTEMPTS.items():
        if name in metafunc.fixturenames:
            numbers = range(count if metafunc.config.getoption("--torture") else 1)
            metafunc.parametrize(name, [random.Random(f"{name} {number}") for number in numbers], ids=map(str, numbers))


@dataclass(frozen=True)
class Moment:
    """Some seconds after a rank has noted an event for the `times`-th time."""

    rank: int
    event: str
    times: int
    seconds: float

    @classmethod
    def draw(cls, drawn: random.Random) -> Moment:
        event, most, seconds = drawn.choice(MOMENTS)
        return cls(drawn.randrange(training.RANKS), event, drawn.randint(1, most), drawn.uniform(0, seconds))

    def wait(self, folder: Path, program: Program) -> None:
        """Return at that moment, or when the program has ended; fail if neither happens."""
        until = time.monotonic() + MOMENT_SECONDS
        while program.process.is_alive() and not self._has_come(folder, program):
            if time.monotonic() >= until:
                last = [training.notes(folder, rank)[-1:] for rank in range(training.RANKS)]
                pytest.fail(f"{self} has not come in {MOMENT_SECONDS:.0f} s; last notes of the ranks: {last}")
            time.sleep(LOOK_SECONDS)
        program.process.join(self.seconds)

    def _has_come(self, folder: Path, program: Program) -> bool:
        if self.event == STARTED:
            return program.rank(self.rank) is not None
        noted = training.notes(folder, 0 if self.event == training.SAVING else self.rank)  # rank 0 saves for all
        return sum(event == self.event for event, *_ in noted) >= self.times


class Program:
    """A program that trains, and the processes that it starts."""

    def __init__(self, run: Callable[..., None], folder: Path, **options: Any) -> None:
        self._folder = folder
        self.process: ForkServerProcess = PROCESSES.Process(target=partial(run, folder, **options))
        self.process.start()

    def rank(self, rank: int) -> psutil.Process | None:
        """Return the process of a rank, if it runs."""
        return next(iter(self._marked(RANK=str(rank))), None)

    def others(self) -> list[psutil.Process]:
        """Return the running processes that the program has started, directly or not."""
        return self._marked()

    def _marked(self, **wanted: str) -> list[psutil.Process]:
        wanted[training.MARK] = str(self._folder)
        found = []
        for each in psutil.process_iter():
            try:
                if wanted.items() <= each.environ().items() and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
            except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
                continue
        return found

    def wait(self, seconds: float) -> None:
        """Return when all processes have ended, or fail after some seconds."""
        until = time.monotonic() + seconds
        self.process.join(seconds)
        assert not self.process.is_alive(), f"the program runs {seconds} s later, with {self.others()}"
        while (others := self.others()) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        assert not others

    def end(self) -> None:
        """Kill what is left."""
        self.process.kill()
        for each in self.others():
            each.kill()
        self.process.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an attempt."""
    return new_folder(tmp_path, "attempt")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    """Parameters of a model whose training nothing disturbs."""
    folder = new_folder(tmp_path_factory.mktemp("undisturbed"), "training")
    finish(folder)
    return result(folder)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Program]]:
    """Starts a program, and leaves nothing of it even if the test fails."""
    programs: list[Program] = []

    def start_program(run: Callable[..., None], **options: Any) -> Program:
        programs.append(Program(run, folder, **options))
        return programs[-1]

    yield start_program
    for each in programs:
        each.end()


def new_folder(above: Path, name: str) -> Path:
    folder = above / name
    (folder / training.TEMPORARY).mkdir(parents=True)
    return folder


def result(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(folder / training.RESULT)
    return state


def finish(folder: Path) -> None:
    """Run the training to its end, from its checkpoint if there is one."""
    meeting = folder / "meeting"
    ranks = [
        PROCESSES.Process(target=training.run_rank, args=(folder, rank, meeting)) for rank in range(training.RANKS)
    ]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(LIMIT_SECONDS)
    assert [each.exitcode for each in ranks] == [0] * training.RANKS


def check(folder: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Check that the training, which is over now, was done as one that nothing disturbs."""
    trained = result(folder)
    assert trained.keys() == undisturbed.keys()
    assert all(torch.equal(trained[name], undisturbed[name]) for name in trained)
    everything = {(epoch, number): 1 for epoch in range(training.EPOCHS) for number in range(training.RECORDS)}
    assert training.count_records(folder) == everything


def look_and_finish(folder: Path, undisturbed: dict[str, torch.Tensor]) -> None:
    """Check what a training has left behind, and that it goes on to its end when it is run again."""
    assert list((folder / training.TEMPORARY).iterdir()) == []
    if (checkpoint := folder / training.CHECKPOINT).exists():
        torch.load(checkpoint)
    if (folder / training.RESULT).exists():
        check(folder, undisturbed)
    finish(folder)
    check(folder, undisturbed)
    assert not list(folder.glob(f".{training.CHECKPOINT}*"))
    shutil.rmtree(folder)


def send(process: psutil.Process | ForkServerProcess | None, number: signal.Signals) -> bool:
    """Send a signal; return False if the process has ended."""
    if process is None or process.pid is None:
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until_stopped(process: psutil.Process) -> None:
    """Return when a process that was sent SIGSTOP has stopped, or ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(LOOK_SECONDS)


def test_a_moment_that_does_not_come_fails_with_what_it_waited_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "MOMENT_SECONDS", 0.0)
    running: Any = SimpleNamespace(process=current_process())
    with pytest.raises(pytest.fail.Exception, match=f"event='{training.JOINED}'.* has not come in 0 s"):
        Moment(0, training.JOINED, 1, 0.0).wait(folder, running)


def test_a_lost_rank_is_one_error_that_names_it(
    lost_rank: random.Random,
    folder: Path,
    undisturbed: dict[str, torch.Tensor],
    start: Callable[..., Program],
    tally: Tally,
) -> None:
    moment = Moment.draw(lost_rank)
    number = lost_rank.choices([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], [30, 10, 5])[0]
    stops = number == signal.SIGSTOP
    said = f"{number.name} at {moment}"
    program = start(training.run_fit_parallel, restarts=0, timeout=STOPPED_TIMEOUT if stops else TIMEOUT)
    moment.wait(folder, program)
    rank = program.rank(moment.rank)
    was_sent = send(rank, number)
    if stops and rank is not None and was_sent:
        wait_until_stopped(rank)
        if [training.ENDED] in training.notes(folder, moment.rank):  # no other waits for it any more
            send(rank, signal.SIGCONT)
    program.wait(END_SECONDS)
    outcome = json.loads((folder / training.OUTCOME).read_text())
    if outcome:
        assert was_sent, f"{said}: {outcome}"
        assert outcome["rank"] == moment.rank, f"{said}: {outcome}"
        how = "hangs for" if stops else f"was killed by {number.name}"
        assert f"rank {moment.rank} of {training.RANKS} {how}" in outcome["message"], f"{said}: {outcome}"
    look_and_finish(folder, undisturbed)
    tally(
        f"a rank is lost, {number.name}",
        "one error that names it, and a new run finished as if undisturbed" if outcome else "the result was there",
    )


def test_ranks_that_are_restarted_end_as_if_undisturbed(
    restarted: random.Random,
    folder: Path,
    undisturbed: dict[str, torch.Tensor],
    start: Callable[..., Program],
    tally: Tally,
) -> None:
    kills = restarted.choice([1, 1, 2])
    kind = restarted.choice(["fit_parallel", "torchrun"])
    program = start(RUNS[kind], restarts=kills)
    were_sent = []
    for _ in range(kills):
        moment = Moment.draw(restarted)
        moment.wait(folder, program)
        were_sent.append(send(program.rank(moment.rank), signal.SIGKILL))
    program.wait(LIMIT_SECONDS)
    assert program.process.exitcode == 0
    look_and_finish(folder, undisturbed)
    outcome = "restarted and finished as if undisturbed" if any(were_sent) else "had ended"
    tally(f"a rank that may be restarted is killed, {kind}", outcome)


def test_nothing_outlives_a_program_that_is_ended(
    ended_program: random.Random,
    folder: Path,
    undisturbed: dict[str, torch.Tensor],
    start: Callable[..., Program],
    tally: Tally,
) -> None:
    moment = Moment.draw(ended_program)
    number = ended_program.choices([signal.SIGKILL, signal.SIGTERM], [2, 1])[0]
    kind = ended_program.choices(["fit_parallel", "torchrun"], [2, 1])[0]
    program = start(RUNS[kind], restarts=0)
    moment.wait(folder, program)
    was_sent = send(program.process, number)
    program.wait(END_SECONDS)
    look_and_finish(folder, undisturbed)
    outcome = "its ranks ended, and a new run finished as if undisturbed" if was_sent else "had ended"
    tally(f"the program that started the ranks is ended, {kind}, {number.name}", outcome)
