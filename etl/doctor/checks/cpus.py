"""Steps 12 and 13: are the CPUs and the GPU free, and is the number of compute threads the fastest?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from etl.doctor.check import Case, Check, Finding, Severity, heaviest_first
from etl.doctor.setup import Setup
from etl.doctor.steps import time_compute
from etl.runtime import ThreadPolicy
from etl.runtime.thread_policy import pool_threads
from etl.training.backends import import_torch

# Shares of the time of the CPUs that this process may use.
WARNING_SHARE, SERIOUS_SHARE = 0.10, 0.30
# Share of a GPU's memory.
HELD_SHARE = 0.25
SHOWN_PROCESSES = 3
# Another number of threads must save this share of a step: less may be noise.
LEAST_GAIN = 0.1


class OtherProcesses(Check):
    """A measurement of what others took of the CPUs and the GPU while this process was idle."""

    name = "others"
    title = "Other processes"
    why = (
        "two threads that share a CPU each take twice as long, and threads that wait for each other wait for the "
        "slowest"
    )

    def look(self, case: Case) -> Finding:
        on_cpus, on_gpus, of_quota = self._of_cpus(case), self._of_gpus(case), self._of_quota(case)
        if of_quota is not None:
            heavier, lighter = heaviest_first(of_quota, on_cpus)
            on_cpus = heavier.beside(lighter)
        if on_gpus is None:
            return on_cpus
        heavier, lighter = heaviest_first(on_gpus, on_cpus)
        if heavier.severity is Severity.FINE:
            heavier = replace(heavier, found=f"{on_cpus.found}; {on_gpus.found}")
        return heavier.beside(lighter)

    def _of_cpus(self, case: Case) -> Finding:
        machine = case.machine
        others, steal = machine.other_processes, machine.steal
        named = ", ".join(
            f"{each.name} ({each.pid}) {each.cpus:.1f}" for each in machine.busy_processes[:SHOWN_PROCESSES]
        )
        evidence = (
            f"while this process was idle for {machine.watched_seconds:.1f} s, other processes used {others:.0%} of "
            f"{machine.cpus} CPUs{f': {named}' if named else ''}; the hypervisor took {steal:.0%} (/proc/stat)"
        )
        share = max(others, steal)
        if share < WARNING_SHARE:
            return self.fine("the CPUs are free", evidence)
        severity, saves = _severity_of(share), _share_of_epoch(case, share)
        if steal > others:
            return self.wrong(
                severity,
                "the hypervisor gives the CPUs to other virtual machines",
                evidence,
                "train at another time, or on a machine whose CPUs are not shared",
                saves,
            )
        return self.wrong(
            severity,
            "other processes use the CPUs",
            evidence,
            "end them, or leave CPUs to them: start this process with taskset, and use etl.runtime.ThreadPolicy",
            saves,
        )

    def _of_quota(self, case: Case) -> Finding | None:
        """Return the finding for the CPU quota of a container; None if it hardly stopped this process."""
        throttled, quota = case.machine.throttled, case.machine.cpu_quota
        if throttled < WARNING_SHARE:
            return None
        return self.wrong(
            _severity_of(throttled),
            "a CPU quota stops the threads of this process",
            f"the quota{'' if quota is None else f' of {quota:g} CPUs'} was used up in {throttled:.0%} of its periods "
            "while training was observed (cpu.stat), so all times here are uncertain",
            "raise the quota of the container, or use fewer threads: etl.runtime.ThreadPolicy",
        )

    def _of_gpus(self, case: Case) -> Finding | None:
        """Return the finding for the GPU of compute, or for all GPUs without a training; None if there are none."""
        gpus, observation = case.machine.gpus, case.observation
        if observation is not None and observation.device.type != "cuda":
            return None
        uuid = None if observation is None else _uuid_of(observation.device)
        ours = [each for each in gpus.found if observation is None or each.uuid == uuid or len(gpus.found) == 1]
        if not ours:
            if observation is None and not case.machine.nvidia_gpus:
                return None
            reason = gpus.unknown or "NVML lists none of the GPUs with the identifier that torch has"
            return self.fine("it is unknown who else uses the GPU", reason)
        busiest = max(ours, key=lambda each: (each.busy, each.used_nbytes))
        # While this process holds memory of the GPU and is not listed, it is one of those that are.
        is_hidden = import_torch().cuda.is_initialized() and not busiest.lists_own
        held = 0 if is_hidden else sum(each.nbytes for each in busiest.other_processes)
        named = ", ".join(
            f"{each.name} ({each.pid}) {each.nbytes / 1e9:.1f} GB" for each in busiest.other_processes[:SHOWN_PROCESSES]
        )
        evidence = (
            f"NVML, of {busiest.name}, while this process was idle: busy {busiest.busy:.0%}; "
            f"{busiest.used_nbytes / 1e9:.1f} of {busiest.total_nbytes / 1e9:.1f} GB in use; "
            f"{'processes, this one among them' if is_hidden else 'other processes'}: "
            f"{named or 'none that can be seen'}"
        )
        end = "end them, or train on another GPU: backend='cuda:1', or CUDA_VISIBLE_DEVICES"
        if busiest.busy >= WARNING_SHARE:
            saves = _share_of_epoch(case, busiest.busy)
            return self.wrong(_severity_of(busiest.busy), "other processes compute on the GPU", evidence, end, saves)
        if held >= HELD_SHARE * busiest.total_nbytes:
            return self.wrong(
                Severity.WARNING, "other processes hold much of the GPU's memory, which limits the batch", evidence, end
            )
        return self.fine("the GPU is free", evidence)


class Threads(Check):
    """A check that no more threads compute and load than there are CPUs, and that no other number computes faster.

    A training step on the CPU is timed with one thread, with one for each physical core, with one for each CPU that
    loading leaves, and with the present number.
    """

    name = "threads"
    title = "Threads"
    why = (
        "the threads of an operation wait for each other: if there are more threads than CPUs, they wait for one that "
        "is not running"
    )

    def look(self, case: Case) -> Finding:
        import_torch()
        pools = pool_threads()
        # The CPUs for this process: its part of them if other ranks use the same ones.
        cpus = max(1, case.machine.cpus // (1 if case.rank is None else case.rank.sharing))
        compute, loading = max(pools.values()), _loading_threads(case)
        left = max(1, cpus - loading)
        named = ", ".join(f"{name} {count}" for name, count in pools.items())
        set_by = ", ".join(f"{key}={value}" for key, value in case.machine.variables.items() if "THREADS" in key)
        shared = "" if cpus == case.machine.cpus else f", its part of {case.machine.cpus} that ranks share"
        cores = "physical cores unknown" if case.machine.cores is None else f"{case.machine.cores} physical cores"
        evidence = (
            f"{named}; {loading} for loading; {cpus} CPUs for this process{shared}, "
            f"{cores}{f'; {set_by}' if set_by else ''}"
        )
        found = f"{compute} threads compute{f' and {loading} load' if loading else ''} on {cpus} CPUs"
        min_severity = Severity.WARNING if compute > cpus else Severity.FINE
        if case.setup is None or case.observation is None or case.waits_for_ranks:
            if min_severity is Severity.FINE:
                return self.fine(found, evidence)
            return self.wrong(min_severity, found, evidence, _remedy(left))
        # A user's step may compute on the CPU although torch has initialised a device, so it is always timed.
        if case.of_model is not None and case.of_model.device.type != "cpu" and compute <= cpus:
            return self.fine(found, f"{evidence}; compute is on {case.of_model.device}")
        counts = {1, min(left, case.machine.cores or left), left, compute}
        seconds = _time_threads(case.setup, case.observation.batch, sorted(counts))
        fastest = min(seconds.keys() - {compute}, key=seconds.__getitem__, default=compute)
        times = ", ".join(f"{each * 1e3:.1f} ms with {count}" for count, each in seconds.items())
        evidence += f"; a training step takes {times}"
        if compute <= cpus and seconds[fastest] > (1 - LEAST_GAIN) * seconds[compute]:
            return self.fine(found, evidence)
        # Of several measurements, the least is too small: these two are measured again.
        again = _time_threads(case.setup, case.observation.batch, [compute, fastest])
        if compute <= cpus and again[fastest] > (1 - LEAST_GAIN) * again[compute]:
            return self.fine(found, evidence)
        saves = case.observation.times.saved(again[compute], again[fastest])
        case.notes[self.name] = fastest
        return self.slower(case, case.observation, saves, found, evidence, _remedy(fastest), min_severity)

    def apply(self, setup: Setup, case: Case) -> Setup:
        return _with_threads(setup, case.notes[self.name])


def _severity_of(share: float) -> Severity:
    return Severity.SERIOUS if share >= SERIOUS_SHARE else Severity.WARNING


def _share_of_epoch(case: Case, share: float) -> float | None:
    """Return `share` of the seconds of an epoch; None if that is unknown."""
    if case.observation is None or case.batches_per_epoch is None:
        return None
    return share * case.observation.times.typical * case.batches_per_epoch


def _uuid_of(device: Any) -> str | None:
    """Return the identifier of a CUDA device; None if this torch does not know it."""
    uuid = getattr(import_torch().cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def _remedy(threads: int) -> str:
    return f"etl.runtime.ThreadPolicy({threads}), etl.fit(..., threads={threads}), or OMP_NUM_THREADS={threads}"


def _with_threads(setup: Setup, threads: int) -> Setup:
    return setup.within(lambda: ThreadPolicy(threads))


def _time_threads(setup: Setup, batch: Any, counts: Sequence[int]) -> dict[int, float]:
    """Return the median seconds of a training step with each number of threads, taken in turns."""
    setups = [_with_threads(setup, count) for count in counts]
    return dict(zip(counts, time_compute(setups, [batch] * len(setups)), strict=True))


def _loading_threads(case: Case) -> int:
    """Return the number of threads or processes that load during compute; 0 if unknown."""
    batches = None if case.setup is None else case.setup.batches
    return sum(getattr(batches, name, 0) or 0 for name in ("threads", "processes", "num_workers"))
