"""Every axis has a base point, values and a suite, and whatever its value the batches are the same."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asv_runner.discovery import disc_benchmarks

import etl
import presave
from benchmarks import end_to_end
from benchmarks.cells import AXES, BUFFERS, NEW, PROFILE_VARIABLE, UPDATERS, Cell, Profile, cell_at, cells_to_measure
from benchmarks.datasets import DATA_VARIABLE
from benchmarks.measure import CellResults, measure_cells
from benchmarks.suite import explained
from benchmarks.workload import CellCompute, Data, files_of, make_data, make_iterator, unsupported_reason

LOADING_AXES = ("prefetch_size", "workers", "presave_format", "presave_stage")
PROFILE = Profile("test", samples=32, image_size=32, rounds=1, seconds_per_figure=0.0, grid=False, axes=LOADING_AXES)
# Axes whose pages describe the base point in other words than its value.
WORDED = {"prefetch_size": "two ahead", "workers": "one thread"}
# A store that cannot be written, like that of a format which is broken at a commit.
UNWRITABLE = Cell(presave_format="npy", presave_stage="absent")
LARGE = [Cell(batch_size=100), Cell("raw", batch_size=100)]
OTHERS = [
    each
    for each in cells_to_measure(replace(PROFILE, axes=("workload", "updater", "buffers", "page_cache")))
    if each.workload == "photographs" or each.strategy in ("raw", "async-presaved")
]
RANKS = [cell_at("ranks", ranks) for ranks in (1, 2)]
LOADING = list(dict.fromkeys([Cell("raw"), *cells_to_measure(PROFILE), *LARGE, *RANKS, UNWRITABLE]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Data]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATA_VARIABLE, str(tmp_path_factory.mktemp("data")))
        yield make_data(PROFILE, tmp_path_factory.mktemp("stores"), [*LOADING, *OTHERS])


@pytest.fixture(scope="module")
def results(data: Data) -> CellResults:
    return measure_cells(LOADING, data, PROFILE)


@pytest.fixture(scope="module")
def other_results(data: Data) -> CellResults:
    return measure_cells(OTHERS, data, PROFILE)


@pytest.fixture(autouse=True, scope="module")
def every_suite() -> Iterator[None]:
    """Load the suites of profile "full": those of axes that a profile does not measure stay abstract."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PROFILE_VARIABLE, "full")
        importlib.reload(end_to_end)
    yield
    importlib.reload(end_to_end)


def suites_of_axes() -> dict[str, type]:
    """Return the suites with the metrics of an epoch, by their axis."""
    found = inspect.getmembers(end_to_end, lambda each: inspect.isclass(each) and not inspect.isabstract(each))
    suites = [suite for _, suite in found if issubclass(suite, end_to_end.EndToEnd) and suite.__name__ != "Grid"]
    return {suite.param_names[-1]: suite for suite in suites}


def test_every_field_of_a_cell_is_an_axis_with_the_base_point_among_its_values() -> None:
    assert tuple(AXES) == tuple(field.name for field in dataclasses.fields(Cell))
    for name, axis in AXES.items():
        assert cell_at(name, getattr(axis.base, name)) == axis.base
        assert getattr(axis.base, name) in axis.values


def test_every_axis_has_a_suite_that_shows_all_its_values() -> None:
    suites = suites_of_axes()
    assert sorted(suites) == sorted(AXES)
    for name, suite in suites.items():
        values, strategies = list(AXES[name].values), list(AXES[name].strategies)
        assert suite.params == ([strategies, values] if strategies else [values])
        for value in values:
            if strategies:
                cells = [suite().cell(strategy, value) for strategy in strategies]
                assert cells == [replace(cell_at(name, value), strategy=strategy) for strategy in strategies]
            else:
                assert suite().cell(value) == cell_at(name, value)


def test_a_profile_has_no_suite_of_an_axis_that_it_does_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, "quick")
    importlib.reload(end_to_end)
    found = sorted(suites_of_axes())
    monkeypatch.setenv(PROFILE_VARIABLE, "full")
    importlib.reload(end_to_end)
    assert found == ["batch_size", "strategy"]


def test_buffers_updaters_and_files_are_those_of_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "data"))
    data = make_data(PROFILE, tmp_path)
    for buffers in BUFFERS:
        with make_iterator(Cell("raw", buffers=buffers), data) as iterator:
            assert iterator.reuse is (buffers != NEW)
    kinds = {}
    for updater in UPDATERS:
        optimizer = CellCompute(Cell(updater=updater), data)._optimizer
        kinds[updater] = type(optimizer).__name__, optimizer.defaults.get("momentum")
    assert kinds == {"sgd": ("SGD", 0.0), "momentum": ("SGD", 0.9), "adam": ("Adam", None)}
    raw, presaved = (files_of(Cell(strategy), data) for strategy in ("raw", "presaved"))
    assert len([path for path in raw if path.suffix == ".jpg"]) == 32
    assert any(path.suffix == ".npy" for path in presaved)


@pytest.mark.slow
def test_every_cell_that_does_the_same_work_loads_the_same_batches(
    results: CellResults, other_results: CellResults
) -> None:
    digests: dict[object, set[str]] = {}
    for cell, samples in {**results, **other_results}.items():
        if cell != UNWRITABLE:
            assert not isinstance(samples, str), samples
            # The updater changes what is computed from the batches, and not the batches.
            digests.setdefault(replace(cell, updater="sgd").work, set()).add(samples[0].digest)
    # Batches of 32, of 8, the same on two ranks, of 100, and of three other workloads.
    assert [len(each) for each in digests.values()] == [1] * 7


@pytest.mark.slow
def test_an_epoch_has_the_records_of_its_workload(other_results: CellResults) -> None:
    records = {cell.workload: samples[0].epoch.samples for cell, samples in other_results.items()}
    assert records == {"photographs": 32, "digits": 1438, "table": 32 * 64, "sequences": 32}


@pytest.mark.slow
def test_a_batch_of_more_photographs_than_there_are_repeats_them(data: Data, results: CellResults) -> None:
    for cell in LARGE:
        (sample,) = results[cell]
        assert (sample.epoch.samples, sample.epoch.batches) == (100, 1)
    suite = end_to_end.BatchSize()
    cell = cell_at("batch_size", 1000)
    cache = end_to_end.Measured(data, {cell: [sample]}, {})
    assert suite.track_wall(cache, 1000)["samples"] == [pytest.approx(sample.epoch.wall.total * 32 / 100)]
    assert suite.track_peak_memory(cache, 1000)["samples"] == [sample.peak_memory]


@pytest.mark.slow
def test_ranks_share_the_records_of_an_epoch_and_are_measured_together(results: CellResults) -> None:
    for cell in RANKS:
        (sample,) = results[cell]
        assert sample.epoch.samples == 32
        assert sample.epoch.batches == (4 if cell.ranks == 1 else 2)
        assert math.isfinite(sample.score)


@pytest.mark.slow
def test_a_store_is_written_for_every_format_and_stage_and_its_cost_is_known(data: Data) -> None:
    formats = {f"{name} after resize" for name in AXES["presave_format"].values}
    stages = {f"npy after {stage}" for stage in AXES["presave_stage"].values}
    others = {f"{workload} in npy" for workload in data.others} | {"npy after resize of 100"}
    assert data.stores.keys() == data.write_seconds.keys() == data.store_nbytes.keys() == formats | stages | others
    assert len(set(data.stores.values())) == len(data.stores)
    assert all(seconds > 0 for seconds in data.write_seconds.values())
    for name in formats | stages:
        with presave.open_store(data.stores[name], trusted=True) as store:
            assert store.manifest.format == name.split()[0]
            assert len(store) == 32
            assert data.store_nbytes[name] == store.nbytes
    # A normalised pixel has four times as many bytes, and a compressed one fewer.
    assert data.store_nbytes["npy after normalise"] > 3 * data.store_nbytes["npy after resize"]
    assert data.store_nbytes["hdf5 gzip after resize"] < data.store_nbytes["hdf5 after resize"]


@pytest.mark.slow
def test_a_store_that_cannot_be_written_fails_its_own_metrics_with_the_reason(data: Data, results: CellResults) -> None:
    failure = data.failures[UNWRITABLE.store]
    assert "absent" in failure
    assert f"the store {UNWRITABLE.store!r} was not written:\n{failure}" in str(results[UNWRITABLE])
    assert data.failures.keys() == {UNWRITABLE.store}


def test_a_metric_that_was_not_measured_is_not_available_and_says_why() -> None:
    cell = Cell(strategy="async-raw", batch_size=8, workers="process 2")
    suite = end_to_end.Workers()
    with pytest.raises(NotImplementedError, match="no worker processes at this commit"):
        suite.setup(end_to_end.Measured(None, {}, {cell: "no worker processes at this commit"}), "process 2")
    with pytest.raises(NotImplementedError, match="profile 'full' does not measure this cell"):
        suite.setup(end_to_end.Measured(None, {}, {}), "process 2")


def test_what_an_earlier_commit_lacks_is_reported_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(unsupported_reason(cell) for cell in cells_to_measure(PROFILE))

    def first_write(path: object, records: object, *, format: str = "npy", jobs: int = 1) -> None:
        """`presave.write` and, below, `AsyncIterator` as the first commit had them."""

    class FirstAsyncIterator:
        def __init__(self, iterator: object, prefetch_size: int = 2, *, workers: str = "thread") -> None:
            pass

    monkeypatch.setattr(presave, "formats", lambda: ("npy", "hdf5"))
    monkeypatch.setattr(presave, "write", first_write)
    monkeypatch.setattr(etl, "AsyncIterator", FirstAsyncIterator)
    missing = {
        (axis, value)
        for axis in LOADING_AXES
        for value in AXES[axis].values
        if unsupported_reason(cell_at(axis, value))
    }
    assert missing == {
        *(("workers", workers) for workers in ("thread 2", "process 2")),
        *(("presave_format", name) for name in ("hdf5 gzip", "safetensors", "torch", "pickle")),
        *(("presave_stage", stage) for stage in ("read", "decode")),
    }


@pytest.fixture(scope="module")
def on_pages() -> dict[str, Any]:
    """Return asv's benchmarks by name; the `code` of each is its text on the pages."""
    found = disc_benchmarks(str(Path(end_to_end.__file__).parent))
    return {benchmark.name: benchmark for benchmark in found}


def test_the_pages_say_in_words_what_a_metric_is_and_its_unit(on_pages: dict[str, Any]) -> None:
    assert len(on_pages) > 50
    for name, benchmark in on_pages.items():
        metric, *about = benchmark.code.split("\n\n")
        assert metric.endswith("."), name
        assert about, name
        # The page inserts it as HTML.
        assert not set("<>") & set(benchmark.code), name
        assert "def " not in benchmark.code, name
        assert benchmark.unit in ("seconds", "bytes", "ratio"), name


def test_the_pages_say_what_varies_and_from_which_base_point(on_pages: dict[str, Any]) -> None:
    for axis, suite in suites_of_axes().items():
        code = on_pages[f"end_to_end.{suite.__name__}.track_wall"].code
        base = AXES[axis].base
        assert AXES[axis].strategies or f"Base point: {base.strategy}" in code
        assert WORDED.get(axis, str(getattr(base, axis))) in code.partition("Base point: ")[2]
    for name in ("PresavingByFormat", "PresavingByStage"):
        assert "Base point: " in on_pages[f"end_to_end.{name}.track_write_time"].code


def test_a_suite_without_a_docstring_is_refused_before_a_page_shows_none() -> None:
    class Undocumented:
        def track_nothing(self) -> int:
            return 0

    with pytest.raises(ValueError, match="Undocumented has no docstring"):
        explained(Undocumented)
