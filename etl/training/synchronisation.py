"""Ways of keeping the models of ranks equal: by the gradients of every iteration, or by averaging every few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from etl.training.ranks import Ranks
from etl.training.step import unwrapped

if TYPE_CHECKING:
    import torch


class Synchronisation:
    """Keeps the models of all ranks equal; of a single rank, by doing nothing.

    `module` is what is called with the features of a batch.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module

    def after_step(self) -> bool:
        """Run after every update; return True if the models are equal now."""
        return True

    def end_epoch(self) -> None:
        """Make the models equal at the end of an epoch, or where training stops within one."""

    def close(self) -> None:
        """Drop the model."""
        del self.module


class GradientAveraging(Synchronisation):
    """Averages gradients during each backward pass, by torch's `DistributedDataParallel`.

    The model is wrapped unless it is wrapped already, for this or for fully sharded training.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model if is_wrapped(model) else _distributed(model))

    def end_epoch(self) -> None:
        """Give all ranks the buffers of rank 0, such as statistics of batches, as the next forward pass would."""
        if unwrapped(self.module) is not self.module:
            broadcast(self.module.buffers())


class ParameterAveraging(Synchronisation):
    """Averages parameters every `frequency` iterations, and at the end of each epoch.

    Floating and complex buffers and the optimizer's state are averaged with them, so that the models are equal
    afterwards, and trained further alike.

    Source: ParallelWrapper of Deeplearning4j, with its `averagingFrequency` and `averageUpdaters`.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks, frequency: int) -> None:
        part = wrapped_part(model)
        if part is not None:
            raise ValueError(
                f"averaging_frequency={frequency} needs a model of its own on each rank, not a "
                f"{type(model.get_submodule(part)).__name__}, which averages gradients in every iteration"
            )
        super().__init__(model)
        self._optimizer = optimizer
        self._ranks = ranks
        self._frequency = frequency
        self._steps = 0
        broadcast([*model.parameters(), *model.buffers()])

    def after_step(self) -> bool:
        """Average if it is time; return True then."""
        self._steps += 1
        if self._steps % self._frequency:
            return False
        self._average()
        return True

    def end_epoch(self) -> None:
        """Average what was trained since the last time."""
        if self._steps % self._frequency:
            self._average()
        self._steps = 0

    def _average(self) -> None:
        import torch
        from torch.distributed.algorithms.model_averaging.utils import average_parameters

        optimizer = self._optimizer
        states = (optimizer.state.get(each, {}) for group in optimizer.param_groups for each in group["params"])
        updater = [state[name] for state in states for name in sorted(state)]
        tensors = [*self.module.parameters(), *self.module.buffers(), *updater]
        alike: dict[Any, list[torch.Tensor]] = defaultdict(list)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                real = _as_real(tensor)
                alike[real.dtype, real.device].append(real)
        # A parameter that one rank has not trained yet has no state there.
        self._ranks.check_equal("optimizer state", [[tuple(each.shape) for each in group] for group in alike.values()])
        for group in alike.values():
            # Averaged tensors are views of one large one, which would be saved whole with each. So they are copied.
            # They are averaged where ranks can send them: Adam keeps its steps on the CPU, which NCCL cannot reach.
            averaged = [tensor.detach().to(self._ranks.device) for tensor in group]
            average_parameters(iter(averaged), None)  # type: ignore[arg-type] # None is the group of all
            torch._foreach_copy_(group, averaged)


def synchronise(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks, averaging_frequency: int
) -> Synchronisation:
    """Return what keeps the models of `ranks` equal: with a frequency of 1, by averaging gradients in each iteration.

    Raises
    ------
    ValueError
        If the parameters of a model are to be averaged that averages gradients itself, or only a part of a model does.
    """
    if ranks.is_alone:
        return Synchronisation(model)
    if averaging_frequency == 1:
        return GradientAveraging(model)
    return ParameterAveraging(model, optimizer, ranks, averaging_frequency)


def is_wrapped(model: torch.nn.Module) -> bool:
    """Return True if `model` synchronises itself: `DistributedDataParallel` or fully sharded, compiled or not."""
    kinds = _wrappers()
    return isinstance(model, kinds) or isinstance(getattr(model, "_orig_mod", None), kinds)


def wrapped_part(model: torch.nn.Module) -> str | None:
    """Return the name in `model` of a module that synchronises itself, "" for `model`; None if there is none."""
    kinds = _wrappers()
    return next((name for name, each in model.named_modules() if isinstance(each, kinds)), None)


def _wrappers() -> tuple[Any, ...]:
    from torch.distributed import fsdp
    from torch.nn.parallel import DistributedDataParallel

    sharded = [fsdp.FSDPModule] if hasattr(fsdp, "FSDPModule") else []
    return DistributedDataParallel, fsdp.FullyShardedDataParallel, *sharded


def broadcast(tensors: Iterable[torch.Tensor]) -> None:
    """Overwrite `tensors` with those of rank 0."""
    import torch

    for tensor in tensors:
        torch.distributed.broadcast(_as_real(tensor), 0)


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of `tensor` without complex numbers, which not all process groups can send."""
    import torch

    values = tensor.detach()
    return torch.view_as_real(values) if values.is_complex() else values


def _distributed(model: torch.nn.Module) -> torch.nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    part = wrapped_part(model)
    if part is not None:
        raise ValueError(
            f"module {part!r} of the model is wrapped or sharded, and would be synchronised twice, but the rest is "
            "not: wrap or shard the whole model, or no part of it"
        )
    device = next((each.device for each in model.parameters()), None)
    if device is None:
        raise ValueError("the model has no parameters, so there is nothing that ranks could train together")
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
