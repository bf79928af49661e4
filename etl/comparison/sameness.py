"""TEMPORARY"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from etl.measuring.values import JsonValues

IDENTICAL, SAME_RECORDS, CLOSE, SAME_AMOUNT = "identical", "same records", "close", "same amount"


@dataclass(frozen=True)
class Sameness(JsonValues):
    level: str | None
    reason: str = ""
    largest_distance: float | None = None
    mean_distance: float | None = None
    displacement: float | None = None
    is_shuffled: bool | None = None

    def describe(self) -> str:
        return self.level or "different"

    def describe_order(self) -> str:
        return ""


def compare_epochs(epoch, reference, name) -> Sameness:
    if epoch.digests == reference.digests:
        return Sameness(IDENTICAL)
    if Counter(epoch.records) == Counter(reference.records):
        return Sameness(SAME_RECORDS, "other order")
    if epoch.samples == reference.samples and epoch.layouts == reference.layouts:
        return Sameness(SAME_AMOUNT, "x")
    return Sameness(
        None, f"{epoch.samples} records, {name} has {reference.samples}; {epoch.layouts} {reference.layouts}"
    )
