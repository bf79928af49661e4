"""The records of a source after a pipeline, computed on access."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from etl.sources.record import check_source, record_error, source_name
from etl.stages.cursor import COLLATING, READING, Cursor, ThreadCursor
from etl.stages.fields import flatten
from etl.stages.pipeline import UNRELATED_TO_THE_RECORD, Pipeline
from etl.stages.stage import AnyStage, describe_stage, fixes_size, is_random, stage_name
from presave import Record, RecordSequence


class Records:
    """The records of `source` after `pipeline`: `records[i]` is `pipeline(source[i])`, with flat fields.

    Pass it to `presave.write`. It can be pickled if the source and the stages can. If the source has `options` (JSON
    values that decide how it reads its files), an interrupted write is resumed only if they are equal.

    Parameters
    ----------
    source : sequence of records
        The records as they are read.
    pipeline : Pipeline
        The stages to apply. None of them may be random.

    Attributes
    ----------
    stage : str or None
        The last stage that records have gone through.
    fingerprint : str
        Identifies the work of the pipeline.
    ragged : frozenset of str
        Fields whose size varies: those of `source.ragged`, without features if a stage fixes their size.
    provenance : dict
        Source, stages and classes, for the manifest of a store.

    Raises
    ------
    ValueError
        If a stage is random: every epoch would get the same random choices.
    """

    def __init__(self, source: RecordSequence, pipeline: Pipeline) -> None:
        check_source(source)
        if pipeline.is_random:
            drawing = next(stage_name(stage) for stage in pipeline.stages if is_random(stage))
            raise ValueError(
                f"stage {drawing!r} is random: presaved, every epoch would get the same random choices. Split the "
                f"pipeline before {drawing!r}, and give the rest to the iterator"
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
        """Return record `index`; raises `RecordError` or `MemoryError` that names it, its file and the stage."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {source_name(self.source)}, which holds {len(self)}")
        cursor = ThreadCursor(index, READING)
        try:
            record = self.pipeline.run(self.source[index], None, cursor)
            cursor.stage = COLLATING
            return flatten(record)
        except Exception as error:  # noqa: BLE001 - raised again
            raise_from(name_error(self.source, self.pipeline, cursor, error), error)


def records(source: RecordSequence, pipeline: Pipeline) -> Records:
    """Return the records of `source` after `pipeline`, computed on access; see `Records`."""
    return Records(source, pipeline)


def ragged_after(ragged: Iterable[str], stages: Iterable[AnyStage]) -> frozenset[str]:
    """Return the fields of `ragged` whose size still varies after `stages`."""
    fixed = {"features"} if any(map(fixes_size, stages)) else set()
    return frozenset(ragged) - fixed


def name_error(source: Any, pipeline: Pipeline, cursor: Cursor, error: Exception) -> Exception:
    """Return the exception to raise for an error while a record was loaded.

    It is a `RecordError` that names record and stage; for a `MemoryError`, a `MemoryError` that does. An error that is
    not the record's fault is returned unchanged: a missing package, a wrong index, a defect of collating.

    Parameters
    ----------
    source : sequence of records
        The source of the record.
    pipeline : Pipeline
        The stages that the record goes through.
    cursor : Cursor
        The record and the stage at which the error happened.
    error : Exception
        The error.
    """
    if isinstance(error, MemoryError):
        return MemoryError(str(record_error(source, cursor.record, pipeline.name_at(cursor.stage), error)))
    if cursor.stage == READING:
        is_unrelated = isinstance(error, IndexError)
    elif cursor.stage == COLLATING:
        is_unrelated = not isinstance(error, (ValueError, TypeError))
    else:
        is_unrelated = isinstance(error, UNRELATED_TO_THE_RECORD)
    if is_unrelated:
        return error
    return record_error(source, cursor.record, pipeline.name_at(cursor.stage), error)


def raise_from(error: BaseException, cause: BaseException) -> NoReturn:
    """Raise `error` from `cause`; the two may be the same exception."""
    try:
        if error is cause:
            raise error
        raise error from cause
    finally:  # its traceback holds this frame: a cycle would live until the collector runs
        del error, cause
