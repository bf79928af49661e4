"""Cells are measured in processes of their own, on the same CPUs, and metrics of unequal work are refused."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import benchmarks.measure
import etl
from benchmarks.cells import STRATEGIES, Cell, Profile
from benchmarks.datasets import DATA_VARIABLE
from benchmarks.measure import (
    CPUS_VARIABLE,
    CellConditions,
    CellMetrics,
    CellResults,
    CellServer,
    check_cells,
    cpus_of_cells,
    measure_cell,
    measure_cells,
)
from benchmarks.measuring.clock import DeviceStep, EpochMetrics, Split
from benchmarks.measuring.layout import PADDING_VARIABLE
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.same_work import DifferentWork
from benchmarks.workload import CellCompute, Data, compute_threads, make_data, make_iterator

pytestmark = pytest.mark.slow

PROFILE = Profile("test", samples=32, image_size=32, rounds=2, seconds_per_figure=0.0, grid=False)
NOTHING = Split(0.0, 0.0)
EQUAL = CellMetrics(1.0, EpochMetrics(3, 20, NOTHING, NOTHING, NOTHING, NOTHING), 0.0, 0.0, 1, "a", 2.3, [])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(tmp_path_factory.mktemp("data")))
        yield make_data(PROFILE, tmp_path_factory.mktemp("store"))


STRATEGY_CELLS = [Cell(strategy=strategy, batch_size=8) for strategy in STRATEGIES]
# Computed with other numbers of threads, and in inference: `measure_cells` refuses those that give different scores.
EQUAL_CELLS = [
    *(
        Cell(strategy=strategy, batch_size=8, dtype=dtype)
        for dtype in ("float64", "float16", "bfloat16")
        for strategy in ("presaved", "async-presaved")
    ),
    *(Cell(strategy=strategy, batch_size=8, compute="inference") for strategy in ("presaved", "async-raw")),
]
FAILING = Cell(dtype="float8")


@pytest.fixture(scope="module")
def started() -> list[dict[str, Any]]:
    """List what was drawn for each server that `results` has started."""
    return []


@pytest.fixture(scope="module")
def results(data: Data, started: list[dict[str, Any]]) -> CellResults:
    start_server = benchmarks.measure.start_server

    def noting(*given: Any, **options: Any) -> Any:
        server = start_server(*given, **options)
        while not (environment := psutil.Process(server.pid).environ()):
            time.sleep(0.001)  # the kernel shows none while it starts the program
        started.append({"pid": server.pid, "seed": options["hash_seed"], **environment})
        return server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks.measure, "start_server", noting)
        return measure_cells([FAILING, *STRATEGY_CELLS], data, PROFILE)


def test_metrics_of_every_strategy_belong_together(results: CellResults) -> None:
    for cell in STRATEGY_CELLS:
        samples = results[cell]
        assert not isinstance(samples, str), samples
        assert len(samples) == PROFILE.rounds
        for sample in samples:
            epoch = sample.epoch
            assert epoch.samples == 32
            assert 0 < epoch.stall.total + epoch.compute.total <= epoch.wall.total
            assert epoch.stall.total == pytest.approx(epoch.host_wait.total)  # on a CPU
            assert sample.etl > 0
            assert sample.peak_memory > 50e6  # torch alone takes more


def test_a_cell_that_fails_says_why_and_the_others_are_measured(results: CellResults) -> None:
    assert "unknown dtype 'float8'" in str(results[FAILING])
    assert [cell for cell, samples in results.items() if isinstance(samples, str)] == [FAILING]


def test_threads_and_ways_to_load_change_no_score_in_any_dtype_and_in_inference(data: Data) -> None:
    results = measure_cells(EQUAL_CELLS, data, replace(PROFILE, rounds=1))
    assert [len(results[cell]) for cell in EQUAL_CELLS] == [1] * len(EQUAL_CELLS)
    assert not any(isinstance(samples, str) for samples in results.values())


def test_each_round_has_a_server_with_a_memory_layout_of_its_own(
    results: CellResults, started: list[dict[str, Any]]
) -> None:
    # A session that failed may have left anything behind, so its round has one more.
    assert len(started) >= PROFILE.rounds
    for drawn in ("pid", "seed", PADDING_VARIABLE):
        assert len({each[drawn] for each in started}) == len(started)


def test_inference_leaves_the_model_as_it_is_and_training_does_not(data: Data) -> None:
    with make_iterator(Cell(batch_size=8), data) as iterator:
        batch = next(iter(iterator))
        scores: dict[str, set[float]] = {"training": set(), "inference": set()}
        for name, found in scores.items():
            compute = CellCompute(Cell(batch_size=8, compute=name), data)
            for _ in range(3):
                compute.step(batch)
                found.add(compute.score)
    assert {name: len(found) for name, found in scores.items()} == {"training": 3, "inference": 1}


def test_a_server_that_dies_is_reported_and_the_next_cell_is_measured(data: Data, tmp_path: Path) -> None:
    broken = dataclasses.replace(data, stores={Cell().store: str(tmp_path / "absent.store")})
    with CellServer(CellConditions(broken, 0.0, cpus_of_cells())) as server:
        with pytest.raises(MeasurementError) as raised:
            server.measure(Cell())
        assert "does not exist" in raised.value.text
        assert server._servers == [None]  # a session that failed may have left anything behind
        server.measure(Cell(strategy="raw"))
        assert server._servers[0] is not None
        os.kill(server._servers[0].pid, signal.SIGKILL)
        with pytest.raises(MeasurementError, match=r"the process of Cell\(strategy=.* was killed by signal 9"):
            server.measure(Cell())
        assert server.measure(Cell(strategy="raw")).metrics.epoch.samples == 32


@pytest.mark.parametrize("cpus", [1, len(os.sched_getaffinity(0))])
def test_every_cell_has_the_cpus_that_were_asked_for_and_splits_them(
    data: Data, cpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    seen: list[tuple[str, int]] = []
    make_iterator = benchmarks.measure.make_iterator

    def noting(cell: Cell, data: Data) -> Any:
        seen.append((cell.strategy, torch.get_num_threads()))
        return make_iterator(cell, data)

    monkeypatch.setattr(benchmarks.measure, "make_iterator", noting)
    monkeypatch.setenv(CPUS_VARIABLE, str(cpus))
    conditions = CellConditions(data, 0.0, cpus_of_cells())
    assert conditions.cpus == tuple(sorted(os.sched_getaffinity(0))[:cpus])
    for strategy in ("raw", "async-raw"):
        measure_cell(Cell(strategy=strategy, batch_size=8), conditions)
    assert set(seen) == {("raw", cpus), ("async-raw", max(1, cpus - 1))}


def test_loading_threads_and_processes_are_taken_from_compute() -> None:
    ahead = Cell(strategy="async-raw")
    for cell, threads in (
        (Cell(), 4),
        (ahead, 3),
        (dataclasses.replace(ahead, workers="thread 2"), 2),
        (dataclasses.replace(ahead, workers="process 2"), 2),
        (dataclasses.replace(ahead, prefetch_size=0), 4),  # nothing is loaded ahead
        (Cell(workers="thread 2"), 4),
        (Cell(strategy="async-presaved"), 4),  # reading a store takes next to no CPU
    ):
        assert compute_threads(cell, 4) == threads, cell
    assert compute_threads(dataclasses.replace(ahead, workers="process 2"), 2) == 1


def test_the_process_of_a_cell_is_bound_before_anything_else(data: Data) -> None:
    (first, *_) = sorted(os.sched_getaffinity(0))
    with CellServer(CellConditions(data, 0.0, (first,))) as server:
        server.measure(Cell("raw"))
        assert server._servers[0] is not None
        assert os.sched_getaffinity(server._servers[0].pid) == {first}


@pytest.mark.parametrize("wanted", ["0", "4096", "two", "-1"])
def test_a_number_of_cpus_that_there_is_not_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CPUS_VARIABLE, wanted)
    with pytest.raises(ValueError, match=f"FAIR_ETL_CPUS='{wanted}': give a number from 1 to "):
        cpus_of_cells()


def test_a_step_on_a_device_goes_on_after_the_call_and_one_on_a_cpu_does_not(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not isinstance(CellCompute(Cell(), data).step, DeviceStep)
    backend = etl.backend("cpu")
    monkeypatch.setattr(etl, "backend", lambda name: backend)  # no device is needed to make a step for it
    assert isinstance(CellCompute(Cell(backend="cuda"), data).step, DeviceStep)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (dataclasses.replace(EQUAL, digest="b"), "the digest of the batches is b in .* and a in"),
        (
            dataclasses.replace(EQUAL, epoch=dataclasses.replace(EQUAL.epoch, samples=19)),
            "the number of records is 19 in .* and 20 in",
        ),
        (dataclasses.replace(EQUAL, score=2.4), "the score is 2.4 in .* and 2.3 in"),
    ],
)
def test_metrics_of_unequal_work_are_refused(other: CellMetrics, said: str) -> None:
    with pytest.raises(DifferentWork, match=said):
        check_cells({Cell("raw"): [EQUAL], Cell("presaved"): [EQUAL, other]})


def test_cells_whose_work_differs_by_their_axes_are_not_compared() -> None:
    check_cells({Cell(batch_size=1): [EQUAL], Cell(batch_size=32): [dataclasses.replace(EQUAL, digest="b")]})


def test_utilisation_is_compute_alone_over_wall() -> None:
    epoch = replace(EQUAL.epoch, wall=Split(1.0, 3.0))
    assert replace(EQUAL, epoch=epoch, compute_alone=3.0).utilisation == 0.75
