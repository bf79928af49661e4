"""A sequence of named stages, which can be split after any of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from etl.stages.collate import FieldError, write_record
from etl.stages.cursor import COLLATING, READING, Cursor, ThreadCursor
from etl.stages.rng import LoaderRng, RecordRng
from etl.stages.stage import AnyStage, describe_stage, is_random, stage_name
from presave import Record

# Errors of a stage that are not the record's fault, and are raised unchanged.
UNRELATED_TO_THE_RECORD = (MemoryError, ImportError)
# Names of the two places of a record that are not stages. A split at `READ` stores records as they are read.
READ = "read"
COLLATE = "collate"


class StageError(Exception):
    """The stage called `stage` failed on a record. The stage's own error is the `__cause__`."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class Pipeline:
    """Stages applied one after another; `Pipeline([])` leaves records as they are.

    A pipeline can be split: `until(name)` ends with a stage; `after(name)` is the rest, and remembers the stages before
    it. A store that was written with the first part can only be read with the second part of the same pipeline.

    Parameters
    ----------
    stages : sequence of stages
        The stages. A plain function from record to record is a stage, too; see `etl.stages.Stage`.
    preceding : sequence of stages, optional
        Stages that records have already gone through.

    Raises
    ------
    ValueError
        If two stages have the same name.

    Examples
    --------
    >>> pipeline = etl.image_pipeline(size=64)
    >>> pipeline
    Pipeline(decode -> resize -> channels_first -> normalise)
    >>> pipeline.until("resize"), pipeline.after("resize")
    (Pipeline(decode -> resize), Pipeline(channels_first -> normalise))
    >>> doubled = etl.Pipeline([lambda record: {**record, "features": record["features"] * 2}])
    """

    def __init__(self, stages: Sequence[AnyStage], *, preceding: Sequence[AnyStage] = ()) -> None:
        self.stages = tuple(stages)
        self.preceding = tuple(preceding)
        names = [stage_name(stage) for stage in (*self.preceding, *self.stages)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(
                f"two stages are called {', '.join(repeated)}; a pipeline is split by name, so names must differ"
            )

    def __call__(self, record: Record, rng: RecordRng | None = None) -> Record:
        """Return `record` after all stages.

        Raises `StageError`, which names the stage that failed, and `ValueError` if a stage is random and `rng` is None.
        """
        if rng is None and self.is_random:
            name = next(stage_name(stage) for stage in self.stages if is_random(stage))
            raise ValueError(
                f"stage {name!r} is random, which needs a seed, an epoch and a record: "
                "load with an iterator, which has these, or pass etl.stages.RecordRng(seed, epoch, record)"
            )
        cursor = ThreadCursor()
        try:
            return self.run(record, rng, cursor)
        except UNRELATED_TO_THE_RECORD:
            raise
        except Exception as error:
            raise StageError(self.name_at(cursor.stage)) from error

    def run(self, record: Record, rng: RecordRng | LoaderRng | None, cursor: Cursor) -> Record:
        """Return `record` after all stages. An error of a stage is raised unchanged.

        Parameters
        ----------
        record : mapping
            The record as it was read.
        rng : RecordRng, LoaderRng or None
            Seeds random stages.
        cursor : Cursor
            Set to the place of each stage before it runs, so that after an error it is at the stage that failed.
        """
        for step in self._steps:
            cursor.stage = step.place
            record = step.run(record, step.generator(rng)) if step.is_random else step.run(record)
        return record

    def write_into(
        self,
        record: Record,
        out: Mapping[str, np.ndarray],
        row: int,
        rng: RecordRng | LoaderRng | None,
        cursor: Cursor,
        casts: bool = True,
    ) -> None:
        """Run all stages and write the result into one row of a batch.

        A last stage with `write_into(features, out)` writes the features itself if the batch has its `written_dtype`,
        which saves a copy.

        Parameters
        ----------
        record : mapping
            The record as it was read.
        out : mapping of str to array of shape (rows, ...)
            One array for each field, named as `etl.stages.fields.flatten` names them.
        row : int
            The row to write.
        rng : RecordRng, LoaderRng or None
            Seeds random stages.
        cursor : Cursor
            Set to the place of each stage before it runs, so that after an error it is at the stage that failed.
        casts : bool
            See `write_record`.

        Raises
        ------
        Exception
            The error of a stage or of `write_record`, unchanged.
        """
        features = out.get("features")
        writer = self._writer
        if writer is not None and (features is None or writer.written_dtype != features.dtype):
            writer = None
        for step in self._steps if writer is None else self._steps_before_writer:
            cursor.stage = step.place
            record = step.run(record, step.generator(rng)) if step.is_random else step.run(record)
        cursor.stage = COLLATING
        write_record(record, out, row, but=None if writer is None else "features", casts=casts)
        if writer is None or features is None:
            return
        cursor.stage = writer.place
        drawn = (writer.generator(rng),) if writer.is_random else ()
        try:
            writer.write_into(record["features"], features[row, ...], *drawn)
        except FieldError:
            cursor.stage = COLLATING
            raise

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages, in order."""
        return tuple(stage_name(stage) for stage in self.stages)

    def until(self, name: str) -> Pipeline:
        """Return the pipeline up to and including stage `name`; raises `ValueError` if there is no such stage."""
        return Pipeline(self.stages[: self._position(name) + 1], preceding=self.preceding)

    def after(self, name: str) -> Pipeline:
        """Return the pipeline after stage `name`; raises `ValueError` if there is no such stage."""
        split = self._position(name) + 1
        return Pipeline(self.stages[split:], preceding=(*self.preceding, *self.stages[:split]))

    def split(self, name: str) -> tuple[Pipeline, Pipeline]:
        """Return `until(name)` and `after(name)`; for `READ`, an empty pipeline and this one."""
        if name == READ:
            return Pipeline([]), self
        return self.until(name), self.after(name)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify all stages up to the end of this pipeline, preceding ones included."""
        return _fingerprint((*self.preceding, *self.stages))

    @cached_property
    def preceding_fingerprint(self) -> str:
        """The fingerprint of the stages that records must have gone through before this pipeline."""
        return _fingerprint(self.preceding)

    @cached_property
    def is_random(self) -> bool:
        """True if any of its stages is random."""
        return any(map(is_random, self.stages))

    def name_at(self, place: int) -> str:
        """Return the name of the stage at `place`, a `Cursor.stage`; "read" or "collate" if it is not a stage."""
        if place == READING:
            return READ
        if place == COLLATING:
            return COLLATE
        return stage_name((*self.preceding, *self.stages)[place])

    def __repr__(self) -> str:
        return f"Pipeline({' -> '.join(self.names) or 'nothing'})"

    @cached_property
    def _steps(self) -> tuple[_Step, ...]:
        following = (*self.stages[1:], None)[: len(self.stages)]
        return tuple(
            _make_step(stage, after, place)
            for place, (stage, after) in enumerate(zip(self.stages, following, strict=True), len(self.preceding))
        )

    @cached_property
    def _writer(self) -> _Step | None:
        # The last step, if it can write into a batch.
        return self._steps[-1] if self._steps and self._steps[-1].written_dtype is not None else None

    @cached_property
    def _steps_before_writer(self) -> tuple[_Step, ...]:
        return self._steps[:-1]

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "preceding": self.preceding}

    def _position(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"the pipeline has no stage {name!r}; it has {', '.join(self.names) or 'none'}")
        return self.names.index(name)


@dataclass(frozen=True)
class _Step:
    """One stage as a pipeline runs it; `written_dtype` is None unless the stage can write into a batch."""

    name: str
    run: Any
    place: int
    is_random: bool
    # The stage whose random numbers it gets: its own, or the following one.
    draws_at: int
    write_into: Any
    written_dtype: np.dtype | None

    def generator(self, rng: RecordRng | LoaderRng | None) -> np.random.Generator:
        """Return the generator that the stage is called with."""
        assert rng is not None, self.name  # noqa: S101 - an iterator makes one, and a call asks for one
        return rng.generator(self.draws_at)


def _make_step(stage: AnyStage, following: AnyStage | None, place: int) -> _Step:
    fused_before = getattr(stage, "fused_before", None)
    run: Any = stage if fused_before is None or following is None else fused_before(following)
    writes = _writes_the_result(stage)
    return _Step(
        name=stage_name(stage),
        run=run,
        place=place,
        is_random=is_random(run),
        draws_at=place + getattr(run, "draws_for_following", False),
        write_into=getattr(run, "write_into", None) if writes else None,
        written_dtype=getattr(stage, "written_dtype", None) if writes else None,
    )


def _writes_the_result(stage: Any) -> bool:
    """Return whether `write_into` does the same as calling the stage: a subclass may override `__call__` alone."""
    for kind in type(stage).__mro__:
        if "write_into" in vars(kind):
            return True
        if "__call__" in vars(kind):
            return False
    return False


def _fingerprint(stages: Sequence[AnyStage]) -> str:
    canonical = json.dumps([describe_stage(stage) for stage in stages], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
