"""Cutting a pipeline in two: what is done when a store is written, and what is left when it is read."""

from __future__ import annotations

from etl.pipeline import Pipeline

# The cut before the first stage: a store of records as they are read.
READ = "read"


def cut(pipeline: Pipeline, stage: str) -> tuple[Pipeline, Pipeline]:
    """`pipeline` up to and with `stage`, and the rest; raises `ValueError` that lists the stages."""
    if stage == READ:
        return Pipeline([]), pipeline
    return pipeline.until(stage), pipeline.after(stage)


def usual_cut(pipeline: Pipeline) -> str:
    """The stage to presave after, unless another is asked for: "resize" for photographs, whose bytes are a quarter of
    floats, otherwise the last, so that nothing is left to do; `READ` for a pipeline without stages.
    """
    if "resize" in pipeline.names:
        return "resize"
    return pipeline.names[-1] if pipeline.names else READ
