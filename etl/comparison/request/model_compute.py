"""Compute of a comparison with a model, in training or inference: equal work gives equal bits. Imports torch."""

from __future__ import annotations

import copy
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils._pytree import tree_flatten

from etl import models
from etl.comparison.request.settings import Settings
from etl.comparison.request.work import Work
from etl.functions import find_function
from etl.loading.batch import Batch, as_batch
from etl.measuring.clock import Step
from etl.measuring.device import OneInFlight
from etl.measuring.ranks import Rank, join_group
from etl.measuring.values import JsonValues
from etl.training.backends import Backend, choose_device
from etl.training.backends import backend as find_backend
from etl.training.backends.tensors import as_array, as_tensor, first_array, map_batch
from etl.training.compute import INFERENCE, TRAINING, default_model, do_nothing
from etl.training.step import IGNORED, ForwardPass, Loss, TrainingStep, default_loss
from etl.training.synchronisation import GradientAveraging
from presave.files import write_atomically

LEARNING_RATE = 0.01
# In the folder of the stores: the classes of the labels, for all processes of the comparison.
CLASSES_FILE = "classes"
# Labels below this number are class numbers, and so are others if half of the numbers up to the largest occur.
MAX_SPARSE_CLASS = 1000
# A model with more outputs would take more memory and time than any loader.
MAX_CLASSES = 2**16
OTHER_COMPUTE = "give a training step of your own with --step, or --compute inference or --compute simulated:20ms"


@dataclass(frozen=True)
class Classes(JsonValues):
    """The classes that the labels of a source name."""

    count: int
    # The labels of the classes, in ascending order; None if labels are class numbers.
    values: list[int] | None = None


class ModelCompute(ABC):
    """A `Compute` with a model on its device.

    On a CPU, a step is done when it returns. On a device, it is still in flight then, unless `waits` is set.
    """

    def __init__(self, model: torch.nn.Module, backend: Backend, dtype: str, waits: bool) -> None:
        backend.place(model, dtype)
        self.weights = _digest(model)
        self.device = str(backend.device)
        self.step: Step = lambda batch: self._run(backend.put(batch))
        self.no_op: Step = do_nothing
        self._on_device: OneInFlight | None = None
        if backend.device.type != "cpu":
            self.step = self._on_device = OneInFlight(self._run, _make_event, waits, backend.put)
            self.no_op = OneInFlight(do_nothing, _make_event, waits)

    @property
    def transfers(self) -> Sequence[float]:
        """Seconds that each step of the last epoch waited for the copy of its batch; empty on a CPU."""
        return () if self._on_device is None else self._on_device.transfers

    @abstractmethod
    def _run(self, batch: Batch) -> None:
        """Compute on a batch of tensors on the device."""

    @property
    @abstractmethod
    def score(self) -> float | None:
        """Number that is the same after the same steps on the same batches; None before the first."""


class GradientDescent:
    """Plain stochastic gradient descent, as of torch.optim.SGD, which would first import torch._dynamo for a second."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], rate: float) -> None:
        self._parameters = [each for each in parameters if each.requires_grad]
        self._rate = rate

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002 - as torch calls it
        for each in self._parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        for each in self._parameters:
            if each.grad is not None:
                each.add_(each.grad, alpha=-self._rate)


class Training(ModelCompute):
    """A model that is trained in place, with one step of stochastic gradient descent per batch.

    The dtype of `labels`, of any batch, chooses the loss: see `default_loss`, also on `values`.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        backend: Backend,
        dtype: str,
        labels: np.ndarray,
        waits: bool = False,
        is_distributed: bool = False,
        values: Sequence[int] | None = None,
    ) -> None:
        super().__init__(model, backend, dtype, waits)
        optimizer = GradientDescent(model.train().parameters(), LEARNING_RATE)
        loss = default_loss(as_tensor(labels), values)
        module = GradientAveraging(model).module if is_distributed else model
        self._step = TrainingStep(module, optimizer, loss)
        self._loss: Any = None

    def _run(self, batch: Batch) -> None:
        self._loss = self._step(batch)

    @property
    def score(self) -> float | None:
        """Loss of the last batch; None before the first."""
        return None if self._loss is None else float(self._loss)


class Inference(ModelCompute):
    """A forward pass of a model in evaluation mode per batch. Labels are not needed."""

    def __init__(self, model: torch.nn.Module, backend: Backend, dtype: str, waits: bool = False) -> None:
        super().__init__(model, backend, dtype, waits)
        self._forward = ForwardPass(model.eval())
        self._output: Any = None

    def _run(self, batch: Batch) -> None:
        with torch.inference_mode():
            self._output = self._forward(batch)

    @property
    def score(self) -> float | None:
        """Mean square of the outputs for the last batch; None before the first, or if they are no tensors.

        Unlike a mean, it is not near 0, where numbers that are added in another order would seem to differ.
        """
        leaves, _ = tree_flatten(self._output)
        outputs = [each.detach().double().flatten() for each in leaves if isinstance(each, torch.Tensor)]
        return float(torch.cat(outputs).square().mean()) if outputs else None


def _make_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def make_model_compute(work: Work, batch: Any) -> ModelCompute:
    """Return the compute with the model of `work`, for batches like `batch`.

    Raises `ValueError` if there are no labels to train on, or the model cannot be made.
    """
    settings = work.settings
    # As numpy arrays. Only their shapes and dtypes matter.
    arrays = map_batch(as_batch(batch), lambda array: as_array(as_tensor(array).cpu()))
    model, backend = model_for(work, arrays), _backend_of(settings, work.rank)
    if work.rank.is_together and backend.device.type == "cuda":
        torch.cuda.set_device(backend.device)  # where events are recorded, and what NCCL uses
    # Dropout draws equal masks for all strategies, whatever their loaders have drawn, and other ones on each rank.
    torch.manual_seed(settings.seed + work.rank.number)
    if settings.compute == INFERENCE:
        return Inference(model, backend, settings.dtype, settings.waits_for_steps)
    labels = first_array(arrays.labels)
    join_group(work.rank)
    together, values = work.rank.is_together, classes_of(work, labels).values
    training = Training(model, backend, settings.dtype, labels, settings.waits_for_steps, together, values)
    last = len(work.records) % settings.step_records
    if 0 < last < 2 * work.rank.world_size:  # the last batch of an epoch has one record on some rank
        _check_one_record(model, backend.put(map_batch(arrays, lambda array: array[:1])))
    return training


def _check_one_record(model: torch.nn.Module, batch: Batch) -> None:
    """Raise `ValueError` if `model` cannot be trained on a batch of one record; leave it as it is."""
    state = copy.deepcopy(model.state_dict())
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        ForwardPass(model)(batch)
    model.load_state_dict(state)


def _backend_of(settings: Settings, rank: Rank) -> Backend:
    """Return the device of `rank`: each rank of several has its own."""
    if rank.world_size == 1 or choose_device(settings.backend)[0] == "cpu":
        return find_backend(settings.backend)
    devices = torch.cuda.device_count()
    if devices < rank.world_size:
        raise ValueError(
            f"{rank.world_size} ranks need as many CUDA devices, but there are {devices}: compare with fewer --ranks, "
            "or with --backend cpu"
        )
    return find_backend(f"cuda:{rank.number}")


def model_for(work: Work, batch: Batch) -> torch.nn.Module:
    """Return the model of `work`, for batches like `batch`. Raises `ValueError` as `make_model_compute`."""
    settings = work.settings
    labels = first_array(batch.labels)
    if labels is None and settings.compute == TRAINING:
        raise ValueError(
            f"{settings.title} has no labels to train on: say which column holds them with --label, or label= of the "
            "source, or compare with --compute inference or --compute simulated:20ms"
        )
    return make_model(settings, first_array(batch.features).shape[1:], classes_of(work, labels).count)


def make_model(settings: Settings, input_shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    """Return the model that `settings` names, with the initial weights of its seed.

    The name is that of a built-in model, or "package.module:function". Such a function is called with `input_shape` and
    `outputs`, or without arguments if it takes none, and returns the model.

    Raises
    ------
    ValueError
        If there is no such model or function, the function raises, or what it returns is not a module, or has no
        parameters to train.
    """
    name = settings.model or default_model(input_shape)
    if ":" not in name:
        return models.create(name, input_shape, outputs, settings.seed)
    make = find_function(name, "--model")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.seed)
        try:
            model = make() if not _takes_arguments(make) else make(input_shape, outputs)
        except Exception as error:
            raise ValueError(
                f"--model {name}: {type(error).__name__}: {error}; it is called with the shape of a record, "
                f"{input_shape}, and the number of outputs, {outputs}, or without arguments if it takes none"
            ) from error
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"--model {name}: the function returned a {type(model).__name__}, not a torch.nn.Module")
    if settings.compute == TRAINING and not any(each.requires_grad for each in model.parameters()):
        raise ValueError(f"--model {name}: the model has no parameters to train")
    return model


def loss_for(work: Work, batch: Batch) -> Loss:
    """Return the loss of `work` for batches like `batch`; raise `ValueError` as `model_for` and `default_loss`."""
    labels = first_array(batch.labels)
    return default_loss(as_tensor(labels), classes_of(work, labels).values)


def classes_of(work: Work, labels: np.ndarray | None) -> Classes:
    """Return the classes of the source of `work`; for labels that are targets, as many as these.

    Labels are class numbers if they are from 0 to less than `MAX_SPARSE_CLASS`, or than twice the number of different
    ones. Otherwise the different labels, in ascending order, are the classes.

    Raises
    ------
    ValueError
        If the number of classes is unknown, or above `MAX_CLASSES`.
    """
    if labels is None:
        return Classes(1)
    if labels.dtype.kind not in "biu":
        return Classes(int(np.prod(labels.shape[1:])) if labels.ndim > 1 else 1)
    records = work.source
    classes = getattr(records, "classes", None)
    if isinstance(classes, Sized):  # of a user's data set, it may be a number
        return Classes(len(classes))
    if not getattr(records, "is_readable", True):
        raise ValueError(
            f"the number of classes of {work.settings.title} is unknown, since only the loader can read it; "
            f"{OTHER_COMPUTE}"
        )
    # The labels are found by a pass over the whole source. The first process does this for all others.
    known = work.folder / CLASSES_FILE
    if not known.exists():
        # Ranks begin at once: one must not read what another has written half of.
        write_atomically(known, json.dumps(_find_classes(work).to_json()).encode(), durable=False)
    return Classes.from_json(json.loads(known.read_text()))


def _find_classes(work: Work) -> Classes:
    records, seen = work.source, set[int]()
    for index in range(len(records)):
        label = records[index]["label"]
        array = np.asarray(first_array(label))
        if array.dtype.kind not in "biu":
            raise ValueError(
                f"field 'label' of record {index} of {work.settings.title} has dtype {array.dtype}, and other "
                f"labels are integers; {OTHER_COMPUTE}"
            )
        seen.update(map(int, array.ravel().tolist()))
        if len(seen) > MAX_CLASSES:
            raise ValueError(
                f"field 'label' of {work.settings.title}, of dtype {array.dtype}, holds more than {MAX_CLASSES:,} "
                f"different numbers, too many classes for a model; {OTHER_COMPUTE}"
            )
    values = sorted(seen - {IGNORED})
    if values and values[0] >= 0 and values[-1] < max(MAX_SPARSE_CLASS, 2 * len(values)):
        return Classes(values[-1] + 1)
    return Classes(len(seen), sorted(seen))


def _takes_arguments(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    positional = [each for each in parameters if each.kind not in (each.KEYWORD_ONLY, each.VAR_KEYWORD)]
    return len(positional) >= 2 or any(each.kind is each.VAR_POSITIONAL for each in positional)


def _digest(model: torch.nn.Module) -> str:
    digest = xxhash.xxh3_128()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        if not isinstance(tensor, torch.Tensor):  # extra state may be anything
            continue
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
