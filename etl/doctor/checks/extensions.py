"""Step 11: does torch use the extensions that this CPU has?"""

from __future__ import annotations

import platform

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity
from etl.training.backends.selection import import_torch

# What torch's own kernels for x86 are built for, the best last, and the flags that /proc/cpuinfo shows where the CPU
# has what they need (aten/src/ATen/native/DispatchStub.cpp).
CAPABILITIES = {
    "DEFAULT": frozenset[str](),
    "AVX2": frozenset({"avx2", "fma"}),
    "AVX512": frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"}),
}
VARIABLE = "ATEN_CPU_CAPABILITY"


class CpuExtensions(Check):
    """The kernels that torch has chosen, beside what the CPU offers."""

    name = "extensions"
    title = "AVX and other extensions"
    why = "a register of 512 bits computes on sixteen numbers at once, one without AVX on four"

    def look(self, case: Case) -> Finding:
        if platform.machine() not in ("x86_64", "AMD64"):
            return self.not_looked_at(f"a CPU of another kind, {platform.machine()}")
        used = import_torch().backends.cpu.get_cpu_capability()
        flags = case.machine.extensions
        if not flags:
            return self.not_looked_at("the system does not tell what the CPU has")
        best = [name for name, needed in CAPABILITIES.items() if needed <= flags][-1]
        limit = case.machine.variables.get(VARIABLE)
        evidence = f"torch.backends.cpu.get_cpu_capability() is {used}; /proc/cpuinfo allows {best}"
        if limit is not None:
            evidence += f"; {VARIABLE}={limit}"
        order = list(CAPABILITIES)
        if used in order and order.index(used) < order.index(best):
            return self.wrong(
                Severity.SERIOUS if used == "DEFAULT" else Severity.WARNING,
                f"torch computes with {used}, and this CPU has {best}",
                evidence,
                f"unset {VARIABLE}" if limit is not None else "install a torch that was built for this CPU",
            )
        if best == "DEFAULT":
            return self.wrong(
                Severity.NOTE,
                "this CPU has no AVX2",
                evidence,
                "there is none on this machine; others will be faster",
            )
        return self.fine(f"torch computes with {used}", evidence)
