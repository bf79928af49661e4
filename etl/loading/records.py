"""The records of a source as a pipeline leaves them, made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from etl.sources.record import Record, RecordSequence, record_error, source_name
from etl.stages.fields import flatten
from etl.stages.pipeline import READING, Pipeline, StageError
from etl.stages.stage import AnyStage, describe_stage, fixes_size, is_random, stage_name


class Records:
    """`len(source)` records; `[i]` is `pipeline(source[i])`, a tuple of arrays as fields `features.0`, `features.1`
    and so on. What `presave.write` takes; picklable if its parts are.

    `ragged` are the fields whose size varies: those of `source.ragged`, features until a stage that `fixes_size`. Where
    a source has `options`, JSON values that tell what it makes of its files, a write that was interrupted is gone on
    with only if they are the same. Raises `ValueError` for a pipeline with random stages.
    """

    def __init__(self, source: RecordSequence, pipeline: Pipeline) -> None:
        if pipeline.is_random:
            drawing = next(stage_name(stage) for stage in pipeline.stages if is_random(stage))
            raise ValueError(
                f"stage {drawing!r} draws at random: presaved, every epoch would meet the same draw. Cut the pipeline "
                f"before {drawing!r}, and give the rest to the iterator"
            )
        self.source = source
        self.pipeline = pipeline
        done = (*pipeline.preceding, *pipeline.stages)
        self.stage = stage_name(done[-1]) if done else None
        self.fingerprint = pipeline.fingerprint
        self.ragged = ragged_after(getattr(source, "ragged", ()), done)
        self.provenance: dict[str, Any] = {
            "source": source_name(source),
            "stages": [describe_stage(stage) for stage in done],
        }
        options = getattr(source, "options", None)
        if options is not None:
            self.provenance["options"] = dict(options)
        classes = getattr(source, "classes", None)
        if classes is not None:
            self.provenance["classes"] = list(classes)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        """Record `index`; raises `RecordError` or `MemoryError` that names it, its file and the stage."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {source_name(self.source)}, which holds {len(self)}")
        where = [index, READING]
        try:
            record = self.pipeline(read_record(self.source, index), where=where)
        except StageError as error:
            raise record_error(self.source, index, error.stage, error.__cause__ or error) from error.__cause__
        except MemoryError as error:
            stage = self.pipeline.name_at(where[1])
            raise MemoryError(str(record_error(self.source, index, stage, error))) from error
        try:
            return flatten(record)
        except ValueError as error:
            raise record_error(self.source, index, "collate", error) from error


def records(source: RecordSequence, pipeline: Pipeline) -> Records:
    """The records of `source` after `pipeline`, computed when asked for."""
    return Records(source, pipeline)


def ragged_after(ragged: Iterable[str], stages: Iterable[AnyStage]) -> frozenset[str]:
    """The fields of `ragged` whose size still varies after `stages`."""
    fixed = {"features"} if any(map(fixes_size, stages)) else set()
    return frozenset(ragged) - fixed


def read_record(source: RecordSequence, index: int) -> Record:
    """`source[index]`; raises `RecordError` at stage "read"."""
    try:
        return source[index]
    except (MemoryError, IndexError):
        raise
    except Exception as error:
        raise record_error(source, index, "read", error) from error
