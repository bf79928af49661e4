"""The metrics of cells, and the journals that keep samples while asv's `setup_cache` measures for minutes or hours.

asv shows nothing meanwhile, and after an interruption it keeps nothing. So each sample is written to a file at once, if
FAIR_ETL_JOURNAL names a folder: `benchmarks.bench` shows progress from it, and an interrupted run goes on. Once asv has
kept the results, it removes the journals that have ended.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

import xxhash

from benchmarks.cells import Cell, Profile
from benchmarks.measuring.arrays import Layout
from benchmarks.measuring.clock import EpochMetrics
from benchmarks.measuring.values import JsonValues, from_json, to_json

JOURNAL_VARIABLE = "FAIR_ETL_JOURNAL"
FOLDER = Path(__file__).parent

Variant = TypeVar("Variant")
Sample = TypeVar("Sample", bound=JsonValues)


@dataclass(frozen=True)
class CellMetrics(JsonValues):
    """The metrics of a cell that one process measured.

    Attributes
    ----------
    etl : float
        Seconds to load an epoch while nothing else is done.
    epoch : EpochMetrics
        The means of the epochs with compute.
    compute_alone : float
        Seconds of the steps of an epoch on a batch in memory, while nothing loads.
    p99_stall : float
        Seconds that 99% of the stalls before a batch did not exceed, of all such epochs without their first batches.
    peak_memory : int
        Bytes, of the process and its children, without mapped libraries.
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


@dataclass(frozen=True)
class Kind(Generic[Variant, Sample]):
    """The kind of a journal.

    Attributes
    ----------
    suite : str
        The suite that it is of.
    variant, sample : type
        The type of what is measured, and of what one round measures of it.
    """

    suite: str
    variant: Any
    sample: type[Sample]


CELLS: Kind[Cell, CellMetrics] = Kind("end_to_end", Cell, CellMetrics)


class Journal(Generic[Variant, Sample]):
    """A journal of samples, or nothing if there is no file.

    Attributes
    ----------
    taken : dict
        Samples of an earlier run by variant and round.
    """

    def __init__(self, file: TextIO | None, taken: dict[Variant, dict[int, Sample]] | None = None) -> None:
        self._file = file
        self.taken = taken or {}

    def note(self, variant: Variant, number: int, sample: Sample) -> None:
        """Add a sample."""
        self._write(_line(variant, number, sample))

    def note_failure(self, variant: Variant) -> None:
        """Add that a variant has failed; the next run tries it again."""
        self._write(json.dumps({"failed": to_json(variant)}))

    def note_end(self) -> None:
        """Add that all rounds were measured."""
        self._write(json.dumps({"ended": True}))

    def _write(self, line: str) -> None:
        if self._file is not None:
            self._file.write(line + "\n")
            self._file.flush()


@contextmanager
def open_journal(
    kind: Kind[Variant, Sample], variants: Sequence[Variant], profile: Profile, conditions: Any = None
) -> Iterator[Journal[Variant, Sample]]:
    """Open the journal of these variants, with the samples of complete rounds in it.

    Journals of another commit, profile or machine, or of other code that measures, are other files.
    """
    folder = os.environ.get(JOURNAL_VARIABLE)
    if folder is None:
        yield Journal(None)
        return
    path = Path(folder) / f"{_name(kind, variants, profile, conditions)}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"suite": kind.suite, "variants": len(variants), "rounds": profile.rounds}
    found = read_lines(path)
    samples, failed = samples_in(found, kind), _failed_in(found, kind)
    complete = [
        number
        for number in range(profile.rounds)
        if all(number in samples.get(each, {}) for each in variants if each not in failed) and samples
    ]
    taken = {
        each: {number: rounds[number] for number in complete if number in rounds} for each, rounds in samples.items()
    }
    lines = [json.dumps(header)]
    lines += [_line(each, number, sample) for each, rounds in taken.items() for number, sample in rounds.items()]
    path.write_text("".join(f"{line}\n" for line in lines))
    with path.open("a") as file:
        journal: Journal[Variant, Sample] = Journal(file, taken)
        yield journal
        journal.note_end()


def samples_in(lines: Sequence[Mapping[str, Any]], kind: Kind[Variant, Sample]) -> dict[Variant, dict[int, Sample]]:
    """Return the samples in the lines of a journal of this kind, by variant and round."""
    samples: dict[Variant, dict[int, Sample]] = {}
    for line in lines:
        if "sample" in line:
            variant: Variant = from_json(kind.variant, line["variant"])
            samples.setdefault(variant, {})[line["round"]] = kind.sample.from_json(line["sample"])
    return samples


def remove_ended(folder: Path, since: float) -> None:
    """Remove the journals of which all rounds were measured.

    Parameters
    ----------
    since : float
        Time of `time.time`: older journals are those of other runs, and stay.
    """
    for path in folder.glob("*.jsonl"):
        if path.stat().st_mtime >= since and any("ended" in line for line in read_lines(path)):
            path.unlink()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a journal; none if it does not exist."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _failed_in(lines: Sequence[Mapping[str, Any]], kind: Kind[Variant, Sample]) -> set[Variant]:
    """Return the variants that failed, according to the lines of a journal."""
    return {from_json(kind.variant, line["failed"]) for line in lines if "failed" in line}


def _line(variant: Any, number: int, sample: JsonValues) -> str:
    return json.dumps({"variant": to_json(variant), "round": number, "sample": sample.to_json()})


def _name(kind: Kind[Variant, Sample], variants: Sequence[Variant], profile: Profile, conditions: Any) -> str:
    """Return a name that is equal only if samples can be taken over."""
    digest = xxhash.xxh3_64()
    for folder in (FOLDER, FOLDER / "measuring", FOLDER / "settings"):
        for file in sorted(folder.glob("*.py")):
            digest.update(file.read_bytes())
    digest.update(json.dumps([to_json(replace(profile, rounds=0)), [to_json(each) for each in variants], conditions]))
    digest.update(json.dumps([os.environ.get(name) for name in ("ASV_ENV_NAME", "FAIR_ETL_CPUS")]))
    commit = os.environ.get("ASV_COMMIT", "uncommitted")[:12]
    return f"{commit}-{kind.suite}-{profile.name}-{digest.hexdigest()}"
