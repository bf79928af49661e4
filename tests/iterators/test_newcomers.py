"""First tries of a newcomer: no pipeline, `next`, `print`, `len` of a batch, a tree of arrays."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

import etl
import presave
from etl.loading import batch as batches_module

RECORDS = [{"features": np.full(3, number, np.float32), "label": number} for number in range(5)]


def test_photographs_need_no_pipeline_and_get_the_usual_one(photographs: Path) -> None:
    with etl.RawIterator(etl.ImageFolder(photographs), batch_size=2) as iterator:
        features, _ = next(iter(iterator))
    assert features.shape == (2, 3, 224, 224)


def test_arrays_need_no_pipeline_and_get_none() -> None:
    features, labels = next(iter(etl.RawIterator(RECORDS)))
    assert features.shape == (5, 3)
    assert labels.tolist() == list(range(5))


def test_a_pipeline_that_is_none_is_refused_with_what_makes_one() -> None:
    with pytest.raises(TypeError, match=r"pipeline is a str, not an etl\.Pipeline; etl\.Pipeline\(\[stage, \.\.\.\]\)"):
        etl.RawIterator(RECORDS, "resize")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrap", [lambda raw: raw, etl.AsyncIterator])
def test_next_of_an_iterator_says_what_to_write(wrap: Any) -> None:
    with (
        wrap(etl.RawIterator(RECORDS)) as iterator,
        pytest.raises(TypeError, match=r"write `for batch in iterator`, or `next\(iter"),
    ):
        next(iterator)


def test_iterators_say_what_they_load_and_where_they_are(tmp_path: Path) -> None:
    raw = etl.RawIterator(RECORDS, batch_size=2)
    assert repr(raw) == "RawIterator('list', 3 batches of 2, epoch 0)"
    list(raw)
    assert repr(raw.shard(1, 2)) == "RawIterator('list', 2 batches of 2, epoch 1, rank 1 of 2)"
    assert repr(next(iter(raw))) == "Batch(features float32 [2, 3], labels int64 [2])"
    with etl.AsyncIterator(raw) as ahead:
        assert repr(ahead) == "AsyncIterator(RawIterator('list', 3 batches of 2, epoch 1), epoch 1)"
    with presave.write(tmp_path / "s", RECORDS) as store:
        saved = etl.PresavedIterator(store, etl.Pipeline([]), 2)
        assert repr(saved) == f"PresavedIterator({str(tmp_path / 's')!r}, 3 batches of 2, epoch 0)"
    assert repr(etl.SyntheticIterator((3, 8, 8), 10, batches=4)).startswith(
        "SyntheticIterator(float32 [32, 3, 8, 8], 4 "
    )


def test_a_batch_has_records_and_no_length() -> None:
    batch = next(iter(etl.RawIterator(RECORDS)))
    assert batch.records == 5
    assert batch  # a batch is never false
    with pytest.raises(TypeError, match="has no len"):
        len(batch)


def test_a_batch_is_a_tree_of_arrays_for_torch() -> None:
    batch = next(iter(etl.RawIterator(RECORDS)))
    doubled = _pytree.tree_map(lambda array: array * 2, batch)
    assert isinstance(doubled, etl.Batch)
    assert np.array_equal(doubled.features, batch.features * 2)
    assert np.array_equal(doubled.labels, batch.labels * 2)
    assert doubled.features_mask is None
    moved = _pytree.tree_map(torch.from_numpy, batch)
    assert isinstance(moved.features, torch.Tensor)


def test_a_batch_is_registered_once_with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    util = SimpleNamespace(register_pytree_node=lambda *arguments: registered.append(arguments))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(tree_util=util))
    monkeypatch.setattr(batches_module, "_REGISTERED", {"torch"})
    for _ in range(2):
        batch = next(iter(etl.RawIterator(RECORDS)))
    ((kind, flatten, unflatten),) = registered
    assert kind is etl.Batch
    parts, names = flatten(batch)
    assert names == ("features", "labels")
    assert unflatten(names, parts).features is batch.features


@pytest.mark.parametrize("name", ["RecordError", "Padding", "ParallelInference", "fit_parallel", "load_kernels"])
def test_a_name_that_has_moved_still_works_and_says_where_it_is(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"etl\.{name} is etl\.\w+\.{name} now"):
        found = getattr(etl, name)
    assert found.__name__ == name


def test_every_public_name_of_the_submodules_exists() -> None:
    modules = [name for name in etl.__all__ if isinstance(getattr(etl, name), ModuleType)]
    assert {"sources", "stages", "loading", "iterators", "training"} <= set(modules)
    for module in modules:
        found = getattr(etl, module)
        for name in found.__all__:
            assert getattr(found, name) is not None, (module, name)
            assert not isinstance(getattr(found, name), ModuleType), (module, name)
