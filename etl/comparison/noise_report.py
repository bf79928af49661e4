"""What disturbed a comparison, summed up."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from etl.comparison.report import Noise

# Shares of all CPU time above which they are told in a sentence, and the spread of a fixed calculation.
STEAL_LIMIT, OTHERS_LIMIT, SPEED_LIMIT = 0.02, 0.05, 1.15


def report_noise(samples: Sequence[Mapping[str, Any]]) -> Noise:
    """Of all samples of a comparison."""
    steal = [float(sample["steal"]) for sample in samples]
    others = [float(sample["other_processes"]) for sample in samples]
    probes = [float(sample["speed_probe"]) for sample in samples]
    frequencies = [float(each) for sample in samples for each in sample["frequencies"]]
    spread = max(probes) / min(probes)
    warnings = []
    if max(steal) > STEAL_LIMIT:
        warnings.append(
            f"The hypervisor took up to {max(steal):.0%} of the CPU time (median {statistics.median(steal):.1%}): "
            "other virtual machines were at work."
        )
    if max(others) > OTHERS_LIMIT:
        warnings.append(
            f"Other processes had up to {max(others):.0%} of the CPU time (median {statistics.median(others):.1%}): "
            "end them and compare again."
        )
    if spread > SPEED_LIMIT:
        warnings.append(
            f"The speed of the CPU changed by a factor of {spread:.2f} during the comparison; ratios are paired within "
            "rounds, times are not."
        )
    lowest_and_highest = [min(frequencies), max(frequencies)] if frequencies else []
    return Noise(
        steal_median=statistics.median(steal),
        steal_highest=max(steal),
        other_processes_median=statistics.median(others),
        other_processes_highest=max(others),
        speed_spread=spread,
        frequency_mhz=lowest_and_highest,
        warnings=warnings,
    )
