"""Whatever the stage a store was cut at and whatever its format: the same batches as decoding on every epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.stages import Cast

PIPELINE = etl.image_pipeline(16)
# For each cut what is stored, and what is left to do.
CUTS = {
    "read": (etl.Pipeline([]), PIPELINE),
    **{stage: (PIPELINE.until(stage), PIPELINE.after(stage)) for stage in PIPELINE.names},
}
RAGGED = {"read": 1, "decode": 3}


@pytest.mark.parametrize("format", presave.formats())
@pytest.mark.parametrize("stage", CUTS)
def test_a_store_split_after_any_stage_gives_the_batches_of_raw(
    photographs: Path, tmp_path: Path, stage: str, format: str
) -> None:
    source = etl.ImageFolder(photographs)
    stored, rest = CUTS[stage]
    with presave.write(tmp_path / "s", etl.records(source, stored), format=format, shard_nbytes=1 << 20) as store:
        assert store.fields["features"].is_ragged == (stage in RAGGED)
        raw = etl.RawIterator(source, PIPELINE, 7, shuffle=True)
        saved = etl.PresavedIterator(store, rest, 7, shuffle=True)
        for expected, batch in zip(raw, saved, strict=True):
            assert batch.features.tobytes() == expected.features.tobytes()
            assert batch.labels.tolist() == expected.labels.tolist()


@pytest.mark.parametrize("stage", RAGGED)
def test_a_ragged_store_split_elsewhere_is_refused_with_both_stages(
    photographs: Path, tmp_path: Path, stage: str
) -> None:
    records = etl.records(etl.ImageFolder(photographs), CUTS[stage][0])
    with (
        presave.write(tmp_path / "s", records) as store,
        pytest.raises(ValueError, match=r"was written after stage .* this pipeline goes on after 'decode -> resize'"),
    ):
        etl.PresavedIterator(store, PIPELINE.after("resize"))


def test_float16_takes_half_the_room_of_float32_and_gives_what_casting_gives(photographs: Path, tmp_path: Path) -> None:
    source = etl.ImageFolder(photographs)
    halved = etl.Pipeline([*PIPELINE.stages, Cast("float16")])
    with (
        presave.write(tmp_path / "whole", etl.records(source, PIPELINE)) as whole,
        presave.write(tmp_path / "half", etl.records(source, halved)) as half,
    ):
        assert half.nbytes < 0.51 * whole.nbytes
        wanted = etl.RawIterator(source, PIPELINE, 8, dtype="float16")
        given = etl.PresavedIterator(half, halved.after("cast"), 8, dtype="float16")
        for expected, batch in zip(wanted, given, strict=True):
            assert np.array_equal(batch.features, expected.features)


def test_a_cast_to_an_unsupported_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'int8'; known: float16"):
        Cast("int8")
