"""A store of many shards does not reach the limit of open files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from tests.few_descriptors import few_descriptors


@pytest.mark.parametrize(("workers", "options"), [("thread", {"compression": "gzip"}), ("process", {})])
def test_a_store_of_many_shards_leaves_descriptors_for_the_workers(
    workers: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    records = [{"features": np.full(4, index), "label": index} for index in range(200)]
    with (
        presave.write(tmp_path / "s", records, format="hdf5", shard_nbytes=1, options=options) as store,
        few_descriptors(120),
        etl.AsyncIterator(etl.PresavedIterator(store, etl.Pipeline([]), 50, shuffle=True), workers=workers) as batches,
    ):
        for _ in range(2):
            assert sorted(label for batch in batches for label in batch.labels.tolist()) == list(range(200))
