"""Step 2: are the vendor's kernels used, cuDNN on a GPU and oneDNN on the CPU?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.training.backends.selection import import_torch

TRIAL_SECONDS = 0.5


class VendorKernels(Check):
    """Whether convolutions and products run in cuDNN or oneDNN."""

    name = "kernels"
    title = "cuDNN or oneDNN in use"
    why = "torch's own convolutions are several times slower than those of the vendors' libraries"

    def look(self, case: Case) -> Finding:
        torch = import_torch()
        if case.setup is not None and case.setup.backend.device.type == "cuda":
            library, kernels = "cuDNN", torch.backends.cudnn
            switch = "torch.backends.cudnn.enabled = True"
            version = str(kernels.version())
        else:
            library, kernels = "oneDNN", torch.backends.mkldnn
            switch = "torch.backends.mkldnn.enabled = True"
            version = torch.__version__
        evidence = f"torch.backends.{kernels.__name__.rpartition('.')[2]}, version {version}"
        if not kernels.is_available():
            return self.wrong(
                Severity.SERIOUS, f"this torch has no {library}", evidence, "install one that has (https://pytorch.org)"
            )
        if kernels.enabled:
            return self.fine(f"{library} is in use", evidence)
        found = f"{library} is switched off"
        if case.setup is None or case.seen is None:
            return self.wrong(Severity.WARNING, found, evidence, switch)
        changed = self.apply(case.setup, case)
        off, on = time_compute((case.setup, changed), (case.seen.batch,) * 2, TRIAL_SECONDS)
        evidence += f"; a training step takes {off * 1e3:.1f} ms without and {on * 1e3:.1f} ms with it"
        return self.slower(case, case.seen, off - on, found, evidence, switch, least=Severity.NOTE)

    def apply(self, setup: Setup, case: Case) -> Setup:  # noqa: ARG002
        torch = import_torch()
        is_cuda = setup.backend.device.type == "cuda"
        return setup.within(lambda: _enabled(torch.backends.cudnn if is_cuda else torch.backends.mkldnn))


@contextmanager
def _enabled(kernels: Any) -> Iterator[None]:
    """With the library of the module `kernels` switched on. (Its own `flags` warns of what it sets besides.)"""
    before = kernels.enabled
    kernels.enabled = True
    try:
        yield
    finally:
        kernels.enabled = before
