"""Step 9: is the network larger than usual?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from etl.doctor.check import Case, Check, Finding, Severity
from etl.doctor.setup import ModelSetup
from etl.training.backends.tensors import as_tensor, first_array

# From Deeplearning4j's guide "Performance Issues", step 9, which calls them "guidelines only".
MAX_CONVOLUTIONS = 100
MAX_RECURRENT = 10
MAX_DENSE = 20
MAX_SIDE = 500
MAX_STEPS = 500  # "a few hundred"
PART_STEPS = 200  # of truncated backpropagation
MAX_CLASSES = 10_000
MAX_KERNEL = 7
MAX_CHANNELS = 1024
MAX_UNITS = 2048
MAX_RECURRENT_UNITS = 1024
MAX_PARAMETERS = 100_000_000

CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
RECURRENT = (torch.nn.RNNBase, torch.nn.RNNCellBase)


@dataclass
class Size:
    """Counts of a network's layers, and their largest sizes."""

    # Elements of all parameters.
    parameters: int
    convolutions: int = 0
    recurrent: int = 0
    dense: int = 0
    # Longest side of a kernel, in pixels.
    kernel: int = 0
    # Output channels of the widest convolution.
    channels: int = 0
    # Outputs of the widest hidden dense layer, of the widest recurrent layer, and of the last dense layer.
    units: int = 0
    recurrent_units: int = 0
    classes: int = 0


class NetworkSize(Check):
    """A check that layers, parameters, inputs and classes are within the guidelines of Deeplearning4j's guide."""

    name = "network"
    title = "Size of the network"
    why = "every layer, channel, pixel, time step and class is computed for every record"

    def look(self, case: Case) -> Finding:
        if case.of_model is None or case.observation is None or case.observation.trace is None:
            return self.not_looked_at(case.unknown_model)
        size = size_of(case.of_model.model)
        shape = tuple(first_array(case.observation.batch.features).shape[1:])
        evidence = (
            f"{size.parameters:,} parameters; layers: {size.convolutions} convolutional, {size.recurrent} recurrent, "
            f"{size.dense} dense; inputs of {' x '.join(map(str, shape))}, {size.classes:,} outputs"
        )
        steps = _count_steps(size, first_array(case.observation.batch.features))
        found = list(_too_large(size, shape, steps, case.observation.trace.dense_in_series))
        if not found:
            return self.fine("within the guidelines", evidence)
        remedies = []
        if steps > MAX_STEPS:
            kept = _kept_nbytes(case.of_model, case.observation.batch)
            evidence += f"; backpropagation through {steps:,} steps keeps {kept / 1e6:,.1f} MB of a batch"
            remedies.append(
                f"truncate backpropagation: train on parts of some {PART_STEPS} steps, one after the other, and hand "
                "the recurrent state to the next part with .detach(), which keeps about "
                f"{kept * PART_STEPS / steps / 1e6:,.1f} MB"
            )
        if len(found) > len(remedies):
            remedies.append("try a smaller network; but the guidelines are rough, and some good networks exceed them")
        severity = Severity.WARNING if len(found) > 1 else Severity.NOTE
        return self.wrong(severity, "; ".join(found), evidence, "; ".join(remedies))


def size_of(model: torch.nn.Module) -> Size:
    """Count the layers and the parameters of `model`. A module or parameter that is used twice counts once."""
    size = Size(sum(each.numel() for each in model.parameters()))
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            size.convolutions += 1
            size.kernel = max(size.kernel, *module.kernel_size)
            size.channels = max(size.channels, module.out_channels)
        elif isinstance(module, RECURRENT):
            size.recurrent += getattr(module, "num_layers", 1)
            size.recurrent_units = max(size.recurrent_units, module.hidden_size)
        elif isinstance(module, torch.nn.Linear):
            size.dense += 1
            # The last dense layer is taken for the output, all before it for hidden layers.
            size.units, size.classes = max(size.units, size.classes), module.out_features
    return size


def _count_steps(size: Size, features: Any) -> int:
    """Return the time steps of sequences of vectors or of tokens; 0 if `features` are neither."""
    is_tokens = features.ndim == 2 and not as_tensor(features).is_floating_point()
    return int(features.shape[1]) if size.recurrent and (features.ndim == 3 or is_tokens) else 0


def _kept_nbytes(setup: ModelSetup, batch: Any) -> int:
    """Return the bytes of all tensors, without parameters, that a step keeps for its backward pass."""
    parameters = {each.untyped_storage().data_ptr() for each in setup.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in parameters:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        setup.make_step()(batch)
    return sum(kept.values())


def _too_large(size: Size, shape: tuple[int, ...], steps: int, dense_in_series: int) -> list[str]:
    image = shape[-2:] if size.convolutions and len(shape) >= 3 else ()
    # The guidelines for dense layers are for multilayer perceptrons: residual networks and transformers exceed them.
    is_perceptron = 2 * dense_in_series >= size.dense
    compared = (
        (size.convolutions, MAX_CONVOLUTIONS, "convolutional layers"),
        (size.recurrent, MAX_RECURRENT, "recurrent layers"),
        (0 if size.convolutions or size.recurrent else dense_in_series, MAX_DENSE, "dense layers in series"),
        (max(image, default=0), MAX_SIDE, "pixels a side"),
        (steps, MAX_STEPS, "time steps"),
        (size.classes, MAX_CLASSES, "classes"),
        (size.kernel, MAX_KERNEL, "pixels a side of a kernel"),
        (size.channels, MAX_CHANNELS, "channels"),
        (size.units if is_perceptron else 0, MAX_UNITS, "units in a dense layer"),
        (size.recurrent_units, MAX_RECURRENT_UNITS, "units in a recurrent layer"),
        (size.parameters, MAX_PARAMETERS, "parameters"),
    )
    return [f"{count:,} {unit}, more than about {maximum:,}" for count, maximum, unit in compared if count > maximum]
