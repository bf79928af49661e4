"""Runtime settings of `fit`: in force while it trains, restored afterwards, audited."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator

import pytest
import torch

import etl
from etl.loading.batch import Batch
from etl.training import FitResult


class Own:
    """An iterator of a user, which announces no batch boundaries; notes whether the collector is on."""

    batch_size, dtype, epoch = 2, "float32", 0

    def __init__(self) -> None:
        self.collects: list[bool] = []
        self.threads: list[int] = []

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(4):
            self.collects.append(gc.isenabled())
            self.threads.append(torch.get_num_threads())
            yield Batch(torch.zeros(2, 3).numpy(), torch.zeros(2, dtype=torch.int64).numpy())


def fit(iterator: Own, **settings: object) -> FitResult:
    return etl.fit(torch.nn.Linear(3, 2), iterator, backend="cpu", **settings)  # type: ignore[arg-type]


def test_settings_are_in_force_while_it_trains_and_audited() -> None:
    iterator = Own()
    before = torch.get_num_threads()
    result = fit(iterator, gc="off", heap="retain", threads=3)
    assert iterator.collects == [False] * 4
    assert iterator.threads == [3] * 4
    assert gc.isenabled()
    assert torch.get_num_threads() == before
    assert [(each.setting, each.requested, each.is_inert) for each in result.settings] == [
        ("threads", "3", False),
        ("heap", "retain", False),
        ("gc", "off", False),
    ]


def test_a_window_works_with_an_iterator_of_ones_own() -> None:
    (audit,) = fit(Own(), gc=etl.runtime.GcPolicy("window:0")).settings
    assert audit.effect == "4 collections between batches, 0 others"


def test_without_settings_nothing_is_audited() -> None:
    assert fit(Own()).settings == []


def test_a_setting_without_effect_is_warned_of() -> None:
    class Meddling(Own):
        def __iter__(self) -> Iterator[Batch]:
            for batch in super().__iter__():
                gc.enable()
                yield batch

    with pytest.warns(
        UserWarning,
        match=r"not in force: GC policy off was asked for, and automatic collection is on: .* calls gc\.enable\(\)\.",
    ):
        fit(Meddling(), gc="off")


def test_a_library_that_is_loaded_while_it_trains_with_fewer_threads_is_not_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Decoding(Own):
        def __iter__(self) -> Iterator[Batch]:
            opencv.setNumThreads(1)  # as etl does with decoder="turbo", for images that are resized in several threads
            monkeypatch.setitem(sys.modules, "cv2", opencv)
            return super().__iter__()

    opencv = importlib.import_module("cv2")
    found = opencv.getNumThreads()
    monkeypatch.delitem(sys.modules, "cv2")
    try:
        (audit,) = fit(Decoding(), threads=3).settings
        assert "opencv 1" in audit.in_force
        assert audit.alarm == ""
    finally:
        opencv.setNumThreads(found)


@pytest.mark.parametrize("settings", [{"gc": "never"}, {"heap": "limit:some"}, {"threads": 0}])
def test_a_setting_that_is_none_is_refused_before_training(settings: dict[str, object]) -> None:
    iterator = Own()
    with pytest.raises(ValueError, match=r"GC policy|heap policy|compute threads"):
        fit(iterator, **settings)
    assert iterator.collects == []
