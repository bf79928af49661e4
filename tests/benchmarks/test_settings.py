"""Settings against the default: what is tried, what is refused, and what the table says."""

from __future__ import annotations

import ctypes.util
import importlib
import io
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import etl
from benchmarks.cells import PROFILE_VARIABLE, Profile
from benchmarks.datasets import DATA_VARIABLE
from benchmarks.journal import JOURNAL_VARIABLE, Journal
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.same_work import DifferentWork, DoneWork
from benchmarks.measuring.turns import OpenedArm
from benchmarks.settings import __main__ as command
from benchmarks.settings import setting as settings
from benchmarks.settings import settings_turns as turns
from benchmarks.settings import settings_worker, suites
from benchmarks.settings.setting import AXES, BACKENDS, DEFAULT, Setting, SettingAxis, on_backend, unsupported_reason
from benchmarks.settings.settings_table import lines_of, render, show
from benchmarks.settings.settings_turns import SettingPairs, keys, take_turns
from benchmarks.settings.settings_worker import WORKLOADS
from benchmarks.studies.study import INTERRUPTED
from benchmarks.workload import make_data

MISSING = sorted(set(settings.ALLOCATORS) - set(settings.ALLOCATORS_HERE))
# An allocator whose library is missing: the dynamic linker warns and continues.
UNKNOWN = "nothing"


def measured(ratio: float, memory: tuple[int, int] = (100, 200), rounds: int = 12) -> SettingPairs:
    """Pairs that differ by `ratio`, more or less."""
    blocks = [[(1.0, ratio * (1 + 0.001 * math.sin(number)))] for number in range(rounds)]
    return SettingPairs(blocks, [memory] * rounds)


def shown(results: dict[Any, SettingPairs]) -> str:
    text = io.StringIO()
    show(results, Console(file=text, width=400))
    return text.getvalue()


class FakeServer:
    """A server in this process: every turn takes as many seconds as its round has a number, from 1."""

    is_ready = can_fork = True
    name, timeout = "fake", 60.0

    def __init__(self, number: int, opened: list[Any]) -> None:
        self.number = number
        self.opened = opened

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if "setting" not in request:
            return {"seconds": self.number + 1.0}
        self.opened.append((request["workload"], self.number))
        return OpenedArm(DoneWork(), {}, memory=self.number + 10).to_json()

    def end_session(self) -> None:
        pass

    close = end_session


@pytest.mark.parametrize("name", AXES)
def test_every_axis_tries_the_default_against_itself_and_each_value_is_a_setting_of_its_own(name: str) -> None:
    axis = AXES[name]
    assert axis.at(name, DEFAULT) == axis.base
    tried = {axis.at(name, value) for value in axis.values}
    assert len(tried) == len({axis.field_values.get(value, value) for value in axis.values})
    for each in tried - {axis.base}:
        assert replace(each, **{name: getattr(axis.base, name)}) == axis.base
        assert Setting.from_json(json.loads(json.dumps(each.to_json()))) == each
        assert unsupported_reason(each) == ""


def test_every_workload_that_an_axis_names_is_there_and_knows_its_backend() -> None:
    assert {workload for axis in AXES.values() for workload in axis.workloads} == set(WORKLOADS)
    for backend in BACKENDS:
        assert {WORKLOADS[on_backend(name, backend)].backend for name in ("training", "product")} == {backend}


def test_every_workload_has_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    monkeypatch.setattr(settings_worker, "ANNOTATIONS", 10)
    data = make_data(Profile("test", 10, 16, rounds=1, seconds_per_figure=0.0, grid=False), tmp_path)
    for each in WORKLOADS.values():
        with ExitStack() as stack:
            epoch = each.open(Setting(), data, stack)
            assert math.isfinite(epoch())
            assert math.isfinite(epoch())


def test_what_a_commit_lacks_is_reported_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "unknown heap policy 'shrink'" in unsupported_reason(Setting(heap="shrink"))
    monkeypatch.delattr(etl.runtime, "batch_boundary")
    assert "no batch boundaries" in unsupported_reason(Setting())
    monkeypatch.setattr(turns, "start_server", None)
    monkeypatch.setattr(turns, "make_data", lambda *_: None)
    assert all(each.missing and not each.blocks for each in take_turns(["heap"], range(1), 0.0).values())


def test_complete_rounds_are_not_measured_again_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(turns, "AXES", {"heap": SettingAxis((DEFAULT, "retain"), ("one", "other"))})
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path))
    monkeypatch.setattr(turns, "make_data", lambda *_: SimpleNamespace(to_json=dict))
    opened: list[tuple[str, int]] = []

    def start(*_: Any, hash_seed: int, **__: Any) -> FakeServer:
        return FakeServer(hash_seed, opened)

    def note_and_interrupt(journal: Journal[Any, Any], key: Any, result: Any) -> None:
        note(journal, key, result)
        if len(journal.results) == 9:
            raise KeyboardInterrupt

    note = Journal.note
    monkeypatch.setattr(turns, "start_server", start)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "note", note_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            take_turns(["heap"], range(4), 0.0)
    measured = take_turns(["heap"], range(4), 0.0)
    # Two rounds were complete; the pair of the third that was measured is measured again. Each opens both arms.
    assert [number for _, number in opened] == [0] * 8 + [1] * 8 + [2] * 10 + [3] * 8
    assert len(measured) == 4
    for each in measured.values():
        assert each.blocks == [[(pytest.approx(seconds), pytest.approx(seconds))] for seconds in (1.0, 2.0, 3.0, 4.0)]
        assert each.memory == [(memory, memory) for memory in (10, 11, 12, 13)]


@pytest.fixture(scope="module")
def real() -> Iterator[dict[turns.Key, SettingPairs]]:
    """Settings that were measured in turns: some that work, and some that fail."""
    find_library = ctypes.util.find_library
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ctypes.util, "find_library", lambda name: None if name == UNKNOWN else find_library(name))
        axes = {
            "heap": SettingAxis((DEFAULT, "preallocate:300MB", "limit:1"), ("new batches",)),
            "dtype": SettingAxis(("float64",), ("product, cpu",)),
            "allocator": SettingAxis((*settings.ALLOCATORS_HERE, UNKNOWN), ("new batches",)),
        }
        patch.setattr(turns, "AXES", axes)
        yield take_turns(axes, range(1), 0.0)


@pytest.mark.slow
def test_settings_are_measured_in_turns_with_the_memory_that_they_take(
    real: dict[turns.Key, SettingPairs],
) -> None:
    measured = [each for each in real.values() if not each.reason]
    assert all(len(each.blocks) == len(each.memory) == len(each.log_ratios) == 1 for each in measured)
    assert {value for (_, _, value), each in real.items() if each.reason} == {"limit:1", UNKNOWN}
    # Less by what was free on the heap.
    assert all(under > 290e6 > base for base, under in real["heap", "new batches", "preallocate:300MB"].memory)
    assert all(under > base for base, under in real["dtype", "product, cpu", "float64"].memory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (("heap", "new batches", "limit:1"), "bytes of data already"),
        (("allocator", "new batches", UNKNOWN), f"the allocator {UNKNOWN} is not in this process"),
    ],
)
def test_a_setting_that_fails_is_shown_with_the_reason(
    real: dict[turns.Key, SettingPairs], key: turns.Key, reason: str
) -> None:
    assert reason in real[key].failure
    assert not real[key].blocks
    assert reason in shown(real)


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_every_allocator_is_in_force_if_it_is_installed(real: dict[turns.Key, SettingPairs]) -> None:
    for name in settings.ALLOCATORS:
        assert real["allocator", "new batches", name].failure == ""


def test_only_another_dtype_may_give_another_result() -> None:
    pairs = {key: turns.pair_of(*key, 1.0, 0) for key in keys(AXES)}
    assert {key[::2] for key, each in pairs.items() if not each.is_same_work} == {
        ("dtype", value) for value in AXES["dtype"].values if value != DEFAULT
    }


@pytest.mark.parametrize("value", [DEFAULT, "retain"])
def test_only_a_failure_of_the_default_is_raised(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(name: str, *_: Any, hash_seed: int, **__: Any) -> FakeServer:
        if name == "the setting":
            raise MeasurementError("it cannot be measured")
        return FakeServer(hash_seed, [])

    monkeypatch.setattr(turns, "AXES", {"heap": SettingAxis((value,), ("one",))})
    monkeypatch.setattr(turns, "make_data", lambda *_: SimpleNamespace(to_json=dict))
    monkeypatch.setattr(turns, "start_server", start)
    with pytest.raises(MeasurementError) if value == DEFAULT else nullcontext():
        (result,) = take_turns(["heap"], range(2), 0.0).values()
        assert (result.failure, result.blocks) == ("it cannot be measured", [])


@pytest.mark.parametrize(
    ("ratio", "rounds", "word"),
    [
        (0.8, 12, "faster"),
        (1.2, 12, "slower"),
        (1.001, 12, "a placebo"),
        (1.02, 12, "not clear"),
        (0.5, 3, "not clear"),
    ],
)
def test_a_verdict_says_whether_a_setting_is_real(ratio: float, rounds: int, word: str) -> None:
    results = {("heap", "decoding", "retain"): measured(ratio, (2_000_000, 3_000_000), rounds)}
    text = shown(results)
    assert lines_of(results)[1][-1] == word
    assert "2 to 3" in text


def test_the_total_time_of_rare_events_counts() -> None:
    pair = [(1.0, 1.0), (1.0, 1.0), (1.0, 7.0)]
    assert SettingPairs([pair]).log_ratios == [0.0]
    assert SettingPairs([pair], is_of_rare_events=True).log_ratios == [pytest.approx(math.log(3))]


@pytest.fixture
def every_suite() -> Iterator[None]:
    """Load the suites of profile "full": "quick" measures no settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PROFILE_VARIABLE, "full")
        importlib.reload(suites)
    yield
    importlib.reload(suites)


@pytest.mark.usefixtures("every_suite")
def test_asv_gets_a_sample_from_every_pair_na_for_what_is_missing_and_the_reason_of_a_failure() -> None:
    cache = {
        ("heap", "decoding", "retain"): measured(0.5),
        ("heap", "decoding", "limit:64GB"): SettingPairs(missing="not at this commit"),
        ("heap", "decoding", "preallocate:256MB"): SettingPairs(failure="no glibc"),
    }
    suite = suites.Heap()
    assert suite.track_time_ratio(cache, "decoding", "retain")["samples"] == pytest.approx([0.5] * 12, rel=0.01)
    assert suite.track_memory_ratio(cache, "decoding", "retain") == {"samples": [2.0] * 12, "number": 1}
    with pytest.raises(NotImplementedError, match="not at this commit"):
        suite.track_time_ratio(cache, "decoding", "limit:64GB")
    with pytest.raises(RuntimeError, match="no glibc"):
        suite.track_memory_ratio(cache, "decoding", "preallocate:256MB")


@pytest.mark.usefixtures("every_suite")
def test_every_value_of_every_suite_is_one_that_is_measured() -> None:
    every = set(keys(AXES))
    found = [suites.GarbageCollection, suites.Heap, suites.Threads, suites.Dtypes]
    if settings.ALLOCATORS_HERE:
        found.append(suites.Allocator)
    asked = {
        (suite.axis, workload, value) for suite in found for workload in suite.params[0] for value in suite.params[1]
    }
    if not settings.ALLOCATORS_HERE:
        every -= {key for key in every if key[0] == "allocator"}
    assert asked == every


def test_the_study_keeps_each_round_goes_on_after_an_interruption_and_fills_the_tables_of_the_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def take(axes: Any, rounds: range, *_: object) -> dict[Any, SettingPairs]:
        if rounds.start == 2 and rounds not in asked:
            asked.append(rounds)
            raise KeyboardInterrupt
        asked.append((tuple(axes), *rounds))
        failing = SettingPairs(failure="no glibc" if rounds.start == 1 else "")
        return {("heap", "decoding", DEFAULT): measured(1.3, rounds=1), ("heap", "decoding", "limit:1"): failing}

    monkeypatch.setattr(command, "take_turns", take)
    call = ["--only", "heap,dtype", "--rounds", "12", "--samples", str(tmp_path / "settings.jsonl")]
    assert command.main(call) == INTERRUPTED
    assert command.main(call) == 0
    assert asked == [
        *((("heap", "dtype"), number) for number in range(2)),
        range(2, 3),
        *((("heap", "dtype"), number) for number in range(2, 12)),
    ]
    printed = capsys.readouterr().out
    assert "1.30 (1.30 to 1.30)" in printed
    assert "no glibc" in printed
    explained, table = render(tmp_path / "settings.jsonl").strip().split("\n\n")
    assert explained.startswith("12 pairs of processes for each; intervals of 99.9%.")
    assert table.splitlines() == [
        "| heap | decoding |",
        "| --- | --- |",
        "| `default` | 1.30 (1.30 to 1.30), slower |",
        "| `limit:1` | failed |",
    ]
    with pytest.raises(SystemExit):
        command.main(["--only", "stack"])
    assert "no setting is called stack" in capsys.readouterr().err


@pytest.mark.parametrize("error", [DifferentWork("an epoch gave 1.0 and 2.0"), MeasurementError("it has ended")])
def test_what_cannot_be_compared_is_an_error_that_says_why(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(command, "take_turns", fail)
    assert command.main(["--samples", str(tmp_path / "settings.jsonl")]) == 2
    assert str(error) in capsys.readouterr().err
