"""Step 7: does the hardware compute fastest with this data type?"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from etl.doctor.check import Case, Check, Finding
from etl.doctor.setup import ModelSetup, Setup
from etl.doctor.steps import time_compute
from etl.loading.batch import Batch, as_batch
from etl.training.backends.tensors import as_tensor, map_batch


class DataType(Check):
    """A check that parameters are float32; if not, training is timed in float32, too."""

    name = "data_type"
    title = "Data type"
    why = (
        "float64 takes twice the bytes of float32, and most GPUs compute it at a fraction of the speed; half precision "
        "halves the bytes, but is far slower if the hardware has no instructions for it"
    )

    def look(self, case: Case) -> Finding:
        setup = case.of_model
        if setup is None or case.observation is None:
            return self.not_looked_at(case.unknown_model)
        dtypes = Counter(
            str(each.dtype).removeprefix("torch.") for each in setup.model.parameters() if each.is_floating_point()
        )
        if not dtypes:
            return self.not_looked_at("the model has no floating-point parameters")
        held = ", ".join(f"{count} {name}" for name, count in dtypes.most_common())
        main = dtypes.most_common(1)[0][0]
        if main == "float32":
            return self.fine("parameters are float32", f"{held} tensors of parameters")
        batch = case.observation.batch
        now, then = time_compute((setup, _single(setup)), (batch, _in_float32(batch)))
        return self.slower(
            case,
            case.observation,
            case.observation.times.saved(now, then),
            f"parameters are {main}",
            f"{held} tensors of parameters; a training step takes {now * 1e3:.1f} ms, in float32 {then * 1e3:.1f} ms "
            "(medians, in turns)",
            "dtype='float32' for iterator and model",
        )

    def apply(self, setup: Setup, case: Case) -> Setup | None:  # noqa: ARG002
        return None if setup.of_model is None else _single(setup.of_model)


def _single(setup: ModelSetup) -> ModelSetup:
    """Return `setup` in float32."""
    return replace(setup, model=copy.deepcopy(setup.model).float(), batches=_InFloat32(setup.batches))


class _InFloat32:
    """The batches of another iterable, converted to float32."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return (_in_float32(as_batch(item)) for item in self._batches)


def _in_float32(batch: Batch) -> Batch:
    """Return `batch` with its floating-point arrays as tensors of float32."""

    def cast(array: Any) -> Any:
        tensor = as_tensor(array)
        return tensor.float() if tensor.is_floating_point() else tensor

    return map_batch(batch, cast)
