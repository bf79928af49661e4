"""Equal seeds give equal bytes, whatever loads them, in which schedule of threads and on how many CPUs."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torture.conftest import HowMany, Tally
from tests.torture.harness import Server
from tests.torture.restored import AHEAD, draw_how, rest
from tests.torture.restoring import digests, make_iterator

CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("workers", AHEAD)
def test_equal_seeds_give_equal_bytes(
    restorer: Server, stores: dict[str, str], workers: str, how_many: HowMany, tally: Tally
) -> None:
    many = how_many(1, 25) if workers == "processes" else how_many(4, 250)

    @settings(max_examples=many)
    @given(st.data())
    def load(data: st.DataObject) -> None:
        how = {**draw_how(data, stores), "noise": data.draw(st.booleans(), "noise")}
        with make_iterator({**how, "store": None}) as plain:
            start, expected = plain.state_dict(), json.loads(json.dumps(list(digests(plain, 2))))
        for cpus in {1, CPUS}:
            elsewhere = {
                "ahead": AHEAD[workers],
                "jitter": data.draw(st.integers(0, 1000), "jitter"),
                "switch_seconds": data.draw(st.sampled_from([1e-6, 1e-4, 0.005]), "switch interval"),
                "cpus": cpus,
            }
            if data.draw(st.booleans(), "without jitter"):
                del elsewhere["jitter"]
            assert rest(restorer, {**how, **elsewhere}, start, 2) == expected
            kind = "raw" if how["store"] is None else f"a store, {how['store'].rsplit('/', 1)[-1]}"
            tally(
                f"equal seeds, {workers}, {kind}, {cpus} CPU{'s' * (cpus > 1)}", "the bytes of the plain raw iterator"
            )

    load()
