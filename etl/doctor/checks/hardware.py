"""Steps 1, 2 and 11: are the GPU, the vendor's kernels and the CPU's vector extensions used?"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from threadpoolctl import threadpool_info

from etl.doctor.check import OWN_STEP, SERIOUS_SHARE, Case, Check, Finding, Severity
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.training.backends import PRIORITY_VARIABLES, import_torch
from etl.training.backends import backend as find_backend

# Instruction sets that torch's own kernels for x86 are built for, from slowest to fastest, with the flags in
# /proc/cpuinfo that each needs (aten/src/ATen/native/DispatchStub.cpp).
CAPABILITIES = {
    "DEFAULT": frozenset[str](),
    "AVX2": frozenset({"avx2", "fma"}),
    "AVX512": frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"}),
}
CAPABILITY_VARIABLE = "ATEN_CPU_CAPABILITY"
# Operations that run in oneDNN or cuDNN, and convolutions that run in neither.
VENDOR_KERNEL = re.compile("mkldnn|onednn|cudnn", re.IGNORECASE)
OWN_CONVOLUTION = re.compile("slow_conv|thnn_conv|conv_depthwise")
SHOWN_KERNELS = 3
# Libraries of matrix products that no vendor tuned: reference code, or torch's own.
NO_BLAS = ("none", "generic", "eigen")


class BackendInUse(Check):
    """A check that no GPU is unused, and that a requested backend exists."""

    name = "backend"
    title = "Backend in use"
    why = "a model that trains on the CPU beside an idle GPU is often ten times slower"

    def look(self, case: Case) -> Finding:
        torch = import_torch()
        requested = {
            name: case.machine.variables[name] for name in PRIORITY_VARIABLES.values() if name in case.machine.variables
        }
        variables = ", ".join(f"{name}={value}" for name, value in requested.items()) or "no priority is set"
        try:
            chosen = find_backend("auto")
        except (RuntimeError, ValueError) as error:
            return self.wrong(
                Severity.SERIOUS,
                str(error),
                f"etl.backend('auto') with {variables}",
                f"unset {' and '.join(requested)}, or request a backend that the machine has",
            )
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        evidence = f"torch {torch.__version__}, {built}; {variables}"
        if case.observation is not None and case.of_model is None and torch.cuda.is_available():
            return self._of_step(case.observation.device, evidence)
        device = str(chosen.device if case.of_model is None else case.of_model.device)
        if device != "cpu":
            return self.fine(f"compute runs on {device}, {torch.cuda.get_device_name(device)}", evidence)
        if torch.cuda.is_available():
            overruled = f", because of {variables}" if requested and chosen.name == "cpu" else ""
            return self.wrong(
                Severity.SERIOUS,
                f"compute runs on the CPU{overruled}, and there is a GPU: {torch.cuda.get_device_name()}",
                evidence,
                f"unset {' and '.join(requested)}" if overruled else 'use backend="cuda"',
            )
        if case.machine.nvidia_gpus:
            return self.wrong(
                Severity.SERIOUS,
                f"torch cannot use the NVIDIA GPUs that the driver shows: {case.machine.nvidia_gpus}",
                evidence,
                "install a torch that was built for CUDA (https://pytorch.org/get-started), or a driver that this "
                "torch can use",
            )
        return self.fine("compute runs on the CPU; there is no GPU", evidence)

    def _of_step(self, device: Any, evidence: str) -> Finding:
        """Return the finding for a user's step, if torch finds a GPU: `device` is that if torch has initialised it."""
        if device.type != "cpu":
            return self.not_looked_at(f"{OWN_STEP}; torch has initialised {device} in this process")
        return self.wrong(
            Severity.WARNING,
            "there is a GPU, and the training step did not use it through torch",
            f"torch.cuda.is_initialized() was False after the steps; {evidence}",
            'move the model and every batch to "cuda" in the step, unless another library than torch computes there',
        )


class VendorKernels(Check):
    """A check that convolutions run in cuDNN or oneDNN: torch's profiler says which kernels a training step ran."""

    name = "kernels"
    title = "cuDNN or oneDNN in use"
    why = "torch's own convolutions are several times slower than those of the vendors' libraries"

    def look(self, case: Case) -> Finding:
        torch = import_torch()
        kernels = _library(case)
        module = f"torch.backends.{kernels.__name__.rpartition('.')[2]}"
        is_cuda = module == "torch.backends.cudnn"
        library, version = ("cuDNN", str(kernels.version())) if is_cuda else ("oneDNN", torch.__version__)
        switch = f"{module}.enabled = True"
        evidence = f"{module}, version {version}; {_describe_blas(torch)}"
        if not kernels.is_available():
            return self.wrong(
                Severity.SERIOUS, f"this torch has no {library}", evidence, "install one that has (https://pytorch.org)"
            )
        if library == "oneDNN" and _blas_of_torch(torch) in NO_BLAS:
            return self.wrong(
                Severity.WARNING,
                "this torch multiplies matrices without the library of a vendor",
                evidence,
                "install a torch that was built with MKL, OpenBLAS, Accelerate or the libraries of Arm "
                "(https://pytorch.org)",
            )
        if kernels.enabled:
            return self._of_step(case, library, evidence)
        found = f"{library} is switched off"
        if case.setup is None or case.observation is None or case.waits_for_ranks:
            return self.wrong(Severity.WARNING, found, evidence, switch)
        changed = self._switched_on(case.setup, case)
        off, on = time_compute((case.setup, changed), (case.observation.batch,) * 2)
        evidence += f"; a training step takes {off * 1e3:.1f} ms without and {on * 1e3:.1f} ms with it"
        saves = case.observation.times.saved(off, on)
        return self.slower(case, case.observation, saves, found, evidence, switch, min_severity=Severity.NOTE)

    def _of_step(self, case: Case, library: str, evidence: str) -> Finding:
        """Return the finding for a library that is switched on."""
        if case.setup is None or case.observation is None or case.waits_for_ranks:
            return self.fine(f"{library} is switched on", evidence)
        shares = _shares_of_step(case.setup, case.observation.batch)
        ran = {name: share for name, share in shares.items() if VENDOR_KERNEL.search(name)}
        own = {name: share for name, share in shares.items() if OWN_CONVOLUTION.search(name)}
        evidence += f"; torch.profiler, of a training step: {_listed(ran) or 'no operation is named after it'}"
        if not own:
            return self.fine(
                f"{library} is in use" if ran else f"{library} is switched on; this step does not use it", evidence
            )
        share = sum(own.values())
        return self.wrong(
            Severity.SERIOUS if share >= SERIOUS_SHARE else Severity.NOTE,
            f"convolutions did not run in {library} but in torch's own kernels, {share:.0%} of a training step",
            f"{evidence}; {_listed(own)}",
            f"train in float32 or bfloat16: {library} has no convolutions of other dtypes on this device",
        )

    def apply(self, setup: Setup, case: Case) -> Setup | None:
        return None if _library(case).enabled else self._switched_on(setup, case)

    def _switched_on(self, setup: Setup, case: Case) -> Setup:
        return setup.within(lambda: _enabled(_library(case)))


def _library(case: Case) -> Any:
    """Return the module of torch with the settings of cuDNN or oneDNN, whichever is for the device of compute."""
    backends = import_torch().backends
    is_cuda = case.observation is not None and case.observation.device.type == "cuda"
    return backends.cudnn if is_cuda else backends.mkldnn


def _shares_of_step(setup: Setup, batch: Any) -> dict[str, float]:
    """Return the share of a training step's time that each operation or kernel takes by itself, by name."""
    torch = import_torch()
    activities = [torch.profiler.ProfilerActivity.CPU]
    is_cuda = torch.cuda.is_initialized()
    if is_cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with ExitStack() as in_force:
        setup.enter(in_force)
        step = setup.make_step()
        step(batch)
        with torch.profiler.profile(activities=activities) as profiler:
            step(batch)
    taken = {
        each.key: each.self_device_time_total if is_cuda else each.self_cpu_time_total
        for each in profiler.key_averages()
    }
    total = sum(taken.values())
    return {name: each / total for name, each in taken.items() if each > 0}


def _listed(shares: Mapping[str, float]) -> str:
    largest = sorted(shares.items(), key=lambda each: -each[1])[:SHOWN_KERNELS]
    return ", ".join(f"{name} {share:.0%}" for name, share in largest)


def _blas_of_torch(torch: Any) -> str:
    """Return the name of torch's library of matrix products, as its build names it."""
    found = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    return found[1] if found else "none"


def _describe_blas(torch: Any) -> str:
    """Name the libraries of matrix products, which inference on a CPU depends on."""
    pools = {f"{each['internal_api']} {each['version']}" for each in threadpool_info() if each["user_api"] == "blas"}
    return f"BLAS of torch: {_blas_of_torch(torch)}; of other libraries: {', '.join(sorted(pools)) or 'none'}"


@contextmanager
def _enabled(kernels: Any) -> Iterator[None]:
    """Enable `kernels`, a module such as `torch.backends.cudnn`, inside the block.

    The module's own `flags` would warn about its other settings.
    """
    before = kernels.enabled
    kernels.enabled = True
    try:
        yield
    finally:
        kernels.enabled = before


class CpuExtensions(Check):
    """A check that torch uses the fastest kernels that the CPU can run."""

    name = "extensions"
    title = "AVX and other extensions"
    why = "a register of AVX-512 holds sixteen float32 values, which are computed on at once; without AVX it holds four"

    def look(self, case: Case) -> Finding:
        if platform.machine() not in ("x86_64", "AMD64"):
            return self.not_looked_at(f"the CPU is not an x86 but an {platform.machine()}")
        used = import_torch().backends.cpu.get_cpu_capability()
        flags = case.machine.extensions
        if not flags:
            return self.not_looked_at("the system does not list the extensions of the CPU")
        best = [name for name, needed in CAPABILITIES.items() if needed <= flags][-1]
        limit = case.machine.variables.get(CAPABILITY_VARIABLE)
        evidence = f"torch.backends.cpu.get_cpu_capability() is {used}; /proc/cpuinfo allows {best}"
        if limit is not None:
            evidence += f"; {CAPABILITY_VARIABLE}={limit}"
        order = list(CAPABILITIES)
        if used in order and order.index(used) < order.index(best):
            return self.wrong(
                Severity.SERIOUS if used == "DEFAULT" else Severity.WARNING,
                f"torch computes with {used}, and this CPU has {best}",
                evidence,
                f"unset {CAPABILITY_VARIABLE}" if limit is not None else "install a torch that was built for this CPU",
            )
        if best == "DEFAULT":
            return self.wrong(
                Severity.NOTE,
                "this CPU has no AVX2",
                evidence,
                "use a newer CPU; nothing can be changed on this machine",
            )
        return self.fine(f"torch computes with {used}", evidence)
