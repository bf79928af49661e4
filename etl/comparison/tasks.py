"""What a measuring process can be asked for: functions of JSON values that return figures. Loads torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from etl.comparison import measure, profile, writing
from etl.comparison.candidate import Candidate
from etl.comparison.workload import Threads, Workload
from etl.runtime import GcPolicy, HeapPolicy

Policy = HeapPolicy | GcPolicy


class Tasks:
    """The tasks of one process, by the names that `processes.py` asks for. `policies` are in force in it."""

    def __init__(self, workload: Workload, policies: Sequence[Policy] = ()) -> None:
        self._workload = workload
        self._policies = policies
        self._sampler: measure.Sampler | None = None

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The figures that `request` asks for; raises whatever taking them does."""
        # Every strategy has the same CPUs, and no more.
        os.sched_setaffinity(0, request["affinity"])
        self._workload.select(request["records"])
        self._workload.plain_compute = request["plain_compute"]
        self._workload.chosen = {
            Candidate(**each["candidate"]): Threads(**each["threads"]) for each in request["chosen"]
        }
        arguments = dict(request["arguments"])
        if "candidate" in arguments:
            arguments["candidate"] = Candidate(**arguments["candidate"])
        figures: dict[str, Any] = getattr(self, request["task"])(**arguments)
        return {**figures, "affinity": sorted(os.sched_getaffinity(0))}

    def profile(self) -> dict[str, Any]:
        """See `profile.profile`."""
        return profile.profile(self._workload)

    def write(self, format: str, stage: str, jobs: int) -> dict[str, Any]:
        """See `writing.write`."""
        return writing.write(self._workload, format, stage, jobs)

    def check(self, candidate: Candidate, compute_threads: int, trains: bool) -> dict[str, Any]:
        """See `measure.check`."""
        return measure.check(self._workload, candidate, compute_threads, trains)

    def try_splits(self, candidate: Candidate, seconds: float) -> dict[str, Any]:
        """See `measure.try_splits`."""
        return measure.try_splits(self._workload, candidate, seconds)

    def measure(self, candidate: Candidate, with_etl_alone: bool) -> dict[str, Any]:
        """A sample of `measure.Sampler`, which stays for the next one."""
        if self._sampler is None:
            self._sampler = measure.Sampler(self._workload, candidate, self._policies)
        return self._sampler.sample(with_etl_alone)

    def load(self, candidate: Candidate) -> dict[str, Any]:
        """See `measure.load`."""
        return measure.load(self._workload, candidate)

    def timeline(self, candidate: Candidate) -> dict[str, Any]:
        """See `measure.timeline`."""
        return measure.timeline(self._workload, candidate)

    def close(self) -> None:
        """End what `measure` has kept."""
        if self._sampler is not None:
            self._sampler.close()
