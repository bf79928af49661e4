"""Iterators of all kinds, and what new processes get that restore them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import etl
import presave
from tests.torture.harness import Server
from tests.torture.restoring import Numbered

AHEAD: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "threads": {"prefetch_size": 2, "threads": 2},
    "one thread": {"prefetch_size": 3, "threads": 1},
    "processes": {"prefetch_size": 2, "workers": "process", "processes": 2},
}


def rest(restorer: Server, how: dict[str, Any], state: dict[str, Any], until: int) -> Any:
    """Describe what a new process gets, which restores `state` and goes on until an epoch."""
    return restorer.ask({"how": how, "state": state, "until": until})


def draw_how(draw: st.DataObject, stores: dict[str, str]) -> dict[str, Any]:
    buckets = draw.draw(st.sampled_from([None, None, 5, 16, 100]), "buckets")
    formats = ["raw", "ragged"] if buckets is not None else ["raw", *presave.formats()]
    world_size = draw.draw(st.integers(1, 3), "world size")
    return {
        "store": stores.get(draw.draw(st.sampled_from(formats), "store")),
        "ahead": None,
        "batch_size": draw.draw(st.integers(1, 14), "batch size"),
        "shuffle": draw.draw(st.booleans(), "shuffle"),
        "seed": draw.draw(st.integers(0, 2**64 - 1), "seed"),
        "drop_last": draw.draw(st.booleans(), "drop_last"),
        "buckets": buckets,
        "world_size": world_size,
        "rank": draw.draw(st.integers(0, world_size - 1), "rank"),
        "uneven": draw.draw(st.sampled_from(["pad", "drop", "allow"]), "uneven"),
    }


def write_stores(folder: Path) -> dict[str, str]:
    """Stores of the records in every format, and of those of different lengths, by name."""
    for kind in presave.formats():
        presave.write(folder / kind, etl.records(Numbered(), etl.Pipeline([])), format=kind, shard_nbytes=300).close()
    ragged = etl.records(Numbered(ragged=True), etl.Pipeline([]))
    presave.write(folder / "ragged", ragged, shard_nbytes=200).close()
    return {each.name: str(each) for each in folder.iterdir()}
