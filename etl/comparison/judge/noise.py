"""Other activity of the machine while epochs were timed, and warnings of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from etl.comparison.judge.section import Section
from etl.measuring.noise import MAX_OTHER_PROCESSES, MAX_SLOWDOWN, MAX_STEAL

if TYPE_CHECKING:
    from etl.comparison.judge.report import ReportData  # noqa: F401 - the parent, by name

# Nothing is claimed if a CPU quota was used up in a larger share of its periods, in the median round of a strategy: a
# time then depends on when in a period it began. A strategy was recommended over itself in one of four comparisons.
THROTTLED_LIMIT = 0.05


@dataclass(frozen=True)
class Noise(Section["ReportData"]):
    """Other activity of the machine while epochs were timed, as shares of the time of the CPUs in use.

    Attributes
    ----------
    frequency_mhz : list of float
        Lowest and highest frequency of a CPU; empty if the system does not report them.
    retaken : list of str
        Samples that were taken again, with the reason: at most a fifth of all because they had been disturbed, and as
        many because their parts did not add up.
    disturbed : list of str
        Samples that count nevertheless, since too many had been taken again.
    """

    frequency_mhz: list[float]
    retaken: list[str] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)

    @property
    def steal_median(self) -> float:
        """Share taken by the hypervisor, median of all rounds."""
        return statistics.median(self._all("steal"))

    @property
    def steal_highest(self) -> float:
        """Share taken by the hypervisor in the worst round."""
        return max(self._all("steal"))

    @property
    def other_processes_median(self) -> float:
        """Share taken by other processes, median of all rounds."""
        return statistics.median(self._all("other_processes"))

    @property
    def other_processes_highest(self) -> float:
        """Share taken by other processes in the worst round."""
        return max(self._all("other_processes"))

    @property
    def speed_spread(self) -> float:
        """Slowest time of a fixed calculation divided by the fastest. It runs before and after each timed epoch."""
        probes = self._all("speed_probe_seconds")
        return max(probes) / min(probes)

    @property
    def throttled(self) -> float:
        """Share of the periods of a CPU quota in which it was used up: the median round of the strategy it hit most."""
        return throttled_share([each.throttled for each in result.rounds] for result in self.parent.strategies)

    @property
    def is_throttled(self) -> bool:
        """True if a CPU quota was used up so often that nothing is claimed."""
        return self.throttled > THROTTLED_LIMIT

    @property
    def warnings(self) -> list[str]:
        """One sentence for each kind of noise that was too high."""
        found = []
        if self.is_throttled:
            quota = self.parent.machine.get("cpu_quota")
            found.append(
                f"The CPU quota{'' if quota is None else f' of {quota:g} CPUs'} was used up in {self.throttled:.0%} of "
                "its periods (cpu.stat), so times depend on when the system stopped the processes: raise the quota, or "
                "use fewer CPUs with --cpus."
            )
        if self.steal_highest > MAX_STEAL:
            found.append(
                f"The hypervisor took up to {self.steal_highest:.0%} of the CPU time (median {self.steal_median:.1%}): "
                "other virtual machines were busy."
            )
        if self.other_processes_highest > MAX_OTHER_PROCESSES:
            found.append(
                f"Other processes took up to {self.other_processes_highest:.0%} of the CPU time (median "
                f"{self.other_processes_median:.1%}): end them and compare again."
            )
        if self.speed_spread > MAX_SLOWDOWN.cpu:
            found.append(
                f"The speed of the CPU changed by a factor of {self.speed_spread:.2f} during the comparison: ratios "
                "are paired within rounds, but times are not."
            )
        if self.retaken:
            found.append(f"{_samples(self.retaken)} taken again: {self.retaken[0]}{_more(self.retaken)}.")
        if self.disturbed:
            found.append(
                f"{_samples(self.disturbed)} disturbed and counted, since a fifth had been taken again: "
                f"{self.disturbed[0]}{_more(self.disturbed)}."
            )
        return found

    def _all(self, name: str) -> list[float]:
        return [getattr(each, name) for result in self.parent.strategies for each in result.rounds]


def throttled_share(strategies: Iterable[Sequence[float]]) -> float:
    """Return the share of periods in which a CPU quota was used up, from those of the rounds of each strategy."""
    return max(map(statistics.median, strategies))


def _samples(reasons: Sequence[str]) -> str:
    return "One sample was" if len(reasons) == 1 else f"{len(reasons)} samples were"


def _more(reasons: Sequence[str]) -> str:
    return "" if len(reasons) == 1 else f"; {len(reasons) - 1} more (--json lists all)"
