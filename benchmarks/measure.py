"""All metrics of every cell: in shuffled rounds, each sample in a fresh process forked from the server of its round."""

from __future__ import annotations

import hashlib
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import joblib
import numpy as np

import etl
from benchmarks.cells import COLD, CPUS_VARIABLE, Cell, Profile
from benchmarks.journal import CELLS, CellMetrics, by_variant, open_rounds
from benchmarks.measuring.arrays import ArraySpec, BatchDigest, layout_of, merge_layouts
from benchmarks.measuring.clock import Split, run_epoch
from benchmarks.measuring.epochs import Epochs, MeasuredLoader
from benchmarks.measuring.fleet import Fleet
from benchmarks.measuring.joined_samples import join_samples
from benchmarks.measuring.layout import draw_hash_seed
from benchmarks.measuring.noise import NoiseGate
from benchmarks.measuring.process_tree import PeakMemory
from benchmarks.measuring.processes import MeasurementError, Server
from benchmarks.measuring.ranks import Rank, cpus_of_rank, create_meetings, join_group
from benchmarks.measuring.rounds import Rounds
from benchmarks.measuring.same_work import DoneWork, check_same_work
from benchmarks.measuring.sample import Recipe, Sample, take_sample
from benchmarks.measuring.server import Answer, OpenSession, Request, every_answer
from benchmarks.measuring.values import JsonValues, from_json, to_json
from benchmarks.servers import import_everything, start_server
from benchmarks.user_loaders import open_loader
from benchmarks.workload import CellCompute, Data, compute_threads, files_of, make_iterator

MAX_EPOCHS = 20


@dataclass(frozen=True)
class CellConditions(JsonValues):
    """Conditions that are the same for all cells.

    Attributes
    ----------
    min_seconds : float
        Each part is measured for at least this long, and for at least one epoch.
    cpus : tuple of int
        The CPUs, by number, that the process and everything it starts may run on.
    """

    data: Data
    min_seconds: float
    cpus: tuple[int, ...]


# One sample a round for each cell, or the text of its error.
CellResults = dict[Cell, "list[CellMetrics] | str"]


def measure_cells(cells: Iterable[Cell], data: Data, profile: Profile) -> CellResults:
    """Measure every cell once a round, and return the samples of each, or the text of its error.

    Every round has a server of its own, with another memory layout: its samples are one independent repetition. The
    complete rounds of an interrupted call are not measured again, if there is a journal.

    Raises
    ------
    DifferentWork
        If cells that should do equal work loaded other bytes or computed another score. A user's loader may load
        in another order; if it loads another amount, that is its error.
    """
    server = CellServer(CellConditions(data, profile.seconds_per_figure, cpus_of_cells()))
    cells = list(cells)
    with open_rounds(CELLS, cells, profile) as journal:
        failures: dict[Cell, str] = {}
        gate = NoiseGate()

        def take(cell: Cell, number: int) -> CellMetrics:
            name = f"{cell} in round {number + 1}"
            metrics = gate.take(name, len(cells) * profile.rounds, lambda: server.measure(cell)).metrics
            journal.note((cell, number), metrics)
            return metrics

        def note(cell: Cell, error: MeasurementError) -> None:
            failures[cell] = error.text
            journal.note_failure((cell, 0))

        rounds = Rounds(cells, take, taken=by_variant(journal.results), begin=lambda _: server, on_failure=note)
        rounds.run(profile.rounds)
    if gate.retaken or gate.disturbed:  # asv prints it with --show-stderr
        counts = f"{len(gate.retaken)} samples were taken again, and {len(gate.disturbed)} count though disturbed"
        print(f"{counts}: {'; '.join(gate.retaken + gate.disturbed)}", file=sys.stderr)
    results: CellResults = {cell: failures.get(cell) or list(each.values()) for cell, each in rounds.samples.items()}
    check_cells({cell: samples for cell, samples in results.items() if not cell.is_foreign})
    return disqualify_other_amounts(results)


def cpus_of_cells() -> tuple[int, ...]:
    """Return the CPUs, by number, of every cell: all that this process may use, or as many as FAIR_ETL_CPUS says.

    Raises
    ------
    ValueError
        If FAIR_ETL_CPUS is not a number from 1 to the number of CPUs that this process may use.
    """
    # joblib respects the CPU quota of the container. etl does so, too, but not at every commit.
    available = sorted(os.sched_getaffinity(0))[: joblib.cpu_count()]
    wanted = os.environ.get(CPUS_VARIABLE, str(len(available)))
    if not wanted.isdecimal() or not 0 < int(wanted) <= len(available):
        raise ValueError(f"{CPUS_VARIABLE}={wanted!r}: give a number from 1 to {len(available)}, the CPUs there are")
    return tuple(available[: int(wanted)])


def check_cells(results: CellResults) -> None:
    """Raise `DifferentWork` unless cells of equal work loaded equal bytes in equal order and computed one score."""
    first: dict[tuple[Any, ...], tuple[Cell, DoneWork]] = {}
    for cell, samples in results.items():
        for sample in samples if not isinstance(samples, str) else []:
            done = DoneWork(sample.epoch.samples, sample.digest, sample.score)
            other, expected = first.setdefault(cell.work, (cell, done))
            check_same_work(str(cell), done, str(other), expected)


def disqualify_other_amounts(results: CellResults) -> CellResults:
    """Return the results, with an error for user loaders that do not load as much as the strategies.

    Number, dtypes and shapes of the records must be equal; the order of the arrays in a record may differ.
    """
    amounts = {
        cell.work: (cell.strategy, _amount_of(samples[0]))
        for cell, samples in results.items()
        if not cell.is_foreign and not isinstance(samples, str)
    }
    checked: CellResults = {}
    for cell, samples in results.items():
        checked[cell] = samples
        if cell.is_foreign and not isinstance(samples, str):
            other, expected = amounts.get(cell.work, ("", ""))
            found = {_amount_of(sample) for sample in samples} - {expected}
            if found:
                wanted = f"{other} {expected}" if other else "nothing to compare that with was measured"
                checked[cell] = f"an epoch of {cell} is {' or '.join(sorted(found))}; {wanted}"
    return checked


def _amount_of(sample: CellMetrics) -> str:
    """Return the records of an epoch in words."""
    arrays = sorted(f"{dtype} {shape}" for dtype, shape in sample.layouts)
    return f"{sample.epoch.samples} records of {' and '.join(arrays)}"


class CellServer(Fleet):
    """A context manager around a server of `prepare`; each time that it is entered, another server is started."""

    def __init__(self, conditions: CellConditions) -> None:
        super().__init__(lambda _: _start_server(conditions))
        self._conditions = conditions
        self._fastest: dict[Cell, int] = {}

    def measure(self, cell: Cell) -> CellSample:
        """Return a sample of `cell` from a fresh process, or raise `MeasurementError`."""
        if cell.ranks == 1:
            return self._sample_of(cell, self._threads_beside(cell) if cell.is_foreign else None)
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            meeting = Path(folder) / "meeting"
            create_meetings(meeting, cell.ranks)
            ranks = [Rank(number, cell.ranks, str(meeting)) for number in range(cell.ranks)]
            with closing(Fleet(partial(self._start_rank, cell.ranks), cell.ranks)) as servers:
                requests = [{"cell": to_json(cell), "rank": rank.to_json(), "threads": None} for rank in ranks]
                answers = servers.sample_all(str(cell), requests)
        # Training averages gradients in every step.
        return join([CellSample.from_json(each) for each in answers], are_together=cell.compute == "training")

    def _threads_beside(self, cell: Cell) -> int:
        """Return with how many threads compute is fastest beside a user's loader, which takes CPUs as it likes."""
        if cell not in self._fastest:
            cpus = len(self._conditions.cpus)
            counts = tuple(dict.fromkeys((cpus, max(1, cpus // 2), 1)))
            # In turns, and the better of two: one that is disturbed must not decide.
            walls = [(self._sample_of(cell, each).epoch.wall.total, each) for each in 2 * counts]
            self._fastest[cell] = min(walls)[1]
        return self._fastest[cell]

    def _sample_of(self, cell: Cell, threads: int | None) -> CellSample:
        request = {"cell": to_json(cell), "rank": None, "threads": threads}
        return CellSample.from_json(self.sample(str(cell), request))

    def _start_rank(self, count: int, rank: int) -> Server:
        """Start the server of one of `count` ranks that load and compute at the same time, on its part of the CPUs."""
        return _start_server(replace(self._conditions, cpus=tuple(cpus_of_rank(self._conditions.cpus, rank, count))))


def _start_server(conditions: CellConditions) -> Server:
    return start_server("a cell", "measure:prepare", conditions.to_json(), hash_seed=draw_hash_seed())


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything under these `CellConditions`. A session is a cell and a rank; its answer the metrics."""
    conditions = CellConditions.from_json(request)
    os.sched_setaffinity(0, conditions.cpus)
    import_everything()

    def answer(asked: Request) -> Answer:
        rank = None if asked["rank"] is None else Rank.from_json(asked["rank"])
        return measure_cell(from_json(Cell, asked["cell"]), conditions, rank, asked["threads"]).to_json()

    return {}, every_answer(answer)


@contextmanager
def loading_of(
    cell: Cell, conditions: CellConditions, rank: Rank | None = None, threads: int | None = None
) -> Iterator[tuple[MeasuredLoader, CellCompute]]:
    """Yield how a cell loads and its compute, with its runtime settings in force.

    Compute has `threads` threads, by default as many as `compute_threads` says.
    """
    with (
        etl.runtime.HeapPolicy(cell.heap),
        etl.runtime.ThreadPolicy(threads or compute_threads(cell, len(conditions.cpus))),
        etl.runtime.GcPolicy(cell.garbage_collection),
    ):
        compute = CellCompute(cell, conditions.data, None if rank is None else partial(_distributed, rank))
        loading = MeasuredLoader(
            partial(_open, cell, conditions.data, rank),
            lambda _: compute,
            [] if cell.is_foreign else files_of(cell, conditions.data),
            is_cold=cell.page_cache == COLD,
            can_rewind=not cell.is_foreign,
            is_ahead=cell.is_async or cell.is_foreign,
            meeting=None if rank is None else rank.meet(),
        )
        yield loading, compute


def _distributed(rank: Rank, model: Any) -> Any:
    """Return a torch model on a CPU that averages its gradients with those of the other ranks."""
    import torch

    join_group(rank)
    return torch.nn.parallel.DistributedDataParallel(model)


@dataclass(frozen=True)
class CellSample(Sample):
    """A sample of a cell, whose untimed epoch has shown `peak_memory` and the last three: see `CellMetrics`."""

    digest: str = ""
    score: float = 0.0
    layouts: list[ArraySpec] = field(default_factory=list)

    @property
    def metrics(self) -> CellMetrics:
        """The metrics that asv keeps."""
        return CellMetrics(
            etl=cast(Split, self.etl_alone).total,
            epoch=self.epoch,
            compute_alone=self.compute_alone * self.epoch.batches,
            p99_stall=float(np.quantile(self.later_stalls, 0.99)),
            peak_memory=self.peak_memory,
            digest=self.digest,
            score=self.score,
            layouts=self.layouts,
        )


def join(samples: Sequence[CellSample], are_together: bool) -> CellSample:
    """Return the samples of all ranks as one; `are_together` if they wait for each other in every step."""
    return replace(
        join_samples(samples, are_together),
        peak_memory=sum(each.peak_memory for each in samples),
        digest=hashlib.sha256(" ".join(each.digest for each in samples).encode()).hexdigest(),
        score=statistics.fmean(each.score for each in samples),
    )


def measure_cell(
    cell: Cell, conditions: CellConditions, rank: Rank | None = None, threads: int | None = None
) -> CellSample:
    """Return a sample of a cell, from one process.

    The first epoch is not timed: its batches are digested, its memory is watched, and it shows how many epochs take
    `min_seconds`. Then a sample is taken as in a comparison. The parameters are those of `loading_of`.
    """
    digest = BatchDigest()
    layouts: list[ArraySpec] = []
    with loading_of(cell, conditions, rank, threads) as (loading, compute):

        def note_and_step(batch: Any) -> None:
            nonlocal layouts
            digest.update(batch)
            found = layout_of(batch)
            layouts = merge_layouts(layouts or found, found)
            compute.step(batch)

        with PeakMemory() as memory, Epochs(loading) as epochs:
            first = run_epoch(epochs, note_and_step)
            score = compute.score
        count = float(min(MAX_EPOCHS, math.ceil(conditions.min_seconds / first.wall.total)))
        epoch_count = round(count if loading.meeting is None else max(loading.meeting.gather(count)))
        recipe = Recipe(epochs=max(1, epoch_count), etl_alone=True, compute_seconds=conditions.min_seconds)
        sample = take_sample(loading, recipe)
    return CellSample(
        **(vars(sample) | {"peak_memory": memory.nbytes}),
        digest=digest.hexdigest(),
        score=score,
        layouts=layouts,
    )


def _open(cell: Cell, data: Data, rank: Rank | None) -> Any:
    """Open the loader of a cell, of this rank's part of the records if there are several."""
    if cell.is_foreign:
        return open_loader(cell, data)
    iterator = make_iterator(cell, data)
    return iterator if rank is None else iterator.shard(rank.number, rank.world_size)
