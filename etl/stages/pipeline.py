"""A sequence of named stages, which can be cut after any of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import KeysView, Mapping, MutableSequence, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from etl.sources.record import Record
from etl.stages.collate import SlotError, find_value, store
from etl.stages.draw import Draw
from etl.stages.fields import check_as_many, flatten
from etl.stages.stage import AnyStage, describe_stage, is_random, stage_name

# What a stage raises that is no fault of the record, and is passed on as it is.
UNRELATED_TO_THE_RECORD = (MemoryError, ImportError)
# The place, for those who watch, before that of the first stage: the record is being read.
READING = -1
# The name of that place, and of a split before the first stage: a store of records as they are read.
READ = "read"


class StageError(Exception):
    """A stage failed on a record; `stage` is its name, the cause is chained."""

    def __init__(self, stage: str) -> None:
        super().__init__(stage)
        self.stage = stage


class Pipeline:
    """Stages applied one after another. `Pipeline([])` leaves records as they are.

    `until(name)` is the part up to and with a stage, `after(name)` the rest, which remembers what went before: a store
    written after the one part is read with the other, and with no other pipeline's.
    """

    def __init__(self, stages: Sequence[AnyStage], *, preceding: Sequence[AnyStage] = ()) -> None:
        self.stages = tuple(stages)
        self.preceding = tuple(preceding)
        names = [stage_name(stage) for stage in (*self.preceding, *self.stages)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"two stages are called {', '.join(repeated)}; a pipeline is cut by name, so names differ")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its stages, in order."""
        return tuple(stage_name(stage) for stage in self.stages)

    def until(self, name: str) -> Pipeline:
        """The pipeline up to and with stage `name`; raises `ValueError` that lists the stages."""
        return Pipeline(self.stages[: self._position(name) + 1], preceding=self.preceding)

    def after(self, name: str) -> Pipeline:
        """What is left to do after stage `name`; raises `ValueError` that lists the stages."""
        cut = self._position(name) + 1
        return Pipeline(self.stages[cut:], preceding=(*self.preceding, *self.stages[:cut]))

    def split(self, name: str) -> tuple[Pipeline, Pipeline]:
        """Return `until(name)` and `after(name)`; with `READ`, nothing and the whole pipeline."""
        if name == READ:
            return Pipeline([]), self
        return self.until(name), self.after(name)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that name the work done on a record by the end of this pipeline."""
        return _fingerprint((*self.preceding, *self.stages))

    @cached_property
    def preceding_fingerprint(self) -> str:
        """The fingerprint of the work that must have been done before this pipeline starts."""
        return _fingerprint(self.preceding)

    @cached_property
    def is_random(self) -> bool:
        """Whether any of its stages draws at random."""
        return any(map(is_random, self.stages))

    def __call__(self, record: Record, draw: Draw | None = None, where: MutableSequence[int] | None = None) -> Record:
        """`record` after all stages; raises `StageError` naming the stage that failed.

        `draw` is what random stages are seeded with; without it they raise `ValueError`. `where[1]` is set to the place
        of each stage before it begins, for those who watch.
        """
        return _apply(self._steps, record, draw, where)

    def name_at(self, place: int) -> str:
        """The name of the stage with `place` stages before it, counted from the beginning of the whole pipeline; "read"
        for `READING`.
        """
        return READ if place == READING else stage_name((*self.preceding, *self.stages)[place])

    def write_into(
        self,
        record: Record,
        out: Mapping[str, np.ndarray],
        draw: Draw | None = None,
        where: MutableSequence[int] | None = None,
    ) -> KeysView[str]:
        """Apply all stages and store each field into `out[field]`, converted to its dtype; the fields that there were.

        Those of a tuple are named as `flatten` names them. A last stage with `write_into(features, out)` writes
        straight into a slot of its `written_dtype`. Raises `StageError`, and `ValueError` where a field is missing, or
        has not the shape of its slot or a dtype that fits into it. `where` is as in a call.
        """
        steps = self._steps
        features = out.get("features")
        writes = bool(steps) and features is not None and steps[-1].written_dtype == features.dtype
        record = _apply(steps[:-1] if writes else steps, record, draw, where)
        fields = flatten(record)
        for name, slot in out.items():
            if not (writes and name == "features"):
                if name not in fields:
                    check_as_many(fields, out)
                store(name, find_value(fields, name), slot)
        if writes:
            if where is not None:
                where[1] = steps[-1].place
            steps[-1].write(record, out["features"], draw)
        return fields.keys()

    def __repr__(self) -> str:
        return f"Pipeline({' -> '.join(self.names) or 'nothing'})"

    @cached_property
    def _steps(self) -> tuple[_Step, ...]:
        following = (*self.stages[1:], None)[: len(self.stages)]
        places = range(len(self.preceding), len(self.preceding) + len(self.stages))
        return tuple(_Step(*each) for each in zip(self.stages, following, places, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {"stages": self.stages, "preceding": self.preceding}

    def _position(self, name: str) -> int:
        if name not in self.names:
            raise ValueError(f"the pipeline has no stage {name!r}; it has {', '.join(self.names) or 'none'}")
        return self.names.index(name)


class _Step:
    """One stage as a pipeline runs it, where `following` comes next and `place` stages have gone before."""

    def __init__(self, stage: AnyStage, following: AnyStage | None, place: int) -> None:
        self._name = stage_name(stage)
        before = getattr(stage, "before", None)
        self._stage: Any = stage if before is None or following is None else before(following)
        self._is_random = is_random(stage)
        self.place = place
        written_dtype = getattr(stage, "written_dtype", None)
        self.written_dtype: np.dtype | None = written_dtype if _writes_what_it_returns(stage) else None

    def __call__(self, record: Record, draw: Draw | None) -> Record:
        random = self._random(draw)
        try:
            done: Record = self._stage(record, *random)
        except UNRELATED_TO_THE_RECORD:
            raise
        except Exception as error:
            raise StageError(self._name) from error
        return done

    def write(self, record: Record, out: np.ndarray, draw: Draw | None) -> None:
        random = self._random(draw)
        try:
            self._stage.write_into(record["features"], out, *random)
        except (SlotError, *UNRELATED_TO_THE_RECORD):
            raise
        except Exception as error:
            raise StageError(self._name) from error

    def _random(self, draw: Draw | None) -> tuple[np.random.Generator, ...]:
        if not self._is_random:
            return ()
        if draw is None:
            raise ValueError(
                f"stage {self._name!r} draws at random, which needs a seed, an epoch and a record: "
                "load with an iterator, which has these, or pass etl.stages.Draw(seed, epoch, record)"
            )
        return (draw.generator(self.place),)


def _apply(steps: Sequence[_Step], record: Record, draw: Draw | None, where: MutableSequence[int] | None) -> Record:
    for step in steps:
        if where is not None:
            where[1] = step.place
        record = step(record, draw)
    return record


def _writes_what_it_returns(stage: Any) -> bool:
    """Whether `write_into` does what calling the stage does: a subclass may have changed the call alone."""
    for kind in type(stage).__mro__:
        if "write_into" in vars(kind):
            return True
        if "__call__" in vars(kind):
            return False
    return False


def _fingerprint(stages: Sequence[AnyStage]) -> str:
    canonical = json.dumps([describe_stage(stage) for stage in stages], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]
