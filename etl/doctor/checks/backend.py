"""Step 1: is the backend in use the one that was meant?"""

from __future__ import annotations

from typing import Any

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.training.backends import backend as find_backend
from etl.training.backends.selection import PRIORITY_VARIABLES, import_torch


class BackendInUse(Check):
    """Whether there is a GPU that is not used, or one is asked for that is not there."""

    name = "backend"
    title = "Backend in use"
    why = "a model that trains on the CPU beside a GPU that has nothing to do is often ten times slower"

    def look(self, case: Case) -> Finding:
        torch = import_torch()
        asked = {
            name: case.machine.variables[name] for name in PRIORITY_VARIABLES.values() if name in case.machine.variables
        }
        variables = ", ".join(f"{name}={value}" for name, value in asked.items()) or "no priority is set"
        try:
            chosen = find_backend("auto")
        except (RuntimeError, ValueError) as error:
            return self.wrong(
                Severity.SERIOUS,
                str(error),
                f"etl.backend('auto') with {variables}",
                f"unset {' and '.join(asked)}, or set what the machine has",
            )
        device = str((case.setup.backend if case.setup is not None else chosen).device)
        evidence = f"{_torch(torch)}; {variables}"
        if device != "cpu":
            return self.fine(f"compute runs on {device}, {torch.cuda.get_device_name(device)}", evidence)
        if torch.cuda.is_available():
            overruled = f", because of {variables}" if asked and chosen.name == "cpu" else ""
            return self.wrong(
                Severity.SERIOUS,
                f"compute runs on the CPU{overruled}, and there is a GPU: {torch.cuda.get_device_name()}",
                evidence,
                f"unset {' and '.join(asked)}" if overruled else 'use backend="cuda"',
            )
        if case.machine.nvidia_gpus:
            return self.wrong(
                Severity.SERIOUS,
                f"the driver shows {case.machine.nvidia_gpus} NVIDIA GPU, which torch cannot use",
                evidence,
                "install a torch that was built for CUDA (https://pytorch.org/get-started), or a driver it can use",
            )
        return self.fine("compute runs on the CPU; there is no GPU", evidence)


def _torch(torch: Any) -> str:
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    return f"torch {torch.__version__}, {built}"
