"""`EarlyStopping` in a fit on one rank; those with several are in `test_ranks.py`."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import etl
from etl.loading.batch import Batch
from etl.training import EarlyStopping, FitResult
from etl.training.early_stopping import _weight
from tests.leftovers import prefetch_threads
from tests.training.rank_jobs import make_model, raw


def scores_of(*scores: float) -> Any:
    following: Iterator[float] = iter(scores)
    return lambda model: next(following)


def fit(stopping: EarlyStopping, **options: Any) -> FitResult:
    return etl.fit(make_model(), raw(16), **{"backend": "cpu", "epochs": None, "listeners": [stopping], **options})


def test_it_stops_after_so_many_epochs_without_a_better_score() -> None:
    stopping = EarlyStopping(patience=2, evaluate=scores_of(5, 3, 4, 2.5, 2.6, 2.7, 1))
    result = fit(stopping)
    assert result.epochs == 6
    assert result.stopped == "no better score in 2 epochs: 2.5 in epoch 3"
    assert (stopping.scores, stopping.best_epoch) == ([5, 3, 4, 2.5, 2.6, 2.7], 3)


def test_an_improvement_is_more_than_min_delta() -> None:
    stopping = EarlyStopping(patience=2, min_delta=0.5, evaluate=scores_of(5, 4.6, 4.4, 4.1, 4, 3.8))
    assert fit(stopping).epochs == 5  # 4.4 is better than 5 by more than 0.5, and then nothing is
    assert stopping.best_epoch == 2


@pytest.mark.parametrize("keeps", [True, False])
def test_the_model_gets_the_parameters_of_the_best_epoch(keeps: bool) -> None:
    weights = []

    def evaluate(model: Any) -> float:
        assert not model.training
        weights.append(model[0].weight.clone())
        return [3.0, 1.0, 2.0][len(weights) - 1]

    model = make_model()
    stopping = EarlyStopping(max_epochs=3, evaluate=evaluate, keep_best=keeps)
    etl.fit(model, raw(16), backend="cpu", epochs=None, listeners=[stopping])
    assert model.training
    assert torch.equal(model[0].weight, weights[1 if keeps else 2])
    assert not torch.equal(weights[1], weights[2])


def test_the_score_is_the_mean_loss_of_all_records() -> None:
    model = make_model()
    features, labels = zip(*((batch.features, batch.labels) for batch in raw(21, 5)), strict=True)
    stopping = EarlyStopping(max_epochs=1, evaluate=raw(21, 5))
    etl.fit(model, raw(16), backend="cpu", listeners=[stopping])
    with torch.no_grad():
        output = model(torch.from_numpy(np.concatenate(features)))
        expected = torch.nn.functional.cross_entropy(output, torch.from_numpy(np.concatenate(labels)))
    assert stopping.scores == pytest.approx([float(expected)], rel=1e-6)


def test_repeated_records_do_not_count() -> None:
    whole = next(iter(raw(4, 4)))
    marked = Batch(
        np.concatenate([whole.features, whole.features[:1]]),
        np.concatenate([whole.labels, whole.labels[:1]]),
        repeated=np.array([False] * 4 + [True]),
    )
    all_marked = Batch(whole.features, whole.labels, repeated=np.ones(4, bool))
    scores = []
    for batches in ([whole], [marked], [marked, all_marked]):
        stopping = EarlyStopping(max_epochs=1, evaluate=batches)
        fit(stopping)
        scores += stopping.scores
    assert scores[0] == scores[1] == scores[2]


def test_labels_without_a_mask_weigh_as_many_as_there_are_records_beside_padded_ones() -> None:
    labels = np.zeros((4, 3)), np.zeros(4)
    batch = Batch(np.zeros((4, 2)), labels, labels_mask=(np.array([[1, 1, 0]] * 4), None))
    assert _weight(batch) == 8 + 4


def test_a_batch_whose_labels_are_all_padding_does_not_count() -> None:
    # Such as a sequence without labels, in batches of one record.
    whole = next(iter(raw(4, 4)))
    labelled = Batch(whole.features, whole.labels, labels_mask=np.ones(4))
    empty = Batch(whole.features, whole.labels, labels_mask=np.zeros(4))
    scores = []
    for batches in ([labelled], [labelled, empty]):
        stopping = EarlyStopping(max_epochs=1, evaluate=batches)
        fit(stopping)
        scores += stopping.scores
    assert scores[0] == scores[1]


def test_by_default_the_score_is_that_of_the_training() -> None:
    stopping = EarlyStopping(max_epochs=2)
    result = fit(stopping)
    assert stopping.scores == pytest.approx([np.mean(result.scores[:4]), np.mean(result.scores[4:])], rel=1e-6)


def test_losses_are_kept_only_where_they_decide() -> None:
    kept: list[int] = []

    class Counting(EarlyStopping):
        def iteration_done(self, iteration: Any) -> None:
            super().iteration_done(iteration)
            kept.append(len(self.state_dict()["losses"]))

    fit(Counting(max_epochs=1))
    fit(Counting(max_epochs=1, evaluate=scores_of(1)))
    assert kept == [1, 2, 3, 4, 0, 0, 0, 0]


def test_losses_before_a_resume_weigh_the_same_on_another_number_of_ranks() -> None:
    def started(world_size: int) -> Any:
        stopping = EarlyStopping(max_epochs=2, keep_best=False)
        # Without the other ranks, which would have the same.
        ranks = SimpleNamespace(world_size=world_size, check_equal=lambda *_: None, sum=lambda *values: values)
        training: Any = SimpleNamespace(ranks=ranks, epochs_done=0, check_whole_model=lambda _: None)
        stopping.training_started(training)
        return stopping

    before, after = started(2), started(1)
    before.iteration_done(SimpleNamespace(score=1.0, samples=4))
    after.load_state_dict(before.state_dict())
    assert after.state_dict() == before.state_dict()
    after.iteration_done(SimpleNamespace(score=4.0, samples=8))
    after.epoch_done(0)
    assert after.scores == [2.5]


def test_it_stops_within_an_epoch_when_the_time_is_over() -> None:
    stopping = EarlyStopping(max_seconds=1e-9)
    result = fit(stopping)
    assert (len(result.scores), result.epochs) == (1, 0)
    assert result.stopped == "1e-09 s are over"


def test_a_score_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="the score of epoch 1 is not a number"):
        fit(EarlyStopping(max_epochs=3, evaluate=scores_of(1, math.nan)))


def test_a_fit_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="epochs is None, but no listener would end the training"):
        etl.fit(make_model(), raw(8), backend="cpu", epochs=None, listeners=[etl.PerformanceListener()])


def test_it_can_be_used_again_and_keeps_nothing_of_the_training() -> None:
    stopping = EarlyStopping(max_epochs=2)
    first = fit(stopping)
    model = make_model()
    batches = etl.AsyncIterator(raw(16))
    etl.fit(model, batches, backend="cpu", epochs=None, listeners=[stopping])
    assert stopping.scores == pytest.approx([np.mean(first.scores[:4]), np.mean(first.scores[4:])], rel=1e-6)
    gone: list[Any] = [weakref.ref(model), weakref.ref(batches)]
    del model, batches
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_batches_that_cannot_be_evaluated_each_epoch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"generator.* can be evaluated once only; pass an iterable that begins again"):
        fit(EarlyStopping(max_epochs=2, evaluate=(batch for batch in raw(16))))
    batches = raw(16)
    with pytest.raises(ValueError, match="evaluate needs batches of its own"):
        etl.fit(make_model(), batches, backend="cpu", listeners=[EarlyStopping(max_epochs=2, evaluate=batches)])


def test_an_evaluation_that_uses_up_epochs_of_the_training_is_an_error() -> None:
    # They would be left out: a training that is resumed would count them as done, and end early.
    below, view = raw(16), etl.TorchDataset(raw(16))
    trained_and_evaluated: list[Any] = [
        (view, view),
        (DataLoader(view, batch_size=None), view),
        (etl.AsyncIterator(below), below),
        (below, lambda model: len(list(below))),
    ]
    for batches, evaluate in trained_and_evaluated:
        stopping = EarlyStopping(max_epochs=2, evaluate=evaluate)
        with pytest.raises(ValueError, match="evaluate needs batches of its own"):
            etl.fit(make_model(), batches, backend="cpu", epochs=2, listeners=[stopping])


def test_an_evaluation_without_batches_is_an_error_that_says_why() -> None:
    with pytest.raises(ValueError, match="evaluate has no batches; 3 records do not fill a batch of 4, "):
        fit(EarlyStopping(max_epochs=2, evaluate=raw(3, 4, drop_last=True)))
    exhausted = iter(DataLoader(TensorDataset(torch.ones(4, 6), torch.zeros(4, dtype=torch.long)), 2))
    with pytest.raises(ValueError, match="evaluate has no batches; an iterator, such as a generator, ends once"):
        fit(EarlyStopping(max_epochs=2, evaluate=exhausted))


def test_an_error_in_an_evaluation_leaves_no_thread_though_its_traceback_is_held() -> None:
    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            raise RuntimeError("the loss fails")
        return torch.nn.functional.cross_entropy(output, labels)

    with pytest.raises(RuntimeError, match="the loss fails") as error:
        fit(EarlyStopping(max_epochs=2, evaluate=etl.AsyncIterator(raw(40))), loss=loss)
    assert prefetch_threads() == []
    assert error.tb is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing would stop the training: give patience, max_epochs or max_seconds"),
        ({"patience": 0}, "patience must be a whole number of at least 1"),
        ({"max_epochs": 1.5}, "max_epochs must be a whole number of at least 1"),
        ({"patience": 1, "min_delta": -1}, "min_delta must be a finite number of at least 0"),
        ({"max_seconds": 0}, "max_seconds must be a number of seconds above 0"),
    ],
)
def test_invalid_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**options)
