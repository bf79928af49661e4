"""Strategies: behaviour comes from attributes, never from names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

import etl
from benchmarks import cells
from etl import strategies
from etl.comparison.request.candidates import Candidate, CpuSplit, StoreKind
from etl.comparison.worker.builtin import write_store
from etl.strategies import Strategy, strategy
from tests.comparison_workloads import make_workload
from tests.programs import output_of

# By its name it would load ahead in processes, from a store.
MISNAMED = Strategy("process-presaved", reads="source")
# By its name it would be plain.
UNLISTED = Strategy("presaved from memory", reads="store", ahead="thread")


class Loaders:
    """Records whose label says which process and thread read them."""

    thread_safe = True

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        who = np.array([os.getpid(), threading.get_native_id()])
        return {"features": np.full(1, index, np.float32), "label": who}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register `MISNAMED` and `UNLISTED` for one test."""
    monkeypatch.setattr(strategy, "_strategies", dict(strategy._strategies))
    for each in (MISNAMED, UNLISTED):
        strategies.register(each)


@pytest.mark.parametrize(
    ("name", "ahead", "store", "processes"),
    [
        ("raw", False, False, False),
        ("async-raw", True, False, False),
        ("process-raw", True, False, True),
        ("presaved", False, True, False),
        ("async-presaved", True, True, False),
    ],
)
def test_a_built_in_strategy_says_how_it_loads(name: str, ahead: bool, store: bool, processes: bool) -> None:
    found = strategies.find(name)
    assert (found.name, found.loads_ahead, found.reads_store, found.uses_processes) == (name, ahead, store, processes)
    candidate = Candidate(name)
    assert (candidate.is_ahead, candidate.is_presaved, candidate.worker_processes) == (ahead, store, processes)


def test_strategies_are_listed_in_order_and_all_but_the_one_with_processes_are_compared_by_default() -> None:
    assert strategies.names() == ("raw", "async-raw", "process-raw", "presaved", "async-presaved")
    assert strategies.default_names() == ("raw", "async-raw", "presaved", "async-presaved")


def test_an_unknown_name_is_an_error_that_lists_what_there_is() -> None:
    message = "no strategy is called 'async-turbo'; there are raw, async-raw, process-raw, presaved, async-presaved"
    with pytest.raises(ValueError, match=message):
        strategies.find("async-turbo")
    with pytest.raises(ValueError, match=message):
        _ = Candidate("async-turbo").is_ahead


@pytest.mark.usefixtures("registered")
def test_a_name_belongs_to_one_strategy() -> None:
    strategies.register(MISNAMED)
    with pytest.raises(ValueError, match="another strategy is already called 'process-presaved'"):
        strategies.register(Strategy(MISNAMED.name, reads="store"))
    assert strategies.find(MISNAMED.name) == MISNAMED


@pytest.mark.usefixtures("registered")
def test_a_comparison_goes_by_the_attributes_of_a_strategy_and_not_by_its_name(tmp_path: Path) -> None:
    workload = make_workload(tmp_path, strategies=("raw", MISNAMED.name, UNLISTED.name), stages=True)
    write_store(workload, StoreKind("npy", workload.presave_stage), 1)
    raw, misnamed, untold = workload.candidates()
    assert misnamed == Candidate(MISNAMED.name)
    assert untold == Candidate(UNLISTED.name, "npy", workload.presave_stage)
    assert workload.splits(misnamed) == workload.splits(raw)
    assert len(workload.splits(untold)) > 1
    assert {each.strategy for each in workload.stage_candidates()} == {UNLISTED.name}
    loaded = []
    for candidate, kind in ((raw, etl.RawIterator), (misnamed, etl.RawIterator), (untold, etl.AsyncIterator)):
        with workload.iterator(candidate, CpuSplit(1, 1)) as iterator:
            assert type(iterator) is kind
            loaded.append([batch.features.copy() for batch in iterator])
    for other in loaded[1:]:
        np.testing.assert_array_equal(other, loaded[0])


@pytest.mark.parametrize("name", strategies.names())
def test_batches_are_loaded_by_the_workers_of_the_strategy_and_at_least_by_one(name: str) -> None:
    plain = etl.RawIterator(Loaders(), etl.Pipeline([]), 2)
    with strategies.find(name).wrap(plain, 2, workers=0) as iterator:
        batches = [(batch.features.copy(), batch.labels.copy()) for batch in iterator]
    np.testing.assert_array_equal(np.concatenate([features for features, _ in batches])[:, 0], range(8))
    processes, threads = np.concatenate([labels for _, labels in batches]).T
    assert (set(processes) == {os.getpid()}) is not strategies.find(name).uses_processes
    assert (set(threads) == {threading.get_native_id()}) is not strategies.find(name).loads_ahead


def test_a_cell_of_the_benchmarks_goes_by_attributes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cells.STRATEGIES, "turbo", cells.Strategy(reads_store=True, loads_ahead=True))
    monkeypatch.setitem(cells.WORKERS, "all", cells.Workers("process", 8))
    turbo = cells.Cell("turbo", workers="all")
    assert (turbo.is_presaved, turbo.is_async, turbo.worker_kind, turbo.worker_count) == (True, True, "process", 8)
    # Any other name is that of a user's loader, whatever it looks like.
    foreign = cells.Cell("async-presaved-turbo")
    assert (foreign.is_presaved, foreign.is_async, foreign.is_foreign, turbo.is_foreign) == (False, False, True, False)


def test_strategies_of_the_benchmarks_load_as_those_of_the_package_do() -> None:
    for name, each in cells.STRATEGIES.items():
        found = strategies.find(name)
        assert (each.reads_store, each.loads_ahead) == (found.reads_store, found.loads_ahead)


def test_strategies_import_neither_torch_nor_their_users() -> None:
    program = (
        "import sys; from etl.strategies.torch_loader import torch_settings, given_torch_settings; "
        "assert torch_settings([], 2) == given_torch_settings([]) == {}; print(*sys.modules)"
    )
    assert not {"torch", "etl.comparison", "benchmarks"} & set(output_of("-c", program).split())
