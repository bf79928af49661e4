"""Step 9: is the network larger than such networks usually are?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.doctor.setup import first_array

# "Performance Issues", step 9, of the documents: "guidelines only".
MOST_CONVOLUTIONS = 100
MOST_RECURRENT = 10
MOST_DENSE = 20
LARGE_SIDE = 500
MOST_STEPS = 500  # "a few hundred"
MOST_CLASSES = 10_000
MOST_KERNEL = 7
MOST_CHANNELS = 1024
MOST_UNITS = 2048
MOST_RECURRENT_UNITS = 1024
MOST_PARAMETERS = 100_000_000

CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
RECURRENT = (torch.nn.RNNBase, torch.nn.RNNCellBase)


@dataclass(frozen=True)
class Size:
    """What is counted of a network."""

    convolutions: int
    recurrent: int
    dense: int
    parameters: int
    kernel: int
    channels: int
    units: int
    recurrent_units: int
    classes: int


class NetworkSize(Check):
    """Layers, parameters, inputs and classes beside the documents' own numbers."""

    name = "network"
    title = "Size of the network"
    why = "every layer, channel, pixel, time step and class is computed for every record"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.seen is None:
            return self.not_looked_at()
        size = size_of(case.setup.model)
        shape = tuple(first_array(case.seen.batch.features).shape[1:])
        evidence = (
            f"{size.parameters:,} parameters; layers: {size.convolutions} convolutional, {size.recurrent} recurrent, "
            f"{size.dense} dense; inputs of {' x '.join(map(str, shape))}, {size.classes:,} outputs"
        )
        found = list(_too_large(size, shape, case.seen.dense_in_series))
        if not found:
            return self.fine("within the guidelines", evidence)
        severity = Severity.WARNING if len(found) > 1 else Severity.NOTE
        return self.wrong(
            severity,
            "; ".join(found),
            evidence,
            "see whether a smaller one does as well: the guidelines are rough, and some good networks exceed them",
        )


def size_of(model: torch.nn.Module) -> Size:
    """The counts of all of its modules; each parameter once."""
    kinds: Counter[str] = Counter()
    kernel = channels = units = recurrent_units = classes = 0
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            kinds["convolutions"] += 1
            kernel = max(kernel, *module.kernel_size)
            channels = max(channels, module.out_channels)
        elif isinstance(module, RECURRENT):
            kinds["recurrent"] += getattr(module, "num_layers", 1)
            recurrent_units = max(recurrent_units, module.hidden_size)
        elif isinstance(module, torch.nn.Linear):
            kinds["dense"] += 1
            # All but the last are hidden ones.
            units, classes = max(units, classes), module.out_features
    return Size(
        kinds["convolutions"],
        kinds["recurrent"],
        kinds["dense"],
        sum(each.numel() for each in model.parameters()),
        kernel,
        channels,
        units,
        recurrent_units,
        classes,
    )


def _too_large(size: Size, shape: tuple[int, ...], dense_in_series: int) -> list[str]:
    image = shape[-2:] if size.convolutions and len(shape) >= 3 else ()
    steps = shape[0] if size.recurrent and len(shape) == 2 else 0
    # Those of dense layers are for multilayer perceptrons; residual networks and transformers do well with far more.
    is_perceptron = 2 * dense_in_series >= size.dense
    compared = (
        (size.convolutions, MOST_CONVOLUTIONS, "convolutional layers"),
        (size.recurrent, MOST_RECURRENT, "recurrent layers"),
        (0 if size.convolutions or size.recurrent else dense_in_series, MOST_DENSE, "dense layers in series"),
        (max(image, default=0), LARGE_SIDE, "pixels a side"),
        (steps, MOST_STEPS, "time steps"),
        (size.classes, MOST_CLASSES, "classes"),
        (size.kernel, MOST_KERNEL, "pixels a side of a kernel"),
        (size.channels, MOST_CHANNELS, "channels"),
        (size.units if is_perceptron else 0, MOST_UNITS, "units in a dense layer"),
        (size.recurrent_units, MOST_RECURRENT_UNITS, "units in a recurrent layer"),
        (size.parameters, MOST_PARAMETERS, "parameters"),
    )
    return [f"{count:,} {what}, more than about {most:,}" for count, most, what in compared if count > most]
