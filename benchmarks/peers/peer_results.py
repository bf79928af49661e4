"""Raw results of the peers, as a file of JSON that is committed: the tables of the documents come from it alone."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measuring.statistics import Interval, ratio_intervals
from benchmarks.measuring.values import JsonValues, to_json
from benchmarks.peers.rows import OURS, Row
from benchmarks.servers import ROOT
from etl.comparison.judge.report import StrategyResult
from etl.comparison.show.report import Report
from etl.comparison.tuning.tuner import tuned_label

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "results"
REFERENCE = "reference"


@dataclass(frozen=True)
class RawRound(JsonValues):
    """One round of a loader, for the measured records of an epoch.

    Attributes
    ----------
    number : int
        Number of the round, from 0. Loaders are compared within a round.
    wall_seconds : float
        Wall time with the simulated device.
    etl_alone_seconds : float or None
        Loading alone; None if it was not measured in this round.
    cpu_seconds : float
        CPU time of the loader and its workers.
    """

    number: int
    wall_seconds: float
    etl_alone_seconds: float | None
    cpu_seconds: float


@dataclass(frozen=True)
class RawRow(JsonValues):
    """One loader, as documented or tuned.

    Attributes
    ----------
    name : str
        The name of its `Row`.
    is_tuned : bool
        True if the tuner chose its settings; False if they are the defaults, as its authors document them.
    settings : mapping of str to JSON values
        What the tuner chose; empty for the defaults.
    records : int
        Measured records of an epoch.
    images : str
        How far its images are those of the reference.
    disqualified : list of str
        Rules that it broke, with the evidence.
    peak_memory_nbytes : int
        Peak memory of the loader and its workers, with mapped pages of data files.
    prepare_seconds, disk_nbytes : float and int, or None
        Cost of what it prepares; None if it prepares nothing.
    note : str
        The note of its `Row`.
    rounds : list of RawRound
        Its rounds.
    """

    name: str
    is_tuned: bool
    settings: Mapping[str, Any]
    records: int
    images: str
    disqualified: list[str]
    peak_memory_nbytes: int
    prepare_seconds: float | None
    disk_nbytes: int | None
    note: str
    rounds: list[RawRound]

    @property
    def images_per_second(self) -> float:
        """Images per second of loading alone, on average over the rounds."""
        return self.records / statistics.fmean(self.etl_alone_seconds.values())

    @property
    def waiting_per_second(self) -> float:
        """Images per second with the simulated device, on average over the rounds."""
        return self.records / statistics.fmean(each.wall_seconds for each in self.rounds)

    @property
    def cpu_seconds_per_1000(self) -> float:
        """CPU time per 1,000 images, on average over the rounds."""
        return 1000 * statistics.fmean(each.cpu_seconds for each in self.rounds) / self.records

    @property
    def etl_alone_seconds(self) -> dict[int, float]:
        """Seconds of loading alone by number of the round, where it was measured."""
        return {each.number: each.etl_alone_seconds for each in self.rounds if each.etl_alone_seconds is not None}


@dataclass(frozen=True)
class PeerResults(JsonValues):
    """All that was measured for one task.

    Attributes
    ----------
    task : str
        The task of its rows.
    started_at : str
        Start, in ISO format.
    seconds : float
        Duration.
    commit : str
        Commit of this repository, with "-dirty" if files differed from it; empty if that is unknown.
    command : str
        The command line, without folders.
    records, batch_size, threads : int
        Photographs, images in a batch, and CPUs for every loader.
    compute : str
        The simulated device.
    tune_seconds : float or None
        Time in which each loader was tuned; None if none was.
    machine : mapping of str to JSON values
        Facts about the machine.
    versions : mapping of str to mapping of str to str
        Versions of the packages in the environment of each peer.
    missing : mapping of str to str
        The reason for each row that could not be measured, by name.
    rows : list of RawRow
        The loaders that were measured. This project's are the reference.
    """

    task: str
    started_at: str
    seconds: float
    commit: str
    command: str
    records: int
    batch_size: int
    threads: int
    compute: str
    tune_seconds: float | None
    machine: Mapping[str, Any]
    versions: Mapping[str, Mapping[str, str]]
    missing: Mapping[str, str]
    rows: list[RawRow]

    def ratio(self, row: RawRow) -> Interval | None:
        """Return images/s of `row` over those of this project's loader, either both as documented or both tuned.

        The intervals of all rows that are as documented hold together, and so do those of all that are tuned. None for
        this project's loader, and if there is no common round.
        """
        # If no other settings were better for this project's loader, it is as documented when it is tuned, too.
        mine = [each for each in self.rows if each.name == OURS and each.is_tuned in (row.is_tuned, False)]
        if not mine or row.name == OURS:
            return None
        chosen = [max(mine, key=lambda each: each.is_tuned)]
        chosen += [each for each in self.rows if each.name != OURS and each.is_tuned == row.is_tuned]
        seconds = {
            each.name: {number: taken / each.records for number, taken in each.etl_alone_seconds.items()}
            for each in chosen
        }
        found = ratio_intervals(seconds, OURS).get(row.name)
        return None if found is None else found.inverse


def tuned_name(row: Row) -> str:
    """Return what a comparison calls the tuned version of `row`."""
    return tuned_label(row.name)


def collect(report: Report, rows: Sequence[Row], missing: Mapping[str, str], tune_seconds: float | None) -> PeerResults:
    """Return the results of a report, without what only a file has: the commit, the command and versions of peers.

    Parameters
    ----------
    tune_seconds : float or None
        Time in which each row was tuned; None if none was.
    """
    named = {each.name: each for each in report.strategies}
    found = [
        _raw_row(row, is_tuned, named[name])
        for row in rows
        for name, is_tuned in ((row.name, False), (tuned_name(row), True))
        if name in named
    ]
    measured = {each.name for each in found}
    return PeerResults(
        task=rows[0].task,
        started_at=report.started_at,
        seconds=report.seconds,
        commit="",
        command="",
        records=report.source_records,
        batch_size=report.batch_size,
        threads=report.settings["threads"],
        compute=report.settings["compute"],
        tune_seconds=tune_seconds,
        machine=report.machine,
        versions={},
        missing={row.name: missing.get(row.name, "failed, see below") for row in rows if row.name not in measured},
        rows=found,
    )


def _raw_row(row: Row, is_tuned: bool, result: StrategyResult) -> RawRow:
    return RawRow(
        name=row.name,
        is_tuned=is_tuned,
        settings=dict(getattr(result, "settings", None) or {}) if is_tuned else {},
        records=result.measured_records,
        images=REFERENCE if result.sameness is None else result.sameness.describe(),
        disqualified=list(result.disqualified),
        peak_memory_nbytes=result.peak_memory_nbytes,
        prepare_seconds=None if result.presaving is None else result.presaving.write_seconds,
        disk_nbytes=None if result.presaving is None else result.presaving.nbytes,
        note=row.note,
        rounds=[
            RawRound(each.round, each.wall_seconds, each.etl_alone_seconds, each.cpu_seconds) for each in result.rounds
        ],
    )


def save(
    results: PeerResults,
    folder: Path,
    arguments: Sequence[str],
    pythons: Mapping[str, str],
    find_versions: Callable[[str, str], Mapping[str, str]],
) -> Path:
    """Write `results` to the file of their task and day in `folder`, and return its path.

    Parameters
    ----------
    folder : path
        The folder, which is made if it is missing.
    find_versions : callable
        Returns the versions of the packages of a peer that an interpreter has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    complete = replace(
        results,
        commit=_find_commit(),
        command=" ".join(["python", "-m", "benchmarks.peers", *map(_without_folders, arguments)]),
        versions={peer: dict(find_versions(python, peer)) for peer, python in pythons.items()},
    )
    path = folder / f"{results.task}-{results.started_at[:10]}.json"
    path.write_text(to_text(complete))
    return path


def to_text(results: PeerResults) -> str:
    """Return the JSON of `results`, with a line for each row, so that a change of one row is a change of one line."""
    values = results.to_json()
    rows = ",\n".join(f"  {json.dumps(row)}" for row in values.pop("rows"))
    return f'{json.dumps(to_json(values), indent=1)[:-2]},\n "rows": [\n{rows}\n ]\n}}\n'


def load(path: Path) -> PeerResults:
    """Return the results in the file at `path`."""
    return PeerResults.from_json(json.loads(path.read_text()))


def find_latest(task: str, folder: Path = RESULTS) -> PeerResults | None:
    """Return the latest results of `task` in `folder`; None if there are none."""
    files = sorted(folder.glob(f"{task}-*.json"))
    return load(files[-1]) if files else None


def _find_commit() -> str:
    command = ["git", "describe", "--always", "--exclude=*", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _without_folders(argument: str) -> str:
    """Return an argument of the command line without the folders of this machine in it."""
    option, equals, value = argument.rpartition("=")
    return f"{option}{equals}{Path(value).name}" if Path(value).is_absolute() else argument
