"""What a reader must know beside the figures."""

from __future__ import annotations

import psutil

from etl.comparison.measured import Measured
from etl.comparison.results import audits_of


def notes(measured: Measured) -> list[str]:
    """Sentences: what failed, what was scaled, which runtime setting was not in force, and which store is too large for
    a warm cache.
    """
    scale = measured.scale
    found = [f"{measured.name(each)} failed: {reason}" for each, reason in measured.failed.items()]
    if scale.measured < scale.records:
        found.append(
            f"Measured on {scale.measured:,} of {scale.records:,} records, chosen at random, and scaled: the first "
            "batch counts once, the others by their number."
        )
    for candidate in measured.compared:
        inert = [each for each in audits_of(measured.samples[candidate]) if each.is_inert]
        found += [f"{measured.name(candidate)}: a setting was not in force: {each.alarm}" for each in inert]
    memory = psutil.virtual_memory().total
    for candidate in measured.compared:
        written = measured.written(candidate)
        nbytes = 0 if written is None else scale.amount(float(written["nbytes"]))
        if nbytes > memory / 2 and measured.workload.settings.cache == "warm":
            found.append(
                f"The store of {measured.name(candidate)} takes {nbytes / 1e9:,.1f} GB, and this machine has "
                f"{memory / 1e9:,.1f} GB of memory: epochs over the whole source will wait for the disk. Compare with "
                "--cache cold, too."
            )
    return found
