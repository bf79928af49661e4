"""A user's loader as it is asked for: its function, and the records and conditions that make up its task."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from etl.comparison.request.conditions import Conditions
from etl.measuring.ranks import Rank
from etl.measuring.values import JsonValues
from etl.strategies.task import Task


@dataclass(frozen=True)
class UserLoader(JsonValues):
    """A user's loader, and the work that it is measured with.

    Attributes
    ----------
    function : str
        The loader, as `find_function` takes it.
    path : str or None
        Folder or file of the records; None if they are not files.
    files : list of str
        Files that an epoch reads, besides those that `prepare` writes.
    records : int or None
        Records of an epoch; None if the number is unknown.
    cpus : int
        CPUs for loading and compute together, of each rank.
    batches : int or None
        Batches of an epoch that are measured; None for all.
    settings : dict of str to str, int, float, bool or None
        Chosen values of its settings.
    """

    function: str
    path: str | None
    files: list[str]
    folder: str
    records: int | None
    cpus: int
    batches: int | None
    rank: Rank
    conditions: Conditions
    settings: Mapping[str, Any] = field(default_factory=dict)


def task_of(
    loader: UserLoader, source: Callable[[], Any] | None = None, pipeline: Callable[[], Any] | None = None
) -> Task:
    """Return the task of `loader`."""

    def path() -> str:
        if loader.path is None:
            raise ValueError("there is no path: the source is neither a file nor a folder; ask for `source`")
        return loader.path

    return Task(
        batch_size=loader.conditions.batch_size,
        dtype=loader.conditions.dtype,
        seed=loader.conditions.seed,
        epoch=0,
        records=loader.records or 0,
        cpus=loader.cpus,
        workers=loader.cpus,
        folder=loader.folder,
        rank=loader.rank.number,
        world_size=loader.rank.world_size,
        settings=loader.settings,
        open_path=path,
        open_source=source or functools.partial(_missing, "source"),
        open_pipeline=pipeline or functools.partial(_missing, "pipeline"),
    )


def _missing(name: str) -> Any:
    raise ValueError(
        f"`{name}` needs the packages of etl, which another Python does not have; ask for `path`, or leave out --python"
    )


def files_below(folder: Path) -> list[Path]:
    """Return the files in `folder` and below it, sorted."""
    return sorted(each for each in folder.rglob("*") if each.is_file())
