"""Times of loops with a known cause: the verdict, the cause, and a gain that never exceeds the wait."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from etl.measuring.waiting import WaitTimes
from etl.watching.diagnosis import Diagnosis, diagnose
from etl.watching.script import diagnoses
from etl.watching.session import Session
from etl.watching.times import Block, Fetch, LoopTimes, Place

CPUS = 4
PLACE = Place("data.py", 7, "Records.__getitem__")


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


def loop(
    wait: float, step: float, *, batches: int = 60, settings: Mapping[str, Any] | None = None, **more: Any
) -> LoopTimes:
    """Return an epoch of equal batches of 10 records."""
    blocks = [Block(wait, step, 1) for _ in range(batches)]
    times = LoopTimes("DataLoader of Records", settings or {}, [wait], blocks, batches, 10, **more)
    times.loading[PLACE] = 20
    return times


def fetches(seconds: float, used: float, queued: float = 0.0, count: int = 60) -> list[Fetch]:
    return [Fetch(seconds, used, queued)] * count


def test_a_loop_without_waits_computes() -> None:
    found = diagnose(loop(0.001, 0.1), CPUS)
    assert (found.verdict, found.cause, found.gain) == ("computes", "", None)
    assert found.describe("train.py") == (
        "train.py does not wait for data: 1% of the time (95% interval 1% to 1%); 1.00 ms for each batch, 100 ms of "
        "training."
    )


def test_few_batches_tell_nothing() -> None:
    found = diagnose(loop(0.1, 0.1, batches=4), CPUS)
    assert found.verdict == "cannot tell"
    assert "4 batches are too few" in found.describe("train.py")
    assert "1 batch is too few" in diagnose(loop(0.1, 0.1, batches=1), CPUS).describe("train.py")


def test_noisy_waits_around_the_limit_tell_nothing() -> None:
    times = loop(0.0, 0.1)
    times.blocks = [Block(0.13 if number % 10 == 0 else 0.0, 0.1, 1) for number in range(60)]
    assert diagnose(times, CPUS).verdict == "cannot tell"


def test_loading_in_the_training_process_needs_workers() -> None:
    times = loop(0.031, 0.001, settings={"num_workers": 0}, fetches=fetches(0.031, 0.031), loads_here=20)
    found = diagnose(times, cpus=2)
    assert (found.verdict, found.cause) == ("waits", "too few workers")
    assert found.why == (
        "Records.__getitem__ (data.py:7) takes 3.10 ms a record in the training process: num_workers is 0"
    )
    assert found.remedy == "num_workers=2, persistent_workers=True"
    assert found.gain == pytest.approx(2.0, abs=0.01)  # loading and compute share two CPUs
    lines = found.describe("train.py").splitlines()
    assert lines[0].startswith("train.py waits for data 97% of the time")
    assert lines[2].endswith("; at best 2.0 times as fast here.")


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_of_an_iterable_dataset_are_advised_if_it_is_divided_among_them(workers: int) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(8))

    loader = DataLoader(Stream(), batch_size=2, num_workers=workers)
    settings = Session().times_of(loader).settings
    times = loop(0.031, 0.001, settings=settings, fetches=fetches(0.031, 0.031), loads_here=20 * (workers == 0))
    found = diagnose(times, cpus=2)
    assert found.cause == "too few workers"
    assert re.match("num_workers=2.*, if the IterableDataset gives each worker a part of its own", found.remedy)
    times.settings = {**settings, "_dataset_kind": 0}
    assert "IterableDataset" not in diagnose(times, cpus=2).remedy


def test_a_gain_that_is_next_to_nothing_is_said_in_words() -> None:
    found = replace(diagnose(loop(0.031, 0.001, settings={"num_workers": 0}, loads_here=20), cpus=2), gain=1.01)
    assert found.describe("train.py").endswith(", but that gains next to nothing here.")


@pytest.mark.parametrize(
    ("workers", "used", "queued", "cause"),
    [
        (2, 0.09, 0.0, "too few workers"),
        (4, 0.09, 0.0, "Python code"),
        (4, 0.05, 0.05, "Python code"),  # as many workers as CPUs, which they wait for
        (2, 0.01, 0.0, "storage"),
        (4, 0.01, 0.0, "storage"),
    ],
)
def test_workers_are_too_few_or_wait_or_are_slow(workers: int, used: float, queued: float, cause: str) -> None:
    times = loop(0.05, 0.01, settings={"num_workers": workers}, fetches=fetches(0.1, used, queued))
    found = diagnose(times, CPUS)
    assert found.cause == cause
    assert "Records.__getitem__ (data.py:7)" in found.why
    if cause == "too few workers":
        assert found.remedy == "num_workers=4"
    if cause == "storage":
        assert "90% of it waiting" in found.why


@pytest.mark.parametrize(("used", "cause"), [(0.07, "too few workers"), (0.007, "storage")])
def test_no_more_workers_are_advised_than_the_steps_need(used: float, cause: str) -> None:
    times = loop(0.003, 0.012, settings={"num_workers": 4}, fetches=fetches(0.07, used))
    found = diagnose(times, cpus=64)
    assert found.cause == cause
    assert re.fullmatch("num_workers=6(:.*)?", found.remedy)


def test_of_workers_that_do_not_report_only_the_kernel_tells() -> None:
    times = loop(0.05, 0.01, settings={"num_workers": 4})
    assert diagnose(times, CPUS).cause == "unknown"
    times.lost = [WaitTimes(1.0, 0.0, 0.05, 1, None)]
    found = diagnose(times, CPUS)
    assert found.cause == "storage"
    assert found.why.startswith("worker processes load, 95% of the wait without a CPU")


def test_starts_of_epochs_are_told_from_the_first_one() -> None:
    times = loop(0.001, 0.01, settings={"num_workers": 2, "persistent_workers": False})
    assert diagnose(times, CPUS).verdict == "computes"
    times.starts = [0.5] * 8
    found = diagnose(times, CPUS)
    assert (found.verdict, found.cause, found.remedy) == ("waits", "starts of epochs", "persistent_workers=True")
    assert "a wait of 500 ms" in found.why
    again = replace(times, settings={"num_workers": 2, "persistent_workers": True}, is_remade=True)
    assert diagnose(again, CPUS).remedy == "one DataLoader for all epochs, with persistent_workers=True"


def test_steps_that_are_not_seen_leave_it_open() -> None:
    times = loop(0.0, 0.0)
    times.starts = [0.1] * 60  # of epochs of which the loop takes one batch
    found = diagnose(times, CPUS)
    assert (found.verdict, found.cause, found.gain) == ("cannot tell", "starts of epochs", None)
    assert "take batches in one `for batch in loader`" in found.describe("train.py")


def test_slow_records_are_told_from_slow_loading() -> None:
    uneven = [Fetch(0.3 if number % 10 == 0 else 0.004, 0.001, 0.0) for number in range(60)]
    found = diagnose(loop(0.02, 0.01, settings={"num_workers": 2}, fetches=uneven), CPUS)
    assert found.cause == "slow records"
    assert found.why.startswith("one batch in 10 takes 300 ms, the others 4.00 ms")
    assert found.remedy.endswith("; prefetch_factor=8 rides out one of them")
    more = loop(0.02, 0.01, settings={"num_workers": 2, "prefetch_factor": 8}, fetches=uneven)
    assert diagnose(more, CPUS).remedy.endswith("; prefetch_factor=32 rides out one of them")


def test_copies_in_the_loop_count_as_waiting(tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text("for batch in loader:\n    batch = batch.to(device)\n    model(batch)\n")
    times = loop(0.001, 0.01, step_samples=100)
    times.stepping.update({Place(str(script), 2, "<module>"): 60, Place(str(script), 3, "<module>"): 40})
    found = diagnose(times, CPUS)
    assert (found.verdict, found.cause) == ("waits", "copies")
    assert found.why.startswith("<module> (train.py:2) copies")
    assert found.gain == pytest.approx(0.011 / (0.011 - 0.006), rel=0.01)


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("batch = batch.to(device)", "computes"),
        ("right += (batch.argmax(1) == labels).float().sum().item()", "computes"),
        ("batch = batch.float() / 255", "waits"),
    ],
)
def test_on_a_device_only_conversions_are_copies_since_other_lines_wait_for_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, verdict: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    script = tmp_path / "train.py"
    script.write_text(f"for batch in loader:\n    {line}\n")
    times = loop(0.001, 0.01, step_samples=100)
    times.stepping[Place(str(script), 2, "<module>")] = 60
    found = diagnose(times, CPUS)
    assert (found.verdict, found.gain) == (verdict, None)


def test_on_a_device_that_may_compute_during_waits_the_gain_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    times = loop(0.031, 0.001, settings={"num_workers": 0}, fetches=fetches(0.031, 0.031), loads_here=20)
    assert diagnose(times, CPUS).gain is not None
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    found = diagnose(times, CPUS)
    assert (found.verdict, found.cause, found.gain) == ("waits", "too few workers", None)
    assert "at best" not in found.describe("train.py")


@pytest.mark.parametrize(
    ("lost", "cause"),
    [
        ([], "unknown"),
        ([WaitTimes(1.0, 0.0, 1.0, 2, 0.0)], "unknown"),  # in turns, and no local disk: the kernel cannot tell
        ([WaitTimes(1.0, 0.0, 0.05, 1, None)], "storage"),
        ([WaitTimes(1.0, 0.0, 1.0, 1, None)], "too few workers"),
        ([WaitTimes(1.0, 0.0, 4.0, 4, 0.0)], "Python code"),
    ],
)
def test_what_other_threads_wait_for_is_unknown_where_the_kernel_cannot_tell(lost: Any, cause: str) -> None:
    assert diagnose(loop(0.05, 0.01, lost=lost), CPUS).cause == cause


def test_memory_that_runs_out_is_found_whatever_the_verdict() -> None:
    left = [(float(second), int(8e9 - second * 50e6), int(second * 45e6)) for second in range(40)]
    found = diagnose(loop(0.001, 0.1), CPUS, left)
    assert (found.verdict, found.cause) == ("computes", "memory")
    assert found.why.startswith("memory is used up by 3.00 GB a minute, and 6.05 GB are left: it runs out in 2.0 min")
    steady = [(second, nbytes if second < 5 else left[5][1], used) for second, nbytes, used in left]
    of_others = [(second, nbytes, 10**8) for second, nbytes, _ in left]
    at_first = [  # a training that takes ever less
        (second, int(8e9 - 5e8 * (1 - 0.92**second)), int(5e8 * (1 - 0.92**second))) for second, *_ in left
    ]
    for other in (steady, of_others, at_first):
        assert diagnose(loop(0.001, 0.1), CPUS, other).cause == ""
    looks = [*range(20), *range(20, 80, 4)]  # then the machine was busy
    rarely = [(float(second), int(8e9 - second * 50e6), int(second * 45e6)) for second in looks]
    assert diagnose(loop(0.001, 0.1), CPUS, rarely).cause == "memory"


def test_waits_of_a_thread_that_may_hand_batches_on_are_not_those_of_the_training() -> None:
    session, times = Session(), loop(0.1, 0.01, thread=-1)
    session.loops.append(times)

    def found() -> Diagnosis:
        (only,) = diagnoses(session)
        return only

    assert (found().verdict, found().gain) == ("cannot tell", None)
    assert "wrap what the training iterates in etl.watch" in found().describe("train.py")
    times.step_samples, times.step_waits = 20, 15  # in a queue that is full
    assert found().verdict == "cannot tell"
    times.step_waits = 1  # it computes
    assert found().verdict == "waits"
    times.thread, times.step_waits = threading.main_thread().ident or 0, 15
    assert found().verdict == "waits"


seconds = st.floats(1e-5, 1.0)


@given(
    wait=seconds,
    step=seconds,
    fetch=seconds,
    used=st.floats(0.0, 1.0),
    workers=st.sampled_from([None, 0, 1, 2, 8]),
    starts=st.lists(seconds, min_size=1, max_size=5),
    here=st.booleans(),
)
def test_a_gain_never_exceeds_the_wait(
    wait: float, step: float, fetch: float, used: float, workers: int | None, starts: list[float], here: bool
) -> None:
    settings = {} if workers is None else {"num_workers": workers}
    times = loop(wait, step, settings=settings, fetches=fetches(fetch, used * fetch), loads_here=20 * here)
    times.starts = starts
    found = diagnose(times, CPUS)
    assert 0 <= found.low <= found.share + 1e-9
    assert found.share <= found.high + 1e-9 <= 1 + 2e-9
    if found.gain is not None:
        assert 1 <= found.gain <= 1 / (1 - found.share) * (1 + 1e-9)


def test_a_diagnosis_comes_back_from_its_json_values() -> None:
    found = diagnose(loop(0.05, 0.01), CPUS)
    assert Diagnosis(**found.as_dict()) == found
    assert np.isfinite([value for value in dataclasses.astuple(found) if isinstance(value, float)]).all()
