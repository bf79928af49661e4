"""Further checks if the training runs on several ranks: waits for the others, the learning rate and the batches."""

from __future__ import annotations

from etl.doctor.check import Case, Check, Finding, Severity
from etl.measuring.structure import record_count
from etl.units import counted

# The batch of Deeplearning4j's examples for several GPUs, and the largest that its guide "Performance Issues" calls
# usual. The advice for larger ones ends there.
MAX_RECORDS = 128


class WaitForRanks(Check):
    """A measurement of the time in which this rank waits for the others."""

    name = "rank_waits"
    title = "Waits for other ranks"
    why = "ranks that average in every step are as slow as the slowest of them"

    def look(self, case: Case) -> Finding:
        if case.observation is None or case.rank is None:
            return self.not_looked_at()
        if case.of_model is not None:
            return self.not_looked_at(
                "this rank trained a copy of the model alone, so its times include no wait for other ranks; to measure "
                "the waits, examine a training step on all ranks at once"
            )
        waits = case.observation.rank_waits
        if waits is None:
            return self.fine("the step sent nothing to other ranks in the steps that torch's profiler saw", "")
        if waits.share is None:
            return self.not_looked_at(
                f"a step calls torch.distributed {waits.calls:g} times, and torch's profiler does not show when such "
                "calls complete, except with gloo: waits for other ranks count as compute here"
            )
        seconds = case.observation.rank_wait_seconds
        evidence = (
            f"in this time torch.distributed waits or sends, and this rank computes nothing; its own compute takes "
            f"{case.observation.compute_seconds * 1e3:.1f} ms ({waits.calls:g} calls a step, timed by torch's profiler)"
        )
        return self.slower(
            case,
            case.observation,
            seconds,
            f"rank {case.rank.rank} waits {seconds * 1e3:.1f} ms of a step for other ranks",
            evidence,
            "look for the slowest rank: the one that waits least, in an examination of each; or average less often, "
            "with averaging_frequency of etl.fit",
        )


class LearningRate(Check):
    """The advice of Deeplearning4j's guide on the learning rate of several ranks."""

    name = "learning_rate"
    title = "Learning rate of several ranks"
    why = "ranks that average take one step for the records of all of them"

    def look(self, case: Case) -> Finding:
        if case.setup is None or case.rank is None:
            return self.not_looked_at()
        return self.wrong(
            Severity.NOTE,
            f"{case.rank.world_size} ranks train together",
            'the guide "Deeplearning4j With GPUs": "for data-parallel training, a higher learning rate is recommended. '
            'Something around +20% should be a good starting value"',
            "if the learning rate was chosen for one rank, start with one that is about 20% higher",
        )


class RankBatches(Check):
    """The advice of Deeplearning4j's examples on batches of several workers."""

    name = "rank_batches"
    title = "Batches of several ranks"
    why = "ranks that average exchange the same number of values after a batch of any size"

    def look(self, case: Case) -> Finding:
        if case.observation is None or case.rank is None:
            return self.not_looked_at()
        size, ranks = record_count(case.observation.batch), case.rank.world_size
        found = f"batches of {counted(size, 'record', 'records')} on each of {ranks} ranks"
        evidence = (
            'Deeplearning4j\'s examples for several GPUs: "for GPU you usually want to have higher batchSize", there '
            f"{MAX_RECORDS}; its guide's step 5: 32 to 128"
        )
        if size >= MAX_RECORDS:
            return self.fine(found, evidence)
        return self.wrong(
            Severity.NOTE,
            found,
            evidence,
            f"larger batches for more ranks: up to batch_size={MAX_RECORDS} on each, if memory allows and the loss "
            "falls as fast",
        )
