"""`EarlyStopping`: ends a training once it no longer improves, or has taken long enough."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from etl.arguments import describe, whole_number
from etl.iterators import BatchIterator
from etl.iterators.iterator import call_optional, close_epoch
from etl.iterators.user_loader import as_iterator, is_exhausted_by_iterating
from etl.loading.batch import Batch, as_batch
from etl.measuring.structure import count_batches
from etl.training.fit import no_batches_reason
from etl.training.listeners import Iteration
from etl.training.ranks import Ranks
from etl.training.step import TrainingStep

if TYPE_CHECKING:
    import torch

    from etl.training.training import Training

Evaluation = Callable[["torch.nn.Module"], float]
_USES_UP = "evaluate needs batches of its own: evaluating would use up epochs of the training"


class EarlyStopping:
    """A listener that stops a training; with several ranks, all of them after the same iteration.

    Parameters
    ----------
    patience : int, optional
        Stop after this many epochs in a row without improvement. By default only the other limits stop.
    min_delta : float
        An epoch is an improvement if its score is lower than the best one by more than this.
    max_epochs : int, optional
        Stop after this many epochs, those before a resume included.
    max_seconds : float, optional
        Stop after the iteration during which this time is over, counted from the start of the fit.
    evaluate : iterable of batches or callable, optional
        Batches whose mean loss is the score: an iterator of etl, which is divided among ranks, or any other iterable
        that yields this rank's part. Records that a shard repeats do not count. Or `evaluate(model)`, which returns the
        score, lower for a better model; with several ranks, the mean of what it returns. The model is in evaluation
        mode. By default, the score is the mean loss of the epoch's training.
    keep_best : bool
        At the end, give the model the parameters and buffers of the epoch with the best score.

    Attributes
    ----------
    scores : list of float
        The score of each epoch.
    best_epoch : int or None
        The epoch with the best score.

    Raises
    ------
    ValueError
        If an argument is invalid, or another one on another rank; if there are no batches to evaluate, or they are
        those of the training; if a score is not a number.

    Notes
    -----
    Source: early stopping and EarlyStoppingParallelTrainer in the Deeplearning4j documentation.

    Examples
    --------
        stopping = etl.training.EarlyStopping(patience=3, evaluate=validation_batches)
        etl.fit(model, batches, epochs=None, listeners=[stopping])
    """

    needs_times = False
    may_stop = True

    def __init__(
        self,
        patience: int | None = None,
        min_delta: float = 0.0,
        max_epochs: int | None = None,
        max_seconds: float | None = None,
        evaluate: BatchIterator | Iterable[Any] | Evaluation | None = None,
        keep_best: bool = True,
    ) -> None:
        if patience is max_epochs is max_seconds is None:
            raise ValueError("nothing would stop the training: give patience, max_epochs or max_seconds")
        if not (min_delta >= 0 and math.isfinite(min_delta)):
            raise ValueError(f"min_delta must be a finite number of at least 0, not {min_delta!r}")
        if max_seconds is not None and not max_seconds > 0:
            raise ValueError(f"max_seconds must be a number of seconds above 0, not {max_seconds!r}")
        self._patience = None if patience is None else whole_number("patience", patience, least=1)
        self._max_epochs = None if max_epochs is None else whole_number("max_epochs", max_epochs, least=1)
        self._min_delta = min_delta
        self._max_seconds = max_seconds
        self._evaluate: Any = evaluate
        self._keep_best = keep_best
        self._training: Training | None = None
        self._world_size = 1
        self._part: BatchIterator | None = None
        self._forget()

    def _forget(self) -> None:
        self.scores: list[float] = []
        self.best_epoch: int | None = None
        self._best: float | None = None
        self._waited = 0
        self._best_model: dict[str, Any] | None = None
        # Losses of the running epoch, with the number of samples of each, on this rank.
        self._losses: list[tuple[Any, float]] = []

    def training_started(self, training: Training) -> None:
        """Divide the batches for evaluation among ranks."""
        training.check_whole_model("EarlyStopping")
        training.ranks.check_equal("settings of EarlyStopping", self._settings)
        self._training = training
        self._forget()
        self._world_size = training.ranks.world_size
        self._until = math.inf if self._max_seconds is None else time.monotonic() + self._max_seconds
        self._score = self._choose_score(training)

    def fit_started(self) -> None:
        """Stop a training at once that was resumed after its end."""
        self._stop_if_over(self._running)

    def iteration_done(self, iteration: Iteration) -> None:
        """Note the loss if it decides, and stop if the time is over on rank 0."""
        training = self._running
        if self._evaluate is None:  # otherwise each would be kept, in the memory of the device, until the epoch ends
            self._losses.append((iteration.score, iteration.samples))
        if self._max_seconds is not None and training.ranks.first(time.monotonic() >= self._until):
            training.stop(f"{self._max_seconds:g} s are over")

    def epoch_done(self, epoch: int) -> None:
        """Score the epoch, and stop if its score or number is a reason to."""
        training = self._running
        score = self._score()
        self._losses = []
        if math.isnan(score):
            raise ValueError(f"the score of epoch {epoch} is not a number")
        self.scores.append(score)
        if self._best is None or score < self._best - self._min_delta:
            self._best, self.best_epoch, self._waited = score, epoch, 0
            if self._keep_best:
                self._best_model = copy.deepcopy(training.model.state_dict())
        else:
            self._waited += 1
        self._stop_if_over(training)

    def fit_ended(self) -> None:
        """Give the model its best parameters, unless the training has failed."""
        training = self._running
        try:
            if self._best_model is not None and not training.failed:
                training.model.load_state_dict(self._best_model)
        finally:
            if self._part is not None:
                self._part.close()
            # What a training uses is not kept alive by its listeners.
            self._training, self._part, self._best_model, self._losses = None, None, None, []
            del self._score

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs: scores, and the best model."""
        return {
            "scores": list(self.scores),
            "best": self._best,
            "best_epoch": self.best_epoch,
            "waited": self._waited,
            "best_model": self._best_model,
            # Only those of rank 0 are saved: they stand for those of all ranks, on any number of ranks.
            "losses": [[float(loss), samples * self._world_size] for loss, samples in self._losses],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, which `state_dict` has returned."""
        self.scores = list(state["scores"])
        self._best, self.best_epoch, self._waited = state["best"], state["best_epoch"], state["waited"]
        self._best_model = state["best_model"]
        self._losses = [(loss, samples / self._world_size) for loss, samples in state["losses"]]

    def _stop_if_over(self, training: Training) -> None:
        if self._patience is not None and self._waited >= self._patience:
            training.stop(f"no better score in {self._patience} epochs: {self._best:.6g} in epoch {self.best_epoch}")
        if self._max_epochs is not None and training.epochs_done >= self._max_epochs:
            training.stop(f"{self._max_epochs} epochs are over")

    @property
    def _running(self) -> Training:
        if self._training is None:
            raise RuntimeError("EarlyStopping is a listener of etl.fit, which has not begun")
        return self._training

    @property
    def _settings(self) -> dict[str, Any]:
        """The arguments that decide when all ranks stop, and with which score."""
        names = ("patience", "min_delta", "max_epochs", "keep_best")
        scores = "training" if self._evaluate is None else "function" if self._calls else "batches"
        limit = None if self._max_seconds is None else "given"  # that of rank 0 counts
        return {**{name: getattr(self, f"_{name}") for name in names}, "max_seconds": limit, "evaluate": scores}

    @property
    def _calls(self) -> bool:
        """True if the score is what a function returns."""
        return callable(self._evaluate) and not isinstance(self._evaluate, Iterable)

    def _choose_score(self, training: Training) -> Callable[[], float]:
        """Return a function that scores the epoch that has just ended, the same on all ranks."""
        if self._evaluate is None:
            return lambda: _mean([(float(score), samples) for score, samples in self._losses], training.ranks)
        if self._calls:
            return lambda: self._call(training)
        if self._evaluate is training.iterator:
            raise ValueError(_USES_UP)
        if is_exhausted_by_iterating(self._evaluate):
            raise ValueError(
                f"{describe(self._evaluate)} can be evaluated once only; pass an iterable that begins again"
            )
        whole = as_iterator(self._evaluate)
        part = training.ranks.share(whole)
        training.ranks.check_order(part)
        if not any(training.ranks.gather(count_batches(part) != 0)):
            raise _nothing_to_evaluate(part)
        self._part = None if part is whole else part
        return lambda: self._mean_loss(training, part)

    def _call(self, training: Training) -> float:
        score = _evaluating(training, lambda: float(self._evaluate(training.model)))
        return _mean([(score, 1)], training.ranks)

    def _mean_loss(self, training: Training, batches: BatchIterator) -> float:
        # The plain model: in a forward pass, torch's wrapper would wait for the other ranks.
        step = TrainingStep(training.model, training.optimizer, training.step.loss_function)

        def losses() -> list[tuple[float, int]]:
            found = []
            epoch = iter(batches)
            try:
                for batch in epoch:
                    kept = _without_repeated(training.backend.put(as_batch(batch)))
                    if kept.records:
                        weight = _weight(kept)
                        # The mean of no losses, as of a record whose labels are all padding, is not a number.
                        found.append((float(step.loss(kept)) if weight else 0.0, weight))
            finally:
                close_epoch(epoch, batches)
            return found

        own: list[tuple[float, float]] = _evaluating(training, losses)
        if not any(training.ranks.gather(len(own))):
            raise _nothing_to_evaluate(batches)
        return _mean(own, training.ranks)


def _nothing_to_evaluate(batches: BatchIterator) -> ValueError:
    return ValueError(f"evaluate has no batches; {no_batches_reason(batches)}")


def _evaluating(training: Training, function: Callable[[], Any]) -> Any:
    """Return what `function` returns with the model in evaluation mode, without gradients.

    Raises `ValueError` if it has used up an epoch of the training.
    """
    import torch

    model, epoch = training.model, training.iterator.epoch
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            found = function()
    finally:
        for module, mode in modes:
            module.training = mode
    call_optional(training.iterator, "settle")  # at the epoch of the iterator that it wraps
    if training.iterator.epoch != epoch:
        raise ValueError(_USES_UP)
    return found


def _mean(values: list[tuple[float, float]], ranks: Ranks) -> float:
    """Return the mean of pairs of a value and its weight, over all ranks."""
    total, weight = ranks.sum(sum(value * weight for value, weight in values), sum(weight for _, weight in values))
    return total / weight if weight else math.nan


def _weight(batch: Batch) -> int:
    """Return how many losses the loss of `batch` is the mean of."""
    if batch.labels_mask is None:
        return batch.records
    masks = batch.labels_mask if isinstance(batch.labels_mask, tuple) else (batch.labels_mask,)
    return sum(batch.records if mask is None else int((mask != 0).sum()) for mask in masks)


def _without_repeated(batch: Batch) -> Batch:
    if batch.repeated is None:
        return batch
    from etl.training.backends.tensors import map_batch

    keep = ~batch.repeated
    return map_batch(batch, lambda tensor: tensor[keep])
