"""The work of a comparison as it was measured: the facts that samples are judged with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from etl.comparison.request.answers import TriedLoader
from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.settings import Settings


@dataclass(frozen=True)
class PreparedWork:
    """The work that was asked for, and what was chosen for it.

    Attributes
    ----------
    cpus : int
        CPUs of each rank, for loading and compute together.
    source_records, records : int
        Records of the source, and those that were measured.
    candidates, stage_candidates : list of Candidate
        Candidates that are compared, in the requested order, and those that show where to presave.
    tried : dict of Candidate to TriedLoader
        First tries of user loaders, by origin.
    part_batches : dict of Candidate to int or None
        Batches that are measured of user loaders, on each rank; None for all.
    gets_all : set of Candidate
        User loaders that cannot be given fewer records than the source has.
    unknown_files : set of Candidate
        Candidates that may read files whose cache state cannot be checked: they are unknown, or too many.
    epoch_order : list of int
        Indices of the records in epoch 0 of the comparison's own strategies.
    """

    settings: Settings
    cpus: int
    source_records: int
    records: int
    presave_stage: str
    candidates: list[Candidate]
    stage_candidates: list[Candidate]
    names: Mapping[Candidate, str]
    threads: Mapping[Candidate, CpuSplit]
    tried: Mapping[Candidate, TriedLoader]
    part_batches: Mapping[Candidate, int | None]
    gets_all: set[Candidate]
    unknown_files: set[Candidate]
    epoch_order: list[int]
