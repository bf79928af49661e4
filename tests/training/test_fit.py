"""`fit` trains: the same numbers whatever the strategy, in every dtype, with every kind of optimizer."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import etl
import presave
from etl.iterators import BatchIterator
from etl.sources import Record
from etl.training import Iteration
from tests.training.null_listener import NullListener

pytestmark = pytest.mark.usefixtures("one_thread")
SAMPLES = 72
BATCH = 16
DTYPES = ("float16", "bfloat16", "float32", "float64")
Make = Callable[..., BatchIterator]


class FirstDigits:
    """The first few digits, so that an epoch is short."""

    def __init__(self, folder: Path) -> None:
        self._all = etl.Idx.from_folder(folder)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Record:
        return self._all[index]


@pytest.fixture(scope="module")
def make(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes the iterator of a strategy over the same digits, shuffled."""
    pipeline = etl.digits_pipeline()
    source = FirstDigits(digits)
    path = tmp_path_factory.mktemp("stores") / "digits.store"
    presave.write(path, etl.records(source, pipeline.until("channels_first"))).close()

    def build(strategy: str = "raw", dtype: str = "float32") -> BatchIterator:
        iterator: BatchIterator
        if "presaved" in strategy:
            rest = pipeline.after("channels_first")
            iterator = etl.PresavedIterator(path, rest, BATCH, shuffle=True, seed=5, dtype=dtype)
        else:
            iterator = etl.RawIterator(source, pipeline, BATCH, shuffle=True, seed=5, dtype=dtype)
        return etl.AsyncIterator(iterator, 3) if "async" in strategy else iterator

    return build


def digits_model(name: str = "mlp") -> torch.nn.Module:
    return etl.models.create(name, (1, 28, 28), 10)


@pytest.mark.parametrize("strategy", ["raw async", "presaved", "presaved async"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_and_weights_are_bit_for_bit_those_of_raw_whatever_the_strategy(
    make: Make, strategy: str, dtype: str
) -> None:
    reference, model = digits_model(), digits_model()
    expected = etl.fit(reference, make("raw", dtype), backend="cpu", epochs=2)
    with make(strategy, dtype) as iterator:
        result = etl.fit(model, iterator, backend="cpu", epochs=2)
    assert result.scores == expected.scores
    for trained, as_raw in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(trained, as_raw)


@pytest.mark.parametrize("name", ["mlp", "lenet", "residual", "lstm"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_model_trains_in_every_dtype(dtype: str, name: str) -> None:
    model = digits_model(name)
    batches = etl.SyntheticIterator((1, 28, 28), 10, batches=1, batch_size=4, dtype=dtype)
    result = etl.fit(model, batches, backend="cpu", learning_rate=0.001)
    assert np.isfinite(result.scores).all()
    assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}


def test_the_first_score_is_the_loss_of_the_untrained_model_on_the_first_batch(make: Make) -> None:
    features, labels = etl.backend("cpu").put(next(iter(make())))
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(digits_model()(features), labels).item()
    assert etl.fit(digits_model(), make(), backend="cpu").scores[0] == expected


def test_scores_do_not_stay_tensors(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = etl.fit(digits_model(), make("raw"), backend="cpu").scores
    monkeypatch.setattr(sys.modules[etl.fit.__module__], "SCORES_KEPT", 3)
    seen: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    class Watches(NullListener):
        def iteration_done(self, iteration: Iteration) -> None:
            seen.append(weakref.ref(iteration.score))
            alive.append(sum(each() is not None for each in seen))

    assert etl.fit(digits_model(), make("raw"), backend="cpu", listeners=[Watches()]).scores == expected
    assert len(alive) > 4
    assert max(alive) <= 4


def test_training_lowers_the_score(make: Make) -> None:
    scores = etl.fit(digits_model(), make(), backend="cpu", optimizer="adam", learning_rate=0.001, epochs=10).scores
    batches = len(make())
    assert np.mean(scores[-batches:]) < 0.5 * np.mean(scores[:batches])


@pytest.mark.parametrize(
    ("name", "create"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)],
)
def test_a_named_optimizer_is_torchs_own_with_the_learning_rate_asked_for(
    make: Make, name: str, create: type[torch.optim.Optimizer]
) -> None:
    by_name, by_hand = digits_model(), digits_model()
    named = etl.fit(by_name, make(), backend="cpu", optimizer=name, learning_rate=0.03)
    own = etl.fit(by_hand, make(), backend="cpu", optimizer=create(by_hand.parameters(), lr=0.03))  # type: ignore[call-arg]
    assert named.scores == own.scores


def test_an_optimizer_made_before_fit_changed_the_dtype_still_updates_the_model(make: Make) -> None:
    model = digits_model()
    before = [parameter.detach().double() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    etl.fit(model, make(dtype="float64"), backend="cpu", optimizer=optimizer)
    for parameter, initial in zip(model.parameters(), before, strict=True):
        assert not torch.equal(parameter, initial)


def test_the_callers_loss_is_what_is_minimised_and_reported(make: Make) -> None:
    def twice(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return 2 * torch.nn.functional.cross_entropy(output, labels)

    doubled = etl.fit(digits_model(), make(), backend="cpu", loss=twice, learning_rate=0.01)
    plain = etl.fit(digits_model(), make(), backend="cpu", learning_rate=0.02)
    # A power of two changes no rounding: half the rate with twice the loss is the same training.
    assert doubled.scores == [2 * score for score in plain.scores]


def test_fit_leaves_the_model_training_though_it_came_evaluating(make: Make) -> None:
    model = digits_model().eval()
    etl.fit(model, make(), backend="cpu")
    assert model.training


def test_the_result_counts_samples_iterations_and_epochs_and_its_seconds_hold_every_iteration(make: Make) -> None:
    seen: list[Iteration] = []
    listener = etl.PerformanceListener(output=lambda line: None)
    listener.iteration_done = seen.append  # type: ignore[method-assign]
    with make("presaved async") as iterator:
        result = etl.fit(digits_model(), iterator, backend="cpu", listeners=[listener], epochs=3)
    assert (result.samples, result.epochs, len(result.scores)) == (3 * SAMPLES, 3, 3 * 5)
    assert sum(iteration.seconds for iteration in seen) <= result.seconds
    assert [iteration.number for iteration in seen] == list(range(15))
    assert [iteration.epoch for iteration in seen] == [0] * 5 + [1] * 5 + [2] * 5
    assert [iteration.samples for iteration in seen] == ([BATCH] * 4 + [8]) * 3


def test_a_second_fit_goes_on_with_the_next_epoch(make: Make) -> None:
    at_once, in_parts = digits_model(), digits_model()
    expected = etl.fit(at_once, make(), backend="cpu", epochs=2).scores
    iterator = make()
    parts = [etl.fit(in_parts, iterator, backend="cpu").scores for _ in range(2)]
    assert parts[0] + parts[1] == expected


def test_an_iterator_that_is_its_own_epoch_is_not_closed_between_epochs() -> None:
    class OwnEpoch:
        batch_size, dtype, epoch, closed = 4, "float32", 0, False

        def __iter__(self) -> OwnEpoch:
            self._left = 3
            return self

        def __next__(self) -> etl.Batch:
            if self.closed or not self._left:
                raise StopIteration
            self._left -= 1
            return etl.Batch(np.zeros((4, 1, 28, 28), np.float32), np.zeros(4, np.int64))

        def close(self) -> None:
            self.closed = True

    result = etl.fit(digits_model(), OwnEpoch(), backend="cpu", epochs=2)  # type: ignore[arg-type]
    assert len(result.scores) == 6


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True, "2"])
def test_epochs_that_are_no_whole_number_above_0_are_refused(make: Make, epochs: object) -> None:
    with pytest.raises(ValueError, match=f"epochs must be a whole number of at least 1, not {epochs!r}"):
        etl.fit(digits_model(), make(), backend="cpu", epochs=epochs)  # type: ignore[arg-type]
