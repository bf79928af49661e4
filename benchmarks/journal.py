"""The metrics of cells, and journals: results are kept as they come, so that an interrupted experiment goes on.

While asv's `setup_cache` measures for minutes or hours, asv shows nothing, and after an interruption it keeps nothing.
So each sample is written to a journal at once, if FAIR_ETL_JOURNAL names a folder: `benchmarks.bench` shows progress
from it, and removes the journals that have ended once asv has kept their results. Studies have journals, too.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

from benchmarks.cells import CPUS_VARIABLE, Cell, Profile
from benchmarks.measuring.arrays import ArraySpec
from benchmarks.measuring.clock import EpochMetrics
from benchmarks.measuring.values import JsonValues, from_json, to_json

JOURNAL_VARIABLE = "FAIR_ETL_JOURNAL"
FOLDER = Path(__file__).parent

Key = TypeVar("Key")
Variant = TypeVar("Variant")
Result = TypeVar("Result", bound=JsonValues)


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
    layouts : list of ArraySpec
        Dtype and shape of each array of a record.
    """

    etl: float
    epoch: EpochMetrics
    compute_alone: float
    p99_stall: float
    peak_memory: int
    digest: str
    score: float
    layouts: list[ArraySpec]

    @property
    def utilisation(self) -> float:
        """Compute alone over wall time."""
        return self.compute_alone / self.epoch.wall.total


class JournalError(ValueError):
    """A file holds no journal, or that of another experiment."""


@dataclass(frozen=True)
class Kind(Generic[Key, Result]):
    """The kind of a journal: the name of its experiment, and the types of its keys and results."""

    experiment: str
    key: Any
    result: type[Result]


# Keys are a cell and a round.
CELLS: Kind[tuple[Cell, int], CellMetrics] = Kind("end_to_end", tuple[Cell, int], CellMetrics)


class Journal(Generic[Key, Result]):
    """Results by key, in a file with a line of JSON for each.

    The first line says which experiment it is. A last line that an interruption has cut short is dropped.

    Parameters
    ----------
    path : Path or None
        The file, which is made with the first result; None keeps nothing.
    header : mapping of str to JSON values
        Whatever decides what is measured.
    environment : mapping of str to JSON values, optional
        Where results are measured, such as machine and versions: written before the first one that this object notes.
        Results then have the time at which they were noted, too.

    Raises
    ------
    JournalError
        If the file has another header.
    """

    def __init__(
        self,
        kind: Kind[Key, Result],
        path: Path | None,
        header: Mapping[str, Any],
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = path
        self._environment, self._is_environment_noted = environment, False
        self._header = {"experiment": kind.experiment, **json.loads(json.dumps(header))}
        self.results: dict[Key, Result] = {}
        self.failed: set[Key] = set()
        if path is None or not path.exists():
            return
        try:
            first, *lines = read_lines(path) or [self._header]
            self.results = results_in(lines, kind)
            self.failed = {from_json(kind.key, line["failed"]) for line in lines if "failed" in line}
            changed = [f"{name} {first.get(name)}" for name in self._header if first.get(name) != self._header[name]]
        except (ValueError, TypeError, AttributeError) as error:
            raise JournalError(f"{path} holds no results of this experiment; name another file") from error
        if changed:
            raise JournalError(f"{path} was measured with {', '.join(changed)}; name another file")
        text = path.read_text()
        if not text.endswith("\n"):
            self._replace(text[: text.rfind("\n") + 1] or f"{json.dumps(self._header)}\n")

    def rewrite(self, results: Mapping[Key, Result]) -> None:
        """Replace the file by one with these results only; an interruption leaves the old one."""
        self.results = dict(results)
        if self._path is not None:
            lines = [json.dumps(self._header), *(_line(key, result) for key, result in self.results.items())]
            self._replace("".join(f"{line}\n" for line in lines))

    def note(self, key: Key, result: Result) -> None:
        """Add a result."""
        if self._environment is None:
            self._write(_line(key, result))
        else:
            if not self._is_environment_noted:
                self._write(json.dumps({"environment": to_json(self._environment)}))
                self._is_environment_noted = True
            self._write(_line(key, result, at=round(time.time())))
        self.results[key] = result

    def note_failure(self, key: Key) -> None:
        """Add that a key has failed; the next run tries it again."""
        self._write(json.dumps({"failed": to_json(key)}))

    def note_end(self) -> None:
        """Add that all was measured."""
        self._write(json.dumps({"ended": True}))

    def _replace(self, text: str) -> None:
        assert self._path is not None  # noqa: S101 - there is something to replace
        self._path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self._path.with_name(f"{self._path.name}.unfinished")
        unfinished.write_text(text)
        unfinished.replace(self._path)

    def _write(self, line: str) -> None:
        if self._path is not None:
            if not self._path.exists():
                self.rewrite(self.results)
            with self._path.open("a") as file:
                file.write(f"{line}\n")


@contextmanager
def open_rounds(
    kind: Kind[tuple[Variant, int], Result], variants: Sequence[Variant], profile: Profile
) -> Iterator[Journal[tuple[Variant, int], Result]]:
    """Open the journal of rounds of these variants, with the samples of complete rounds in it.

    Journals of another commit, profile or machine, or of other code that measures, are other files. With a user's
    loader no round is taken over: its code may have changed since, and nothing here would show it.
    """
    folder = os.environ.get(JOURNAL_VARIABLE)
    path = None if folder is None else Path(folder) / f"{_name(kind, variants, profile)}.jsonl"
    journal = Journal(kind, path, {"variants": len(variants), "rounds": profile.rounds})
    failed = {variant for variant, _ in journal.failed}
    complete = [
        number
        for number in range(profile.rounds)
        if not profile.functions and all((each, number) in journal.results for each in variants if each not in failed)
    ]
    journal.rewrite({key: result for key, result in journal.results.items() if key[1] in complete})
    yield journal
    journal.note_end()


def by_variant(results: Mapping[tuple[Variant, int], Result]) -> dict[Variant, dict[int, Result]]:
    """Return results by variant and round."""
    found: dict[Variant, dict[int, Result]] = {}
    for (variant, number), result in results.items():
        found.setdefault(variant, {})[number] = result
    return found


def results_in(lines: Sequence[Mapping[str, Any]], kind: Kind[Key, Result]) -> dict[Key, Result]:
    """Return the results in the lines of a journal of this kind."""
    return {
        from_json(kind.key, line["key"]): kind.result.from_json(line["result"]) for line in lines if "result" in line
    }


def read_results(path: Path, kind: Kind[Key, Result]) -> dict[Key, Result]:
    """Return the results in a journal of this kind; none if the file does not exist."""
    return results_in(read_lines(path)[1:], kind)


def remove_ended(folder: Path, since: float) -> None:
    """Remove the journals whose rounds were all measured.

    Those from before `since`, a time of `time.time`, are of other runs, and stay.
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


def _line(key: Any, result: JsonValues, **more: Any) -> str:
    return json.dumps({"key": to_json(key), "result": result.to_json(), **more})


def _name(kind: Kind[Any, Any], variants: Sequence[Variant], profile: Profile) -> str:
    """Return a name that is equal only if samples can be taken over."""
    digest = xxhash.xxh3_64()
    for folder in (FOLDER, FOLDER / "measuring", FOLDER / "settings"):
        for file in sorted(folder.glob("*.py")):
            digest.update(file.read_bytes())
    digest.update(json.dumps([to_json(profile), to_json(variants)]).encode())
    digest.update(json.dumps([os.environ.get(name) for name in ("ASV_ENV_NAME", CPUS_VARIABLE)]).encode())
    digest.update(json.dumps([platform.node(), sorted(os.sched_getaffinity(0))]).encode())
    commit = os.environ.get("ASV_COMMIT", "uncommitted")[:12]
    return f"{commit}-{kind.experiment}-{profile.name}-{digest.hexdigest()}"
