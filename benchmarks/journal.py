"""The metrics of cells, and the journal in which they are kept while asv's `setup_cache` measures for minutes or hours.

asv shows nothing meanwhile, and after an interruption it keeps nothing. So each sample is written to a file at once, if
FAIR_ETL_JOURNAL names a folder: `benchmarks.bench` shows progress from it, and an interrupted run goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

import xxhash

from benchmarks.cells import Cell, Profile
from benchmarks.measuring.arrays import Layout
from benchmarks.measuring.clock import EpochMetrics
from benchmarks.measuring.values import JsonValues, from_json, to_json

JOURNAL_VARIABLE = "FAIR_ETL_JOURNAL"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class CellMetrics(JsonValues):
    """The metrics of a cell that one process measured.

    Attributes
    ----------
    etl : float
        Seconds to load an epoch while nothing else is done, the median.
    epoch : EpochMetrics
        The epoch with compute that has the median wall time: its parts add up, as separate medians would not.
    compute_alone : float
        Seconds of the steps of an epoch on a batch in memory, while nothing loads.
    p99_stall : float
        Seconds that 99% of the stalls before a batch did not exceed, of all such epochs without their first batches.
    peak_memory : int
        Bytes, of the process and its children.
    digest, score : str, float
        The digest of all batches of an epoch, and the score of `Compute` after it. Both are equal for cells of equal
        work.
    layouts : list of Layout
        Dtype and shape of each array of a record.
    """

    etl: float
    epoch: EpochMetrics
    compute_alone: float
    p99_stall: float
    peak_memory: int
    digest: str
    score: float
    layouts: list[Layout]

    @property
    def utilisation(self) -> float:
        """Compute alone over wall time."""
        return self.compute_alone / self.epoch.wall.total


class Journal:
    """A journal of samples, or nothing if there is no file.

    Attributes
    ----------
    taken : dict
        Samples of an earlier run by cell and round.
    """

    def __init__(self, file: TextIO | None, taken: dict[Cell, dict[int, CellMetrics]] | None = None) -> None:
        self._file = file
        self.taken = taken or {}

    def note(self, cell: Cell, number: int, metrics: CellMetrics) -> None:
        """Add a sample.

        Parameters
        ----------
        cell : Cell
            The cell.
        number : int
            Number of the round.
        metrics : CellMetrics
            The sample.
        """
        self._write(_line(cell, number, metrics))

    def note_failure(self, cell: Cell) -> None:
        """Add that a cell has failed; the next run tries it again."""
        self._write(json.dumps({"failed": to_json(cell)}))

    def _write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()


@contextmanager
def open_journal(cells: Sequence[Cell], profile: Profile) -> Iterator[Journal]:
    """Open the journal of these cells, with the samples of complete rounds in it; it is deleted at the end.

    Journals of another commit, profile or machine, or of other code that measures, are other files.

    Parameters
    ----------
    cells : sequence of Cell
        The cells that are measured.
    profile : Profile
        Their profile.
    """
    folder = os.environ.get(JOURNAL_VARIABLE)
    if folder is None:
        yield Journal(None)
        return
    path = Path(folder) / f"{_name(cells, profile)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"cells": len(cells), "rounds": profile.rounds, "samples": profile.samples}
    found = read_lines(path)
    samples, failed = samples_in(found), failed_in(found)
    complete = [
        number
        for number in range(profile.rounds)
        if all(number in samples.get(each, {}) for each in cells if each not in failed) and samples
    ]
    taken = {cell: {number: each[number] for number in complete if number in each} for cell, each in samples.items()}
    lines = [json.dumps(header)]
    lines += [_line(cell, number, metrics) for cell, each in taken.items() for number, metrics in each.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    with path.open("a") as file:
        yield Journal(file, taken)
    path.unlink()


def samples_in(lines: Sequence[Mapping[str, Any]]) -> dict[Cell, dict[int, CellMetrics]]:
    """Return the samples in the lines of a journal, by cell and round."""
    samples: dict[Cell, dict[int, CellMetrics]] = {}
    for line in lines:
        if "metrics" in line:
            cell: Cell = from_json(Cell, line["cell"])
            samples.setdefault(cell, {})[line["round"]] = CellMetrics.from_json(line["metrics"])
    return samples


def failed_in(lines: Sequence[Mapping[str, Any]]) -> set[Cell]:
    """Return the cells that failed, according to the lines of a journal."""
    return {from_json(Cell, line["failed"]) for line in lines if "failed" in line}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a journal; none if it does not exist."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _line(cell: Cell, number: int, metrics: CellMetrics) -> str:
    return json.dumps({"cell": to_json(cell), "round": number, "metrics": metrics.to_json()})


def _name(cells: Sequence[Cell], profile: Profile) -> str:
    """Return a name that is equal only if samples can be taken over."""
    digest = xxhash.xxh3_64()
    for file in sorted([*FOLDER.glob("*.py"), *(FOLDER / "measuring").glob("*.py")]):
        digest.update(file.read_bytes())
    digest.update(json.dumps([to_json(replace(profile, rounds=0)), [to_json(each) for each in cells]]))
    digest.update(json.dumps([os.environ.get(name) for name in ("ASV_ENV_NAME", "FAIR_ETL_CPUS")]))
    return f"{os.environ.get('ASV_COMMIT', 'uncommitted')[:12]}-{profile.name}-{digest.hexdigest()}"
