"""Two commits of this project, measured by asv as a user would."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cells import AXES_VARIABLE, ROUNDS_VARIABLE
from tests.scratch import Scratch, make_scratch

DECODE_ONCE = "return DECODERS[self.decoder](encoded, self.at_least)"
DECODE_TWICE = f"DECODERS[self.decoder](encoded, self.at_least)\n        {DECODE_ONCE}"
# Twice the decoding makes loading at this size about 1.5 times as long: the rest is resizing. The speed of a virtual
# machine was seen to change by as much, for half a minute at a time. So commits are compared only by what was measured
# in turns, and again where that was not clear: a real change is found again, one that the machine made is not.
FACTOR = 1.25
ATTEMPTS = 3
BENCHMARKS = ".asv/results/benchmarks.json"
# Those that profile "check" leaves out and that are no matter of the backend, the allocator or the collector.
LOADING_AXES = ("prefetch_size", "workers", "presave_format", "presave_stage")


@dataclass(frozen=True)
class History:
    """Two commits, of which the second decodes twice; both were measured.

    `benchmarks` is asv's list of all suites: a later run that measures fewer axes replaces it.
    """

    scratch: Scratch
    same: str
    slow: str
    benchmarks: str

    def compare(self, before: str, after: str, reports: str) -> subprocess.CompletedProcess[str]:
        """Measure two commits in turns, three times in each of three rounds, until asv exits with 1 and says that the
        benchmark `reports` has changed.
        """
        options = ("--interleave-rounds", "-a", "rounds=3", "--factor", str(FACTOR), "--bench", "Strategy")
        for _ in range(ATTEMPTS):
            compared = self.scratch.asv("continuous", *options, before, after, rounds=3)
            if compared.returncode == 1 and reports in "\n".join(changes(compared)):
                break
        return compared


def changes(compared: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of asv's table of benchmarks that have changed."""
    return [line for line in compared.stdout.splitlines() if line.startswith("|") and "end_to_end" in line]


def make_history(folder: Path) -> History:
    """Make the commits below `folder` and measure two of them."""
    scratch = make_scratch(folder)
    same = scratch.commit("As it is")
    scratch.replace("etl/stages/decode.py", DECODE_ONCE, DECODE_TWICE)
    slow = scratch.commit("Decode twice as slowly")
    assert scratch.asv("machine", "--yes").returncode == 0
    # All suites once, and all axes of loading; after that what is compared, for the time that the others take.
    loading = {AXES_VARIABLE: ",".join(("strategy", *LOADING_AXES)), ROUNDS_VARIABLE: "1"}
    for options, variables in (((f"{same}^!",), loading), ((f"{slow}^!", "--bench", "Strategy"), {})):
        run = scratch.run("asv", "run", "--record-samples", *options, **variables)
        assert run.returncode == 0, run.stdout
        if variables:
            benchmarks = (scratch.folder / BENCHMARKS).read_text()
    return History(scratch, same, slow, benchmarks)
