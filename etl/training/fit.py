"""`fit`: one training loop for every loader."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from etl.arguments import describe, whole_number
from etl.iterators import BatchIterator
from etl.iterators.iterator import call_optional, close_epoch
from etl.iterators.user_loader import as_iterator, is_exhausted_by_iterating
from etl.loading.batch import Batch, as_batch
from etl.measuring.structure import count_batches
from etl.runtime import Audit, DeviceMemoryPolicy, GcPolicy, HeapPolicy, Policy, ThreadPolicy, batch_boundary
from etl.runtime.boundaries import announced_by_loop
from etl.training.backends import Backend, import_torch
from etl.training.listeners import Iteration, Listener
from etl.training.progress import ENDED, LISTENING, LOADING, TRAINING
from etl.training.ranks import join
from etl.training.step import Loss, TrainingStep, cross_entropy
from etl.training.synchronisation import synchronise
from etl.training.training import Training

if TYPE_CHECKING:
    import torch

    OptimizerMaker = Callable[[torch.nn.Module], torch.optim.Optimizer]

_END: Any = object()
# Scores that may be tensors at once: each has a block of device memory of its own.
SCORES_KEPT = 1024
_ITERABLE_AGAIN = (
    "an iterator, such as a generator, ends once and for all: pass an iterable that begins again, such as a "
    "DataLoader, a list or an object whose __iter__ is a generator function"
)


@dataclass
class RankResult:
    """The work of one rank in a fit.

    Attributes
    ----------
    rank : int
        The rank.
    device : str
        Its device.
    samples : int
        Samples that it trained on, including `repeated`.
    repeated : int
        Those that a shard repeats so that all ranks get the same number of batches.
    etl_seconds : float
        Sum of its waits for a batch.
    compute_seconds : float
        Sum of its training steps, with their waits for other ranks. On a device, steps that are still in flight count
        only if a listener needs times.
    seconds : float
        Duration, including start-up and every wait.
    """

    rank: int = 0
    device: str = "cpu"
    samples: int = 0
    repeated: int = 0
    etl_seconds: float = 0.0
    compute_seconds: float = 0.0
    seconds: float = 0.0


@dataclass
class FitResult:
    """The results of `fit`.

    Attributes
    ----------
    scores : list of float
        Loss of every iteration. With several ranks, the mean of their losses wherever their models were made equal.
    epochs : int
        Number of whole epochs.
    samples : int
        Number of samples that this rank trained on, including those that a shard repeats.
    seconds : float
        Duration on this rank, including start-up and every wait.
    settings : list of Audit
        One report for each runtime setting that was asked for.
    ranks : list of RankResult
        What each rank has done.
    stopped : str or None
        Why a listener has stopped the training.
    state : dict or None
        From `fit_parallel`: the state of the trained model, with tensors on the CPU.
    """

    scores: list[float] = field(default_factory=list)
    epochs: int = 0
    samples: int = 0
    seconds: float = 0.0
    settings: list[Audit] = field(default_factory=list)
    ranks: list[RankResult] = field(default_factory=list)
    stopped: str | None = None
    state: dict[str, Any] | None = None

    @property
    def total_samples(self) -> int:
        """Samples that all ranks have trained on, without those that are repeated."""
        return sum(each.samples - each.repeated for each in self.ranks)


def fit(
    model: torch.nn.Module,
    iterator: BatchIterator | Iterable[Any],
    *,
    backend: Backend | str = "auto",
    optimizer: str | torch.optim.Optimizer | OptimizerMaker = "sgd",
    learning_rate: float | None = None,
    loss: Loss | None = None,
    listeners: Sequence[Listener] = (),
    epochs: int | None = 1,
    gc: GcPolicy | str | None = None,
    heap: HeapPolicy | str | None = None,
    threads: ThreadPolicy | int | None = None,
    device_memory: DeviceMemoryPolicy | str | None = None,
    averaging_frequency: int = 1,
    report_score_after_averaging: bool = True,
) -> FitResult:
    """Train a model, alone or as one of several ranks.

    Parameters
    ----------
    model : torch.nn.Module
        Moved to the backend's device and the iterator's dtype, if it names one, in place. It is called with the
        batch's features, one argument for each input; and, if the batch has a `features_mask` and `forward` accepts
        `mask` or any keyword, with `mask=features_mask` (a tuple for several inputs).
    iterator : BatchIterator or iterable of batches
        Yields the batches of one epoch each time it is iterated: an iterator of etl; or any other iterable, such as a
        torch DataLoader. See the notes on both.
    backend : Backend or str
        "auto", "cpu", "cuda" or, for another CUDA device than the current one, "cuda:1".
    optimizer : str, torch.optim.Optimizer or callable
        "sgd", "adam", an optimizer made by the caller, or a function that makes one for `model`.
    learning_rate : float, optional
        For "sgd" and "adam"; 0.01 by default.
    loss : callable, optional
        `loss(output, labels)`, a scalar tensor; cross entropy by default. If the batch has a `labels_mask`, it is
        called with `mask=labels_mask`. Cross entropy is then the mean over the steps that are data, for outputs of
        shape `(batch, steps, classes)`.
    listeners : sequence of Listener
        Called after every iteration.
    epochs : int or None
        Number of epochs; None to train until a listener, such as `EarlyStopping`, stops the training.
    gc : GcPolicy or str, optional
        Garbage collection during the fit, such as "freeze".
    heap : HeapPolicy or str, optional
        The allocator during the fit, such as "retain".
    threads : ThreadPolicy or int, optional
        Compute threads during the fit.
    device_memory : DeviceMemoryPolicy or str, optional
        torch's allocators on a CUDA device during the fit, such as "expandable_segments:True".
    averaging_frequency : int
        With several ranks: 1 averages the gradients of every iteration. A higher number averages the parameters every
        so many iterations, counted in each epoch, and at its end.
    report_score_after_averaging : bool
        With several ranks: the score of an iteration after which the models are equal is the mean of their scores,
        rather than this rank's.

    Returns
    -------
    FitResult
        Losses, counts, duration, and an audit of each runtime setting. The audits are not part of the duration.
        With several ranks, what each of them has done.

    Raises
    ------
    TypeError
        If `iterator` cannot be iterated, or not be divided among several ranks.
    ValueError
        If an argument is invalid; if there are several epochs and the iterator is exhausted after one; if a batch has
        another form than those in the notes; if an epoch has no batches; if labels have a mask and the loss does not
        accept `mask`; if the batches are the part of another rank, or a DataLoader's own sampler gives all records to
        every rank; if ranks would divide other records, or in another order; if a part of the model is wrapped or
        sharded, and the rest is not.
    RuntimeError
        If the backend is not available, or has fewer devices than there are ranks on this machine; if another rank
        fails.

    Warns
    -----
    UserWarning
        If a runtime setting was not in force, with what to do about it.

    Notes
    -----
    An error while loading is raised at the batch that it belongs to. No thread of the iterator is left running, even
    after an error.

    If a state was loaded into an iterator of etl, the first epoch is the rest of the one in which the state was taken.
    Records that a shard repeats (`Batch.repeated`) are trained on and counted like any other.

    A batch of another iterable is an `etl.Batch`, a pair of features and labels, or a mapping with keys such as "image"
    and "label". Features and labels are tensors or arrays, or a tuple or list of them. Tensors that are on the device
    already are not copied.

    As the training loop, `fit` passes the number of each epoch to `set_epoch` of the iterable. If it has none, the
    number is passed to its sampler, batch sampler and data set, so that a `DistributedSampler` shuffles anew. The first
    number is the `epoch` of one of these, or 0; after the last epoch it is set to the next one.

    If torch's process group is initialised, or torchrun has started this process, it trains as one of several ranks.
    `iterator` is divided among them by `shard`, unless it is this rank's part already; any other iterable must be, and
    so a DataLoader needs a `DistributedSampler`. The model is wrapped in torch's `DistributedDataParallel` unless all
    of it is wrapped or fully sharded already, and all ranks begin with the model of rank 0. "cuda" is the device of the
    rank's number. The models of all ranks are equal when `fit` returns. An error in one rank becomes an error in all.
    Random generators stay as they are: under torchrun, seed them with the rank in it, for dropout that differs from
    rank to rank.

    Source: ParallelWrapper in "Deeplearning4j With GPUs", and for its averaging the Deeplearning4j documentation.

    Examples
    --------
    >>> train = etl.SyntheticIterator((8,), classes=4, batches=10)
    >>> result = etl.fit(etl.models.create("mlp", (8,), 4), train, backend="cpu", epochs=2)
    >>> result.epochs, len(result.scores)
    (2, 20)
    """
    import_torch()  # its error says how to install it
    epochs = None if epochs is None else whole_number("epochs", epochs, least=1)
    averaging_frequency = whole_number("averaging_frequency", averaging_frequency, least=1)
    if epochs is None and not any(getattr(each, "may_stop", False) for each in listeners):
        raise ValueError(
            "epochs is None, but no listener would end the training: pass etl.training.EarlyStopping, or epochs"
        )
    whole = as_iterator(iterator)
    if epochs != 1 and is_exhausted_by_iterating(iterator):
        raise ValueError(f"epochs is {epochs}, but {describe(iterator)} is exhausted after one; {_ITERABLE_AGAIN}")
    make_optimizer = _optimizer_maker(optimizer, learning_rate)
    policies = _policies(gc, heap, threads)
    on_device = DeviceMemoryPolicy(device_memory) if isinstance(device_memory, str) else device_memory
    # A checkpoint has what the other listeners have made of the same iteration.
    listeners = sorted(listeners, key=lambda listener: getattr(listener, "runs_last", False))
    together = [type(each).__name__ for each in listeners if hasattr(each, "training_started")]
    ranks, chosen = join(backend)
    if on_device is not None:
        policies.insert(
            0, on_device if on_device.device is not None else DeviceMemoryPolicy(on_device.policy, chosen.device)
        )
    ranks.check_equal(
        "epochs, averaging_frequency, report_score_after_averaging and listeners that work together",
        (epochs, averaging_frequency, report_score_after_averaging, together),
    )
    source = ranks.share(whole)
    ranks.check_order(source)
    ranks.check_equal("number of batches", None if ranks.is_alone else count_batches(source))
    chosen.place(model, getattr(source, "dtype", None)).train()
    update = make_optimizer(model)
    synchronisation = synchronise(model, update, ranks, averaging_frequency)
    step = TrainingStep(synchronisation.module, update, loss or cross_entropy)
    training = Training(model, update, source, chosen, ranks, synchronisation, step, epochs, listeners)
    loop = _Loop(training, report_score_after_averaging)
    started = time.perf_counter()
    try:
        with ExitStack() as in_force:
            for policy in policies:
                in_force.enter_context(policy)
            loop.run()
            chosen.synchronize()
            loop.own.seconds = time.perf_counter() - started
            settings = [policy.audit() for policy in policies]
        training.progress.set(ENDED)
        results = ranks.gather(loop.own)
    except BaseException as error:
        training.fail(error)
        raise
    finally:
        training.close()
        if source is not whole:
            whole.set_epoch(source.epoch)
            source.close()
    for audit in settings:
        if audit.is_inert:
            warnings.warn(f"a runtime setting is not in force: {audit.alarm}", stacklevel=2)
    return FitResult(
        scores=loop.read_scores(),
        epochs=loop.epochs,
        samples=loop.own.samples,
        seconds=loop.own.seconds,
        settings=settings,
        ranks=results,
        stopped=training.stopped,
    )


def no_batches_reason(batches: BatchIterator) -> str:
    """Return why an epoch has no batches, and what to do."""
    if count_batches(batches) != 0:
        return _ITERABLE_AGAIN
    try:
        has = f"{batches.state_dict()['records']:,} records"
    except (AttributeError, KeyError, NotImplementedError, TypeError):  # a DataLoader, or a user's iterator
        has = "the records"
    ranks = f" on each of {batches.world_size} ranks" if batches.world_size > 1 else ""
    size = getattr(batches, "batch_size", None)
    return (
        f"{has} do not fill a batch{f' of {size}' if size else ''}{ranks}, and an incomplete one is left out: lower "
        "batch_size, or pass drop_last=False"
    )


class _Loop:
    """The loop of a training."""

    def __init__(self, training: Training, reports_mean: bool) -> None:
        self._training = training
        self._listeners: Sequence[Listener] = training.listeners
        self._reports_mean = reports_mean
        self._waits = any(listener.needs_times for listener in self._listeners)
        self.own = RankResult(training.ranks.rank, str(training.backend.device))
        # Numbers, and after these the tensors that were not read yet.
        self.scores: list[Any] = []
        self._read = 0
        self.epochs = 0

    def run(self) -> None:
        """Train, and run the listeners, those that have started until the end, whatever happens."""
        training = self._training
        with ExitStack() as started_listeners:
            try:
                for listener in self._listeners:
                    call_optional(listener, "training_started", training)
                for listener in self._listeners:
                    listener.fit_started()
                    started_listeners.callback(listener.fit_ended)
                while not training.is_over:
                    self._run_epoch()
            except BaseException:
                # Known to `fit_ended`, which must not wait for other ranks then.
                training.failed = True
                raise

    def _run_epoch(self) -> None:
        training, before = self._training, len(self.scores)
        iterator, epoch = training.iterator, training.iterator.epoch
        is_resumed = not self.scores and training.position not in (None, (epoch, 0))
        is_whole = False
        # Calling iter() counts as loading, because many iterators read their first batches there.
        asked = ended = time.perf_counter()
        training.progress.set(LOADING, epoch)
        batches: Any = iter(iterator)
        try:
            # A stop after the last batch of an epoch lets the epoch end.
            while training.stopped is None or self._is_at_end(epoch):
                with announced_by_loop():
                    item = next(batches, _END)
                loaded = time.perf_counter()
                if item is _END:
                    is_whole = True
                    break
                number = len(self.scores) - before
                training.progress.set(TRAINING, epoch, number)
                batch = as_batch(item)
                del item
                score = self._step(batch)
                done = time.perf_counter()
                iteration = Iteration(
                    number=len(self.scores),
                    epoch=epoch,
                    samples=batch.records,
                    etl_seconds=loaded - asked,
                    compute_seconds=done - loaded,
                    seconds=done - ended,
                    score=score,
                    device=self.own.device,
                )
                self._count(iteration, batch)
                ended = done
                training.progress.set(LISTENING, epoch, number)
                for listener in self._listeners:
                    listener.iteration_done(iteration)
                batch_boundary()
                training.progress.set(LOADING, epoch, number + 1)
                asked = time.perf_counter()
        finally:
            close_epoch(batches, iterator)
        # The rest of a resumed epoch may have none, for more ranks or larger batches.
        if len(self.scores) == before and (not is_resumed or count_batches(iterator) == 0):
            raise ValueError(
                f"epoch {epoch} has no batches, so there is nothing to train on; {no_batches_reason(iterator)}"
            )
        training.synchronisation.end_epoch()
        training.are_models_equal = True
        if is_whole:
            self.epochs += 1
            training.epochs_done += 1
            for listener in self._listeners:
                call_optional(listener, "epoch_done", epoch)

    def _is_at_end(self, epoch: int) -> bool:
        position = self._training.position
        return position is not None and position[0] != epoch

    def _step(self, batch: Batch) -> Any:
        training = self._training
        score = training.step(training.backend.put(batch))
        training.are_models_equal = training.synchronisation.after_step()
        if self._reports_mean and training.are_models_equal:
            score = training.ranks.mean(score)
        if self._waits:
            training.backend.synchronize()
        return score

    def read_scores(self) -> list[float]:
        """Return all scores as numbers."""
        if left := self.scores[self._read :]:
            self.scores[self._read :] = import_torch().stack(left).tolist()
            self._read = len(self.scores)
        return self.scores

    def _count(self, iteration: Iteration, batch: Batch) -> None:
        self.scores.append(iteration.score)
        if len(self.scores) - self._read >= SCORES_KEPT:
            self.read_scores()
        self.own.samples += iteration.samples
        self.own.repeated += 0 if batch.repeated is None else int(batch.repeated.sum())
        self.own.etl_seconds += iteration.etl_seconds
        self.own.compute_seconds += iteration.compute_seconds


def _policies(
    gc: GcPolicy | str | None,
    heap: HeapPolicy | str | None,
    threads: ThreadPolicy | int | None,
) -> list[Policy]:
    # Garbage collection comes last, so that objects made by the other policies are frozen, too.
    made = (
        ThreadPolicy(threads) if isinstance(threads, int) else threads,
        HeapPolicy(heap) if isinstance(heap, str) else heap,
        GcPolicy(gc) if isinstance(gc, str) else gc,
    )
    return [policy for policy in made if policy is not None]


def _optimizer_maker(
    optimizer: str | torch.optim.Optimizer | OptimizerMaker, learning_rate: float | None
) -> OptimizerMaker:
    """Return a function that makes the optimizer once the model is on its device.

    Arguments are checked now, before the model is moved.
    """
    if not isinstance(optimizer, str):
        if learning_rate is not None:
            raise ValueError(
                f"learning_rate={learning_rate} has no effect on an optimizer that has its own; leave it out"
            )
        return lambda model: optimizer(model) if callable(optimizer) else optimizer
    torch = import_torch()
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    if optimizer not in kinds:
        raise ValueError(f"unknown optimizer {optimizer!r}; known: {', '.join(kinds)}, or a torch.optim.Optimizer")
    rate = 0.01 if learning_rate is None else learning_rate
    return lambda model: kinds[optimizer](model.parameters(), lr=rate)
