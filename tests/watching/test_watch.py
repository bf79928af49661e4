"""`etl.watch`: the same batches and attributes, lines as those of `PerformanceListener`, and a summary."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import etl
from etl.training.listeners import Performance
from etl.watching.stacks import line_writer, report_worker
from tests.programs import output_of

DATA = TensorDataset(torch.arange(40))


def test_batches_length_and_attributes_are_those_of_the_loader() -> None:
    loader = DataLoader(DATA, batch_size=8)
    watched = etl.watch(loader)
    assert [batch[0].tolist() for batch in watched] == [batch[0].tolist() for batch in loader]
    assert len(watched) == len(iter(watched)) == 5
    assert watched.dataset is DATA
    assert watched.sampler is loader.sampler
    with pytest.raises(AttributeError, match="no_such"):
        _ = watched.no_such
    iterator = etl.RawIterator([{"features": 1.0}] * 6, etl.Pipeline([]), 2)
    assert etl.watch(iterator).state_dict() == iterator.state_dict()


def test_lines_and_reports_are_those_of_the_listener() -> None:
    lines: list[str] = []
    reports: list[Performance] = []
    for _ in etl.watch(DataLoader(DATA, batch_size=8), 2, output=lines.append, on_report=reports.append):
        time.sleep(0.01)
    assert [each.iteration for each in reports] == [0, 2, 4]
    assert all(each.compute_seconds >= 0.01 for each in reports)
    assert len(lines) == 4
    assert lines[1].startswith("ETL: ")
    assert "iteration 2; iteration time: " in lines[1]
    with pytest.raises(ValueError, match="frequency must be a whole number of at least 1, not 0"):
        etl.watch(DATA, 0)


def test_a_summary_says_what_the_loop_waits_for() -> None:
    class Slow(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> int:
            time.sleep(0.004)
            return index

    watched = etl.watch(DataLoader(Slow(), batch_size=2))
    assert watched.summary().verdict == "cannot tell"
    until = time.monotonic() + 60
    while "Slow.__getitem__" not in (found := watched.summary()).why and time.monotonic() < until:
        list(watched)  # until samples have met it
    assert (found.verdict, found.cause) == ("waits", "too few workers")
    assert "Slow.__getitem__ (test_watch.py:" in found.why


def test_worker_processes_report() -> None:
    watched = etl.watch(DataLoader(DATA, batch_size=1, num_workers=1))
    for _ in range(2):
        assert len(list(watched)) == 40
    assert watched.summary().batches == 80
    assert watched.worker_init_fn is None


def test_what_a_worker_process_reports_stays_small_however_long_it_runs(tmp_path: Path) -> None:
    file = os.open(tmp_path / "reports", os.O_WRONLY | os.O_CREAT)
    write = line_writer(file)
    for number in range(100_000):
        write("at", number)
    os.close(file)
    numbers = [int(line.removeprefix("at\t")) for line in (tmp_path / "reports").read_text().splitlines()]
    assert numbers[:100] == list(range(100))
    assert numbers[-1] > 50_000
    assert len(numbers) < 5_000


def test_fit_takes_a_watched_iterator() -> None:
    records = [{"features": torch.rand(4).numpy(), "label": number % 2} for number in range(24)]
    watched = etl.watch(etl.RawIterator(records, etl.Pipeline([]), 4))
    etl.fit(torch.nn.Linear(4, 2), watched, epochs=2, backend="cpu")
    assert watched.summary().batches == 12


def open_clocks() -> int:
    """Return how many of the files from which the times of threads are read this process has open."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed after it was listed
            found += each.readlink().name == "schedstat"
    return found


def test_thread_files_and_callbacks_end_with_the_last_reference() -> None:
    gc.collect()
    clocks, callbacks = open_clocks(), list(gc.callbacks)
    watched = etl.watch(DATA, 1, output=lambda _: None)
    alive = weakref.ref(watched)
    assert any(each.name == "etl-watch" for each in threading.enumerate())
    batches = iter(watched)
    next(batches)  # an epoch that is left early
    assert len(gc.callbacks) == len(callbacks) + 1
    del batches, watched
    gc.collect()
    assert alive() is None
    assert gc.callbacks == callbacks
    until = time.monotonic() + 60
    while any(each.name == "etl-watch" for each in threading.enumerate()) or open_clocks() > clocks:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_any_iterable_can_be_watched_and_what_is_none_is_refused() -> None:
    assert list(etl.watch([[1], [2]])) == [[1], [2]]
    batches = iter(etl.watch(map(str, range(3))))
    assert batches  # an iterator that has no length
    with pytest.raises(TypeError, match="map"):
        len(batches)  # type: ignore[arg-type]
    assert list(batches) == ["0", "1", "2"]
    with pytest.raises(TypeError, match="int"):
        iter(etl.watch(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(etl.watch(DATA))


class Reticent:
    """A loader that raises when it is looked at, and whose batches etl does not know."""

    dataset = DATA
    batch_size = property(lambda self: [1, 2])
    num_workers = property(lambda self: 1 // 0)

    def __iter__(self) -> Iterator[object]:
        return iter([object()] * 3)


def test_what_cannot_be_looked_at_raises_nothing_in_the_loop(tmp_path: Path) -> None:
    watched = etl.watch(Reticent())
    assert watched  # though it has no length
    assert len(list(watched)) == 3
    assert watched.summary().batches == 3
    called: list[int] = []
    report_worker(f"{tmp_path}/missing/worker", called.append, 7)
    assert called == [7]


def test_a_loop_over_what_nothing_else_refers_to_is_watched_until_it_ends_and_then_diagnosed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = set(threading.enumerate())
    for _ in etl.watch(DataLoader(DATA, batch_size=1, num_workers=1)):
        assert "etl-watch" in {each.name for each in set(threading.enumerate()) - before}
    said = capsys.readouterr().out
    assert "the loop over DataLoader of TensorDataset" in said
    assert "of the time (95% interval " in said


def test_it_says_nothing_at_the_end_to_those_who_have_asked_and_of_what_never_ran() -> None:
    lines: list[str] = []
    watched = etl.watch(DATA, output=lines.append)
    del watched
    watched = etl.watch(DataLoader(DATA, batch_size=8), output=lines.append)
    for _ in watched:
        pass
    watched.summary()
    del watched
    gc.collect()
    assert not lines


def test_a_program_that_ends_says_what_its_loop_waits_for() -> None:
    program = "import etl\nloader = etl.watch([[1]] * 50)\nfor _ in loader: pass\nprint('ends')"
    first, second, *_ = output_of("-c", program).splitlines()
    assert first == "ends"
    assert "the loop over list" in second
