"""From samples to results: scaled to the whole source, parts that add up, ratios and costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from etl.comparison.report import Noise, Parts, Presaving, RoundFigures
from etl.comparison.samples import Loads, Sample, Written
from etl.measuring.clock import EpochMetrics, Split
from etl.measuring.statistics import Interval, central_mean, paired_ratios, ratio_interval
from etl.runtime import Audit


@dataclass(frozen=True)
class Scale:
    """How what was measured on `measured` records becomes that of an epoch of `records`, in batches of `batch_size`."""

    records: int
    measured: int
    batch_size: int

    @property
    def batches(self) -> float:
        """Of a whole epoch; the last counts as the part that it is."""
        return self.records / self._records_a_batch

    def epoch_seconds(self, split: Split) -> float:
        """Of a whole epoch, from the first batch's and the others'."""
        return split.scaled(self.measured / self._records_a_batch, self.batches)

    def amount(self, measured: float) -> float:
        """What grows with the number of records."""
        return measured * self.records / self.measured

    def wall_seconds(self, sample: Sample) -> float:
        """The wall time of an epoch."""
        return self.epoch_seconds(sample.epoch.wall)

    @property
    def _records_a_batch(self) -> int:
        """In one that was measured: where there were fewer records than a batch holds, it held them."""
        return min(self.batch_size, self.measured)


def parts_of(samples: Mapping[int, Sample], scale: Scale) -> Parts:
    """Where the wall time of an epoch goes."""

    def of_epoch(split: Callable[[EpochMetrics], Split]) -> float:
        return middle(samples, scale, lambda sample: scale.epoch_seconds(split(sample.epoch)))

    alone = middle(samples, scale, lambda sample: sample.compute_alone) * scale.batches
    return Parts(
        wall_seconds=of_epoch(lambda epoch: epoch.wall),
        compute_alone_seconds=alone,
        interference_seconds=of_epoch(lambda epoch: epoch.compute) - alone,
        stall_seconds=of_epoch(lambda epoch: epoch.stall),
        harness_seconds=middle(samples, scale, lambda sample: sample.harness) * scale.batches,
    )


def host_wait_seconds(samples: Mapping[int, Sample], scale: Scale) -> float:
    """Seconds of an epoch in which the training loop waited for batches."""
    return middle(samples, scale, lambda sample: scale.epoch_seconds(sample.epoch.host_wait))


def middle(samples: Mapping[int, Sample], scale: Scale, figure: Callable[[Sample], float]) -> float:
    """The mean of `figure(sample)` over the rounds whose wall time is in the middle half."""
    return central_mean(
        [figure(sample) for sample in samples.values()], [scale.wall_seconds(sample) for sample in samples.values()]
    )


def etl_alone_seconds(samples: Mapping[int, Sample | Loads], scale: Scale) -> float:
    """Seconds to load an epoch with nothing else to do: the median of the rounds in which that was measured."""
    known = [scale.epoch_seconds(each.etl_alone) for each in samples.values() if each.etl_alone is not None]
    return statistics.median(known)


def ratio_of(samples: Mapping[int, Sample], below: Mapping[int, Sample], scale: Scale) -> Interval | None:
    """The wall time of an epoch over another strategy's, paired within rounds; None without a common round."""
    above_walls = {number: scale.wall_seconds(sample) for number, sample in samples.items()}
    below_walls = {number: scale.wall_seconds(sample) for number, sample in below.items()}
    ratios = paired_ratios(above_walls, below_walls)
    return ratio_interval(ratios) if ratios else None


def presaving_of(writing: Written, scale: Scale) -> Presaving:
    """What a store costs for the whole source."""
    return Presaving(write_seconds=scale.amount(writing.seconds), nbytes=round(scale.amount(writing.nbytes)))


def round_figures(number: int, sample: Sample) -> RoundFigures:
    """One sample as it is reported, of the records that were measured."""
    epoch = sample.epoch
    return RoundFigures(
        round=number,
        wall_seconds=epoch.wall.total,
        compute_seconds=epoch.compute.total,
        stall_seconds=epoch.stall.total,
        compute_alone_seconds=sample.compute_alone * epoch.batches,
        etl_alone_seconds=None if sample.etl_alone is None else sample.etl_alone.total,
        cpu_seconds=sample.cpu_seconds,
        steal=sample.steal,
        other_processes=sample.other_processes,
        speed_probe_seconds=sample.speed_probe,
    )


def noise_of(samples: Iterable[Sample]) -> Noise:
    """What disturbed them, beside what the figures of their rounds tell."""
    frequencies = [each for sample in samples for each in sample.frequencies]
    return Noise([min(frequencies), max(frequencies)] if frequencies else [])


def audits_of(samples: Mapping[int, Sample]) -> list[Audit]:
    """What became of each runtime setting of a strategy, in the last of its processes."""
    found = {audit.setting: audit for _, sample in sorted(samples.items()) for audit in sample.runtime}
    return list(found.values())
