"""Steps 6 and 10: do several threads call the model, and do tensors leave its device?"""

from __future__ import annotations

from etl.doctor.check import Case, Check, Finding, Severity


class SharedModel(Check):
    """A check that only one thread calls each module of the model."""

    name = "sharing"
    title = "One model used from several threads"
    why = (
        "a module keeps state while it runs (gradients, running means, hooks): calls from several threads mix up this "
        "state, or wait for each other"
    )

    def look(self, case: Case) -> Finding:
        if case.observation is None or case.observation.trace is None:
            return self.not_looked_at(case.unknown_model)
        callers = case.observation.trace.callers
        shared = {name: len(threads) for name, threads in callers.items() if len(threads) > 1}
        evidence = (
            f"a hook on each of the {len(callers)} modules that were called, during {case.observation.count} batches "
            "of training"
        )
        if not shared:
            return self.fine("one thread calls the model", evidence)
        name, threads = max(shared.items(), key=lambda each: each[1])
        remedy = "give each thread its own model (copy.deepcopy), or let one thread compute for all of them"
        if case.observation.trace.predicting & callers[name]:
            evidence += (
                "; gradients are off in some of these threads, as for predictions, for which the guide's step 6 names "
                '"one model per thread (as this avoids locks)", or "ParallelInference"'
            )
            remedy = "let etl.ParallelInference(model) answer these threads: each of its workers has its own copy"
        return self.wrong(
            Severity.SERIOUS,
            f"{threads} threads call {f'module {name}' if name else 'the model'}",
            evidence,
            remedy,
        )


class Fallback(Check):
    """A search for operations that move tensors to another device or out of torch during the forward pass."""

    name = "fallback"
    title = "Operations that leave the device"
    why = "the device is idle during the copies to the host and back"

    def look(self, case: Case) -> Finding:
        if case.observation is None or case.observation.trace is None:
            return self.not_looked_at(case.unknown_model)
        departures = case.observation.trace.departures
        if not departures:
            return self.fine("all operations of the model stay on its device", "every call of torch in two batches")
        times = ", ".join(f"{name} ({count:g} a batch)" for name, count in departures.items())
        is_device = case.observation.device.type != "cpu"
        return self.wrong(
            Severity.SERIOUS if is_device else Severity.WARNING,
            f"tensors leave {'the device' if is_device else 'torch'} during the forward pass",
            f"{times}, seen in two batches",
            "replace them with torch's own operations, on the device that holds the tensors",
        )
