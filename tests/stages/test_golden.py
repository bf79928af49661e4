"""Stores, states and fingerprints that an earlier commit wrote are still valid; see `tests/golden.py`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl import stages
from etl.stages.stage import describe_stage
from tests import golden

FINGERPRINTS: dict[str, Any] = json.loads((golden.FOLDER / "fingerprints.json").read_text())
STATES: dict[str, Any] = json.loads((golden.FOLDER / "states.json").read_text())


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A copy of the golden files that may be written to."""
    return Path(shutil.copytree(golden.FOLDER, tmp_path / "golden"))


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_fingerprints_are_what_they_were(name: str) -> None:
    pipeline = golden.pipelines()[name]
    assert [describe_stage(stage) for stage in pipeline.stages] == FINGERPRINTS[name]["stages"]
    assert pipeline.fingerprint == FINGERPRINTS[name]["fingerprint"]


def test_every_built_in_stage_has_a_golden_fingerprint() -> None:
    described = {stage["kind"].rpartition(".")[2] for each in FINGERPRINTS.values() for stage in each["stages"]}
    built_in = {name for name in stages.__all__ if hasattr(getattr(stages, name), "fingerprint_kind")}
    assert built_in == described


def test_a_subclass_of_a_stage_has_a_fingerprint_of_its_own() -> None:
    class Resize(stages.Resize):
        """Does something else."""

    described = describe_stage(Resize(6, 8))
    assert described["kind"].endswith("Resize")
    assert described["kind"] != describe_stage(stages.Resize(6, 8))["kind"]


def test_a_store_can_be_read_with_the_rest_of_its_pipeline(files: Path) -> None:
    raw = etl.RawIterator(golden.Squares(), golden.pixels(), golden.RECORDS)
    with etl.PresavedIterator(files / "squares.store", golden.pixels().after("resize"), golden.RECORDS) as saved:
        [batch], [expected] = list(saved), list(raw)
    assert np.array_equal(batch.features, expected.features)
    assert presave.verify(files / "squares.store") == []


def test_an_interrupted_write_goes_on_from_the_shards_it_has(files: Path) -> None:
    begun = {path.name: path.stat().st_mtime_ns for path in (files / ".begun.store.partial").glob("*.npy")}
    assert begun
    with presave.write(files / "begun.store", golden.records(), shard_nbytes=golden.SHARD_NBYTES) as store:
        assert store.gather(range(golden.RECORDS))["label"].tolist() == list(range(golden.RECORDS))
    # Their bytes were taken over, and not written again.
    assert {name: (files / "begun.store" / name).stat().st_mtime_ns for name in begun} == begun


@pytest.mark.parametrize("name", STATES)
def test_a_state_goes_on_with_the_records_that_were_left(name: str) -> None:
    with golden.iterators(golden.FOLDER / "squares.store")[name] as iterator:
        iterator.load_state_dict(STATES[name]["state"])
        assert [batch.labels.tolist() for batch in iterator] == STATES[name]["rest"]
