"""A request to a measuring process: one action, with all that it depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from etl.comparison.request.candidates import Candidate, CpuSplit, StoreKind
from etl.comparison.request.loader_request import UserLoader
from etl.measuring.ranks import Rank
from etl.measuring.sample import Recipe
from etl.measuring.values import JsonValues

Action = Literal["profile", "write", "first_try", "try", "check", "measure", "tune", "load", "timeline"]


@dataclass(frozen=True)
class MeasuringRequest(JsonValues):
    """One action of a measuring process.

    Attributes
    ----------
    action : str
        The action. "first_try" prepares the files of a user's loader; one without files is tried at once.
    affinity : list of int
        CPUs that the process is bound to.
    candidate : Candidate or None
        The way to load; None for "profile" and "write".
    loader : UserLoader or None
        Its loader, if it is a user's.
    compute_threads : int or None
        Compute threads instead of those of the split: sums depend on them, so all checked epochs have equally many.
    recipe : Recipe
        What is measured ("measure", "tune").
    seconds : float
        Time to load for ("first_try", "try").
    trains : bool
        Train on the first batches ("check").
    again : {"", "begun", "whole"}
        How much of a second epoch is looked at ("check", user loaders).
    counts : list of int
        Numbers of compute threads that are timed ("check", "profile").
    splits : list of CpuSplit
        CPU splits that are timed ("profile").
    arrays_file : str
        New file for signatures of the records ("check").
    store : StoreKind or None
        The store to write, by a worker process for each CPU ("write").
    """

    action: Action
    records: int
    affinity: list[int]
    rank: Rank
    candidate: Candidate | None = None
    threads: CpuSplit | None = None
    loader: UserLoader | None = None
    compute_threads: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    seconds: float = 0.0
    trains: bool = False
    again: str = ""
    counts: list[int] = field(default_factory=list)
    splits: list[CpuSplit] = field(default_factory=list)
    arrays_file: str = ""
    store: StoreKind | None = None
