"""Step 10: do operations leave the device, or torch?"""

from __future__ import annotations

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity


class Fallback(Check):
    """What takes tensors to another device or out of torch while the model is called."""

    name = "fallback"
    title = "Operations that leave the device"
    why = "the device waits for the copy there and the copy back, and computes nothing meanwhile"

    def look(self, case: Case) -> Finding:
        if case.seen is None or case.setup is None:
            return self.not_looked_at()
        departures = case.seen.departures
        if not departures:
            return self.fine("all operations of the model stay on its device", "every function of torch in two batches")
        times = ", ".join(f"{name} ({count:g} a batch)" for name, count in departures.items())
        is_device = case.setup.backend.device.type != "cpu"
        return self.wrong(
            Severity.SERIOUS if is_device else Severity.WARNING,
            f"tensors leave {'the device' if is_device else 'torch'} during the forward pass",
            f"{times}, seen in two batches",
            "compute it with torch's own operations, on the tensors where they are",
        )
