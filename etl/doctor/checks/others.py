"""Step 12: do others use the CPUs or the GPU?"""

from __future__ import annotations

from etl.doctor.check import Case, Check
from etl.doctor.finding import Finding, Severity

# Shares of all CPUs' time.
WARNING_SHARE, SERIOUS_SHARE = 0.10, 0.30
SHOWN = 3


class OtherProcesses(Check):
    """What other processes and the hypervisor took while this process waited."""

    name = "others"
    title = "Other processes"
    why = (
        "a CPU that has two things to do takes twice as long for each; and threads that wait for each other wait for "
        "the slowest"
    )

    def look(self, case: Case) -> Finding:
        machine = case.machine
        named = ", ".join(f"{each.name} ({each.pid}) {each.cpus:.1f}" for each in machine.processes[:SHOWN])
        evidence = (
            f"in {machine.watched_seconds:.1f} s of waiting other processes had {machine.others:.0%} of {machine.cpus} "
            f"CPUs{f': {named}' if named else ''}; the hypervisor had {machine.steal:.0%} (/proc/stat)"
        )
        share = max(machine.others, machine.steal)
        if share < WARNING_SHARE:
            return self.fine("the CPUs are free", evidence)
        severity = Severity.SERIOUS if share >= SERIOUS_SHARE else Severity.WARNING
        saves = None
        if case.seen is not None and case.batches_per_epoch is not None:
            saves = share * case.seen.times.typical * case.batches_per_epoch
        if machine.steal > machine.others:
            return self.wrong(
                severity,
                "the hypervisor gives the CPUs to other machines",
                evidence,
                "measure at another time, or on a machine whose CPUs are its own",
                saves,
            )
        return self.wrong(
            severity,
            "other processes compute",
            evidence,
            "end them, or leave CPUs to them: taskset for this process, and etl.runtime.ThreadPolicy",
            saves,
        )
