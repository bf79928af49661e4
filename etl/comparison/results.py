"""From samples to results: scaled to the whole source, parts that add up, ratios and costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from etl.comparison.candidate import Candidate
from etl.comparison.report import Noise, Parts, Prediction, Presaving, RoundFigures, SplitTrial, StrategyResult
from etl.comparison.rules import Evidence
from etl.measuring.clock import Split
from etl.measuring.statistics import Interval, central_mean, paired_ratios, ratio_interval
from etl.runtime import Audit

Sample = Mapping[str, Any]


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

    def epoch_seconds(self, split: Sequence[float]) -> float:
        """Of a whole epoch, from the first batch's and the others'."""
        return Split(*split).scaled(self.measured / self._records_a_batch, self.batches)

    def amount(self, measured: float) -> float:
        """What grows with the number of records."""
        return measured * self.records / self.measured

    def wall_seconds(self, sample: Sample) -> float:
        """The wall time of an epoch."""
        return self.epoch_seconds(sample["wall"])

    @property
    def _records_a_batch(self) -> int:
        """In one that was measured: where there were fewer records than a batch holds, it held them."""
        return min(self.batch_size, self.measured)


def strategy_result(
    name: str,
    candidate: Candidate,
    evidence: Evidence,
    *,
    scale: Scale,
    reference: Mapping[int, Sample] | None,
    prediction: Prediction | None,
    splits: list[SplitTrial],
) -> StrategyResult:
    """Return the result of one strategy.

    Parameters
    ----------
    name : str
        What the report calls it.
    candidate : Candidate
        What was measured.
    evidence : Evidence
        Its samples and threads, its parts, and what writing its store cost.
    scale : Scale
        From the records that were measured to an epoch.
    reference : mapping of round to sample, or None
        Samples of the strategy that it is compared with; None for the reference itself.
    prediction : Prediction or None
        The wall time that was foretold.
    splits : list of SplitTrial
        The ways to split its CPUs that were tried.
    """
    samples = evidence.samples
    return StrategyResult(
        name=name,
        strategy=candidate.strategy,
        format=candidate.format,
        stage=candidate.stage,
        compute_threads=evidence.threads.compute,
        loading_threads=evidence.threads.loading,
        parts=evidence.parts,
        host_wait_seconds=host_wait_seconds(samples, scale),
        first_batch_seconds=middle(samples, scale, lambda sample: sample["stall"][0]),
        etl_alone_seconds=etl_alone_seconds(samples, scale),
        cpu_seconds_per_1000=middle(samples, scale, lambda sample: sample["cpu_seconds"]) / scale.measured * 1000,
        peak_memory_nbytes=max(int(sample["peak_memory"]) for sample in samples.values()),
        read_nbytes=round(scale.amount(middle(samples, scale, lambda sample: sample["read_nbytes"]))),
        ratio=None if reference is None else ratio_of(samples, reference, scale),
        presaving=None if evidence.writing is None else presaving_of(evidence.writing, scale),
        prediction=prediction,
        runtime=audits_of(samples),
        splits=splits,
        rounds=[round_figures(number, sample) for number, sample in sorted(samples.items())],
    )


def steps_alone(samples: Mapping[int, Sample]) -> list[float]:
    """Seconds of a training step with nothing else at work, in each round."""
    return [float(sample["compute_alone"]) for sample in samples.values()]


def parts_of(samples: Mapping[int, Sample], scale: Scale) -> Parts:
    """Where the wall time of an epoch goes."""

    def of_epoch(name: str) -> float:
        return middle(samples, scale, lambda sample: scale.epoch_seconds(sample[name]))

    def of_batches(name: str) -> float:
        return middle(samples, scale, lambda sample: float(sample[name]) * scale.batches)

    alone = of_batches("compute_alone")
    return Parts(
        wall_seconds=of_epoch("wall"),
        compute_alone_seconds=alone,
        interference_seconds=of_epoch("compute") - alone,
        stall_seconds=of_epoch("stall"),
        harness_seconds=of_batches("harness"),
    )


def host_wait_seconds(samples: Mapping[int, Sample], scale: Scale) -> float:
    """Seconds of an epoch in which the training loop waited for batches."""
    # A sample without host waits was taken by a clock to which they are the stalls.
    return middle(samples, scale, lambda sample: scale.epoch_seconds(sample.get("host_wait", sample["stall"])))


def middle(samples: Mapping[int, Sample], scale: Scale, figure: Callable[[Sample], float]) -> float:
    """The mean of `figure(sample)` over the rounds whose wall time is in the middle half."""
    return central_mean(
        [figure(sample) for sample in samples.values()], [scale.wall_seconds(sample) for sample in samples.values()]
    )


def etl_alone_seconds(samples: Mapping[int, Sample], scale: Scale) -> float:
    """Seconds to load an epoch with nothing else to do: the median of the rounds in which that was measured."""
    known = [scale.epoch_seconds(each["etl_alone"]) for each in samples.values() if each["etl_alone"] is not None]
    return statistics.median(known)


def ratio_of(samples: Mapping[int, Sample], below: Mapping[int, Sample], scale: Scale) -> Interval | None:
    """The wall time of an epoch over another strategy's, paired within rounds; None without a common round."""
    above_walls = {number: scale.wall_seconds(sample) for number, sample in samples.items()}
    below_walls = {number: scale.wall_seconds(sample) for number, sample in below.items()}
    ratios = paired_ratios(above_walls, below_walls)
    return ratio_interval(ratios) if ratios else None


def presaving_of(writing: Mapping[str, Any], scale: Scale) -> Presaving:
    """What a store costs for the whole source."""
    return Presaving(
        write_seconds=scale.amount(float(writing["seconds"])), nbytes=round(scale.amount(float(writing["nbytes"])))
    )


def round_figures(number: int, sample: Sample) -> RoundFigures:
    """One sample as it is reported, of the records that were measured."""
    etl_alone = sample["etl_alone"]
    return RoundFigures(
        round=number,
        wall_seconds=sum(sample["wall"]),
        compute_seconds=sum(sample["compute"]),
        stall_seconds=sum(sample["stall"]),
        compute_alone_seconds=sample["compute_alone"] * sample["batches"],
        etl_alone_seconds=None if etl_alone is None else sum(etl_alone),
        cpu_seconds=sample["cpu_seconds"],
        steal=sample["steal"],
        other_processes=sample["other_processes"],
        speed_probe_seconds=sample["speed_probe"],
    )


def noise_of(samples: Iterable[Sample]) -> Noise:
    """What disturbed them, beside what the figures of their rounds tell."""
    frequencies = [float(each) for sample in samples for each in sample["frequencies"]]
    return Noise([min(frequencies), max(frequencies)] if frequencies else [])


def audits_of(samples: Mapping[int, Sample]) -> list[Audit]:
    """What became of each runtime setting of a strategy, in the last of its processes that was asked."""
    found = {audit["setting"]: Audit(**audit) for _, sample in sorted(samples.items()) for audit in sample["runtime"]}
    return list(found.values())
