"""Store.view: a range of records, read-only, and without a copy if the format is memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave

COUNT = 300
RECORDS = [{"x": np.full((3, 5), i, np.int16), "r": np.full((i % 4, 2), i), "label": i} for i in range(COUNT)]


@pytest.fixture(params=presave.formats())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[presave.Store]:
    """A store of several shards."""
    with presave.write(tmp_path / "s", RECORDS, format=request.param, ragged=["r"], shard_nbytes=7000) as written:
        assert len(written.manifest.shards) > 2
        yield written


def _second_shard(store: presave.Store) -> tuple[int, int]:
    first = store.manifest.shards[0].records
    return first, first + store.manifest.shards[1].records


def _arrays(view: dict[str, Any]) -> list[np.ndarray]:
    return [view["x"], view["label"], *view["r"]]


@pytest.mark.parametrize("part", ["whole shard", "inside a shard", "across shards", "everything", "nothing"])
def test_a_view_equals_a_gather_and_is_read_only(part: str, store: presave.Store) -> None:
    low, high = _second_shard(store)
    first, last = {
        "whole shard": (low, high),
        "inside a shard": (low + 1, high - 1),
        "across shards": (low - 2, high + 1),
        "everything": (0, COUNT),
        "nothing": (low, low),
    }[part]
    view, gathered = store.view(first, last), store.gather(range(first, last))
    for shown, wanted in zip(_arrays(view), _arrays(gathered), strict=True):
        np.testing.assert_array_equal(shown, wanted, strict=True)
        assert not shown.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            shown[...] = 0


@pytest.mark.parametrize("cache", [None, "ram"])
def test_two_views_inside_a_shard_share_memory(cache: Any, store: presave.Store) -> None:
    low, high = _second_shard(store)
    with presave.open_store(store.path, cache=cache, trusted=True) as opened:
        pairs = list(zip(_arrays(opened.view(low, high)), _arrays(opened.view(low, high)), strict=True))
        assert all(np.shares_memory(one, other) for one, other in pairs if one.size)


def test_views_outlive_the_store(store: presave.Store) -> None:
    view = store.view(0, 3)
    store.close()
    assert view["label"].tolist() == [0, 1, 2]
    assert view["r"][2].tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2), (0, COUNT + 1), (COUNT + 1, COUNT + 1)])
def test_a_view_of_records_that_do_not_exist_is_refused(first: int, last: int, store: presave.Store) -> None:
    with pytest.raises(IndexError, match=f"records {first} to {last} of .*, which holds {COUNT}"):
        store.view(first, last)


def test_a_view_of_a_closed_store_is_refused(store: presave.Store) -> None:
    store.close()
    with pytest.raises(presave.StoreError, match="is closed"):
        store.view(0, 1)


def test_elements_counts_the_elements_of_any_records(store: presave.Store) -> None:
    order = np.random.default_rng(0).integers(0, COUNT, 500)
    assert store.elements(order) == {"r": sum(RECORDS[number]["r"].size for number in order)}
    assert store.elements([]) == {"r": 0}
    with pytest.raises(IndexError, match=f"record {COUNT} of"):
        store.elements([0, COUNT])
