"""The records of a source after a pipeline, computed on access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

import presave
from etl.arguments import refuse_string
from etl.sources.identity import source_digests, source_identity, source_origin
from etl.sources.record import check_index, check_source, record_error, source_name
from etl.stages.cursor import COLLATING, READING, Cursor, ThreadCursor
from etl.stages.fields import flatten
from etl.stages.pipeline import UNRELATED_TO_THE_RECORD, Pipeline
from etl.stages.stage import AnyStage, describe_stage, fixes_size, is_of_etl, is_random, stage_name
from presave import Record, RecordSequence
from presave.content import difference
from presave.errors import SHORTAGE_ADVICE, is_shortage, max_open_files
from presave.store import ragged_of
from presave.thread_safety import chosen_from, is_thread_safe


class Records:
    """The records of `source` after `pipeline`: `records[i]` is `pipeline(source[i])`, with flat fields.

    Pass it to `presave.write`. It can be pickled if the source and the stages can. If the source has `options` (JSON
    values that decide how it reads its files) or an `identity` (a mapping to JSON values, such as sizes and times of
    files), an interrupted write is resumed only if they are equal.

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
        Fields whose size varies: those of `source.ragged`, or of a store unless there are stages of your own, without
        features if a stage fixes their size.
    provenance : dict
        Source, stages and classes, for the manifest of a store.
    thread_safe : bool
        True if several threads may read at once: a file source of etl, a list, a torch `Subset` of one of these, or a
        source that says so.

    Raises
    ------
    ValueError
        If a stage is random: every epoch would get the same random choices. If the source is a store of another
        pipeline than the one that this is the rest of.
    """

    def __init__(self, source: RecordSequence, pipeline: Pipeline) -> None:
        check_source(source)
        check_stages_before(source, pipeline)
        if pipeline.is_random:
            drawing = next(stage_name(stage) for stage in pipeline.stages if is_random(stage))
            raise ValueError(
                f"stage {drawing!r} is random: presaved, every epoch would get the same random choices. Split the "
                f"pipeline before {drawing!r}, and give the rest to the iterator"
            )
        self.source = source
        self.pipeline = pipeline
        self.thread_safe = is_thread_safe(source)
        done = (*pipeline.preceding, *pipeline.stages)
        self.stage = stage_name(done[-1]) if done else None
        self.fingerprint = pipeline.fingerprint
        dataset = chosen_from(source)
        # A user's stages may leave out fields of a store, or make them scalars.
        is_known = not isinstance(dataset, presave.Store) or all(map(is_of_etl, pipeline.stages))
        self.ragged = ragged_after(ragged_of(source) if is_known else (), done)
        self.provenance: dict[str, Any] = {
            "source": source_name(source),
            "stages": [describe_stage(stage) for stage in done],
        }
        # Attributes of a user's data set may be anything: a parser's options, the number of classes.
        options, classes = getattr(dataset, "options", None), getattr(dataset, "classes", None)
        if isinstance(options, Mapping):
            self.provenance["options"] = dict(options)
        if isinstance(classes, (list, tuple, np.ndarray)) and all(isinstance(each, str) for each in classes):
            self.provenance["classes"] = list(classes)

    @property
    def identity(self) -> Any:
        """The identity of the files or the data set that the source reads now; None if it is unknown."""
        return source_identity(self.source)

    @property
    def digests(self) -> dict[str, str]:
        """Digests that identify the records, for the manifest of a store; see `source_digests`."""
        return source_digests(self.source)

    def origin(self, index: int) -> str:
        """Return what identifies the file or item of record `index`; "" if nothing does."""
        return source_origin(self.source, index)

    def __repr__(self) -> str:
        return f"Records({source_name(self.source)!r}, {len(self):,} records, {self.pipeline!r})"

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Record:
        """Return record `index`; raises `RecordError` or `MemoryError` that names it, its file and the stage."""
        check_index(self.source, index)
        cursor = ThreadCursor(index, READING)
        try:
            record = self.pipeline.run(self.source[index], None, cursor)
            cursor.stage = COLLATING
            return flatten(record)
        except Exception as error:  # noqa: BLE001 - raised again
            raise_from(name_error(self.source, self.pipeline, cursor, error), error)


def records(source: RecordSequence, pipeline: Pipeline) -> Records:
    """Return the records of `source` after `pipeline`, computed on access; see `Records`.

    Examples
    --------
    >>> half = etl.records(etl.ImageFolder("photos"), etl.image_pipeline(size=64).until("resize"))
    >>> half[0]["features"].shape
    (64, 64, 3)
    """
    return Records(source, pipeline)


def check_stages_before(source: Any, pipeline: Pipeline) -> None:
    """Raise `ValueError` if `source` is a store, or a `Subset` of one, and `pipeline` goes on after other stages."""
    store = chosen_from(source)
    if pipeline.preceding and isinstance(store, presave.Store) and store.manifest.fingerprint is not None:
        check_remainder(store, pipeline)


def check_remainder(store: presave.Store, pipeline: Pipeline) -> None:
    """Raise `ValueError` unless `pipeline` continues the one that wrote `store`.

    An empty pipeline fits any store: the caller says that nothing is left to do.
    """
    manifest = store.manifest
    if not pipeline.names and not pipeline.preceding:
        return
    written_by = manifest.fingerprint if manifest.fingerprint is not None else Pipeline([]).fingerprint
    if written_by != pipeline.preceding_fingerprint:
        before = " -> ".join(Pipeline(pipeline.preceding).names) or "nothing"
        raise ValueError(
            f"{store.path} was written after stage {manifest.stage!r} of pipeline {manifest.fingerprint}; "
            f"this pipeline goes on after {before!r} of pipeline {pipeline.preceding_fingerprint}"
            f"{_changed_settings(manifest.provenance.get('stages'), pipeline)}. "
            "Use the same pipeline's after(stage), or presave again"
        )


def _changed_settings(written_by: Any, pipeline: Pipeline) -> str:
    """Return in words which settings of the preceding stages differ, in brackets; empty if their names do, too.

    `written_by` should be descriptions of stages; it is from a manifest, which may hold anything.
    """
    try:
        before, now = (
            {
                f"{stage['name']}.{name}": value
                for stage in stages
                for name, value in {"kind": stage["kind"], "version": stage["version"], **stage["settings"]}.items()
            }
            for stages in (written_by, [describe_stage(each) for each in pipeline.preceding])
        )
        names = tuple(stage["name"] for stage in written_by)
    except (TypeError, LookupError):
        return ""
    has_other_settings = names == Pipeline(pipeline.preceding).names and before != now
    return f" ({difference(before, now)})" if has_other_settings else ""


def ragged_after(ragged: Iterable[str], stages: Iterable[AnyStage]) -> frozenset[str]:
    """Return the fields of `ragged` whose size still varies after `stages`; `ValueError` if it is a string."""
    refuse_string("ragged", ragged)
    fixed = {"features"} if any(map(fixes_size, stages)) else set()
    return frozenset(ragged) - fixed


def name_error(source: Any, pipeline: Pipeline, cursor: Cursor, error: Exception) -> Exception:
    """Return the exception to raise for an error while a record was loaded.

    It is a `RecordError` that names record and stage; for a `MemoryError`, a `MemoryError` that does. An error that is
    not the record's fault is returned unchanged: a missing package, the index of a record that is not there.
    """
    if is_shortage(error):
        error = OSError(f"{error}; {SHORTAGE_ADVICE.format(max_open_files())}")
    if isinstance(error, MemoryError):
        return MemoryError(str(record_error(source, cursor.record, pipeline.name_at(cursor.stage), error)))
    if cursor.stage == READING:
        is_unrelated = isinstance(error, IndexError) and not 0 <= cursor.record < len(source)
    else:  # collating is where a field is read if the record reads it when it is asked for, as that of an .npz file
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
