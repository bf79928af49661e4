"""`fit` trains with any iterable of batches as with an iterator of etl."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

import etl
import presave
from etl.training import Iteration
from tests.leftovers import prefetch_threads
from tests.loaders import BATCH, FEATURES, LOADERS, RECORDS, Epochs, Generated, Numbers, dataloader, pairs
from tests.training.null_listener import NullListener

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = [4, 4, 2]
# The records of all loaders here, for iterators of etl.
NUMBERED = [{"features": np.full(FEATURES, number, np.float32), "label": number} for number in range(RECORDS)]


def small_model() -> torch.nn.Module:
    return etl.models.create("mlp", (FEATURES,), RECORDS)


def reference_scores(epochs: int) -> list[float]:
    iterator = etl.RawIterator(NUMBERED, etl.Pipeline([]), BATCH)
    return etl.fit(small_model(), iterator, backend="cpu", epochs=epochs).scores


class Following(NullListener):
    """Keeps every iteration, and fails at the one it is asked to."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.iterations: list[Iteration] = []
        self._fails_at = fails_at

    def iteration_done(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)
        if iteration.number == self._fails_at:
            raise RuntimeError("the listener fails")


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_losses_are_those_of_our_own_iterator_whatever_the_loader(make: Callable[[], Any]) -> None:
    following = Following()
    result = etl.fit(small_model(), make(), backend="cpu", listeners=[following], epochs=2)
    assert result.scores == reference_scores(2)
    assert (result.samples, result.epochs) == (2 * RECORDS, 2)
    assert [each.samples for each in following.iterations] == 2 * SIZES
    assert [each.epoch for each in following.iterations] == [0] * 3 + [1] * 3


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("wrap", [etl.AsyncIterator, lambda loader: etl.DeviceIterator(loader, "cpu")])
def test_what_reads_ahead_of_a_loader_trains_the_same(make: Callable[[], Any], wrap: Callable[[Any], Any]) -> None:
    following = Following()
    result = etl.fit(small_model(), wrap(make()), backend="cpu", listeners=[following], epochs=2)
    assert result.scores == reference_scores(2)
    assert [each.epoch for each in following.iterations] == [0] * 3 + [1] * 3


def test_tensors_reach_the_model_without_a_copy() -> None:
    class Looking(torch.nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            self.seen = features.data_ptr()
            return super().forward(features)

    model, features = Looking(FEATURES, 2), torch.ones(4, FEATURES)
    etl.fit(model, [(features, torch.zeros(4, dtype=torch.int64))], backend="cpu")
    assert model.seen == features.data_ptr()


@pytest.mark.parametrize("protocol", ["__array__", "__dlpack__"])
def test_arrays_of_other_libraries_are_trained_on(protocol: str) -> None:
    class Foreign:
        def __init__(self, array: np.ndarray) -> None:
            self.shape = array.shape
            self._array = array

        def __len__(self) -> int:
            return len(self._array)

    def delegate(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self._array, protocol)(*arguments, **options)

    setattr(Foreign, protocol, delegate)
    Foreign.__dlpack_device__ = lambda self: self._array.__dlpack_device__()  # type: ignore[attr-defined]
    batches = [(Foreign(features), Foreign(labels)) for features, labels in pairs()]
    assert etl.fit(small_model(), batches, backend="cpu").scores == reference_scores(1)


def test_the_model_keeps_its_dtype_unless_the_loader_names_one() -> None:
    class Named(list[Any]):
        dtype = "float64"

    features, labels = torch.ones(4, FEATURES, dtype=torch.float64), torch.zeros(4, dtype=torch.int64)
    for model, loader in (
        (small_model().double(), [(features, labels)]),
        (small_model(), Named([(features, labels)])),
    ):
        etl.fit(model, loader, backend="cpu")
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_a_sampler_that_shuffles_by_epoch_is_told_each_epoch_and_a_second_fit_goes_on() -> None:
    sampler = Epochs()
    loader: DataLoader[Any] = DataLoader(Numbers(), BATCH, sampler=sampler)
    etl.fit(small_model(), loader, backend="cpu", epochs=3)
    etl.fit(small_model(), loader, backend="cpu")
    assert sampler.iterated == [0, 1, 2, 3]
    sampler.set_epoch(7)
    following = Following()
    etl.fit(small_model(), loader, backend="cpu", listeners=[following])
    assert sampler.iterated[-1] == 7
    assert {each.epoch for each in following.iterations} == {7}


@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_under_a_distributed_sampler_has_another_order(workers: int) -> None:
    class Watching(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.seen = small_model(), []

        def forward(self, features: torch.Tensor) -> Any:
            self.seen += features[:, 0].int().tolist()
            return self.inner(features)

    model = Watching()
    etl.fit(model, DataLoader(Numbers(), BATCH, sampler=Epochs(), num_workers=workers), backend="cpu", epochs=2)
    first, second = model.seen[:RECORDS], model.seen[RECORDS:]
    assert sorted(first) == sorted(second) == list(range(RECORDS))
    assert first != second


@pytest.mark.parametrize("wrap", [lambda raw: raw, etl.AsyncIterator, lambda raw: etl.DeviceIterator(raw, "cpu")])
def test_a_fit_after_a_loop_that_took_the_last_batch_trains_on_the_next_epochs(wrap: Callable[[Any], Any]) -> None:
    iterator, following = wrap(etl.RawIterator(NUMBERED, etl.Pipeline([]), RECORDS)), Following()
    next(iter(iterator))  # the only one
    etl.fit(small_model(), iterator, backend="cpu", listeners=[following], epochs=2)
    assert [each.epoch for each in following.iterations] == [1, 2]
    assert following.training.first_epoch == 1


def test_a_sampler_inside_a_batch_sampler_and_a_set_epoch_of_the_loader_are_found() -> None:
    sampler = Epochs()
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_sampler=BatchSampler(sampler, BATCH, drop_last=False))
    etl.fit(small_model(), loader, backend="cpu", epochs=2)
    assert sampler.iterated == [0, 1]

    class Own(list[Any]):
        def __init__(self) -> None:
            super().__init__(pairs())
            self.sampler, self.told = Epochs(), []

        def set_epoch(self, epoch: int) -> None:
            self.told.append(epoch)

    own = Own()
    etl.fit(small_model(), own, backend="cpu", epochs=2)
    assert list(dict.fromkeys(own.told)) == [0, 1, 2]
    assert own.sampler.epoch == 0


def test_a_view_of_our_own_iterator_in_a_dataloader_resumes_where_its_state_was_taken() -> None:
    def view() -> etl.TorchDataset:
        return etl.TorchDataset(etl.RawIterator(NUMBERED, etl.Pipeline([]), BATCH, shuffle=True))

    first, second, following = view(), view(), Following()
    etl.fit(small_model(), DataLoader(first, batch_size=None), backend="cpu")
    batches = iter(first)
    next(batches)
    second.load_state_dict(first.state_dict())
    loader: DataLoader[Any] = DataLoader(second, batch_size=None)
    etl.fit(small_model(), loader, backend="cpu", listeners=[following], epochs=2)
    assert [each.epoch for each in following.iterations] == [1, 1, 2, 2, 2]
    assert second.epoch == second.iterator.epoch == 3


@pytest.mark.parametrize("make", [lambda: iter(Generated()), lambda: iter(pairs()), lambda: map(tuple, pairs())])
def test_an_iterator_of_python_is_refused_for_several_epochs_before_the_first(make: Callable[[], Any]) -> None:
    following = Following()
    with pytest.raises(ValueError, match=r"epochs is 2, but a .* is exhausted after one; .* pass an iterable"):
        etl.fit(small_model(), make(), backend="cpu", listeners=[following], epochs=2)
    assert following.iterations == []
    assert etl.fit(small_model(), make(), backend="cpu").samples == RECORDS


@pytest.mark.parametrize("wrap", [iter, lambda loader: etl.AsyncIterator(iter(loader))])
def test_any_other_iterator_that_is_exhausted_is_an_error_and_no_empty_epoch(wrap: Callable[[Any], Any]) -> None:
    following = Following()
    with pytest.raises(ValueError, match="epoch 1 has no batches, so there is nothing to train on; an iterator"):
        etl.fit(small_model(), wrap(dataloader()), backend="cpu", listeners=[following], epochs=2)
    assert len(following.iterations) == 3


def test_an_empty_loader_is_an_error() -> None:
    with pytest.raises(ValueError, match="epoch 0 has no batches"):
        etl.fit(small_model(), [], backend="cpu")


def test_a_batch_of_another_form_is_an_error_that_says_what_it_is() -> None:
    with pytest.raises(ValueError, match=r"a batch is an etl.Batch, a pair .*, not a tuple of 3"):
        etl.fit(small_model(), [(1, 2, 3)], backend="cpu")
    with pytest.raises(ValueError, match="not a NoneType"):
        etl.fit(small_model(), [None, *pairs()], backend="cpu")
    with pytest.raises(ValueError, match="the labels of a batch are a int; needed are arrays or tensors"):
        etl.fit(small_model(), Numbers(), backend="cpu")  # a data set of records, not of batches


def test_what_cannot_be_iterated_is_refused_and_the_model_untouched() -> None:
    model = small_model().eval()
    with pytest.raises(TypeError, match=r"batches come from an iterable, such as an iterator .*, not a function"):
        etl.fit(model, lambda: pairs(), backend="cpu")  # type: ignore[arg-type]
    assert not model.training


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_loader_ends_the_fit_at_its_batch(workers: int) -> None:
    following = Following()
    with pytest.raises(OSError, match="the disk is gone"):
        etl.fit(small_model(), dataloader(workers, bad=5), backend="cpu", listeners=[following])
    assert len(following.iterations) == 1


@pytest.mark.parametrize("ahead", [False, True])
def test_an_error_in_mid_epoch_closes_a_generator_though_its_traceback_is_held(ahead: bool) -> None:
    loader = Generated()
    iterator = etl.AsyncIterator(loader) if ahead else loader
    with pytest.raises(RuntimeError, match="the listener fails") as error:
        etl.fit(small_model(), iterator, backend="cpu", listeners=[Following(fails_at=1)])
    assert loader.open == 0
    assert prefetch_threads() == []
    assert error.tb is not None
    assert etl.fit(small_model(), iterator, backend="cpu").scores == reference_scores(1)


@pytest.mark.parametrize("kind", ["raw", "presaved", "async", "rest of an epoch", "DataLoader"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_too_few_records_for_a_whole_batch_are_an_error_that_says_so(kind: str, epochs: int, tmp_path: Path) -> None:
    records = [{"features": np.ones(3, np.float32), "label": number % 2} for number in range(5)]
    nothing = etl.Pipeline([])
    iterator: Any = etl.RawIterator(records, nothing, 8, drop_last=True)
    if kind == "presaved":
        iterator = etl.PresavedIterator(presave.write(tmp_path / "store", records), nothing, 8, drop_last=True)
    if kind == "async":
        iterator = etl.AsyncIterator(iterator)
    if kind == "rest of an epoch":
        smaller = etl.RawIterator(records, nothing, 2)
        next(iter(smaller))
        iterator.load_state_dict(smaller.state_dict())
    if kind == "DataLoader":
        iterator = DataLoader([(np.ones(3, np.float32), 0)] * 5, 8, drop_last=True)
    message = "(5|the) records do not fill a batch of 8, and an incomplete one is left out: lower batch_size"
    with pytest.raises(ValueError, match=rf"has no batches, so there is nothing to train on; {message}"):
        etl.fit(torch.nn.Linear(3, 2), iterator, epochs=epochs, backend="cpu")
