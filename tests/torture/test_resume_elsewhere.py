"""Stopped after any batch and restored in a new process, from JSON: the rest is the same to the bit."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.torture.conftest import HowMany, Tally
from tests.torture.harness import Server
from tests.torture.restored import AHEAD, draw_how, rest
from tests.torture.restoring import RECORDS, digests, make_iterator

PROCESSES = 20  # of so many tries one is with worker processes, which have to start


def as_json(batches: Any) -> Any:
    return json.loads(json.dumps(list(batches)))


def draw_place(data: st.DataObject, most: int) -> int:
    """How many batches come before the state; seldom none, of which a few tries would else be full."""
    least = data.draw(st.sampled_from([1, 1, 1, 1, 0]), "least batches before the state")
    return data.draw(st.integers(min(least, most), most), "batches before the state")


def test_the_rest_is_the_same_in_a_new_process(
    restorer: Server, stores: dict[str, str], how_many: HowMany, tally: Tally
) -> None:
    @settings(max_examples=how_many(25, 1000))
    @given(st.data())
    def resume(data: st.DataObject) -> None:
        how = draw_how(data, stores)
        kinds = ["plain", "threads", "one thread"]
        saved_by, loaded_by = (data.draw(st.sampled_from(kinds), name) for name in ("saved by", "loaded by"))
        if data.draw(st.integers(1, PROCESSES), "one in so many") == PROCESSES // 2:
            saved_by, loaded_by = data.draw(st.permutations(["processes", saved_by]), "with processes")
        epochs = data.draw(st.integers(1, 3), "epochs")
        with make_iterator({**how, "ahead": AHEAD[saved_by]}) as iterator:
            taken = draw_place(data, epochs * len(iterator))
            running = digests(iterator, epochs + 1)
            list(islice(running, taken))
            state = json.loads(json.dumps(iterator.state_dict()))
            left = as_json(running)
        assert rest(restorer, {**how, "ahead": AHEAD[loaded_by]}, state, epochs + 1) == left
        tally(f"resumed in a new process, saved by {saved_by}, restored by {loaded_by}", "the same to the bit")

    resume()


def test_saved_with_some_ranks_and_restored_with_others_every_record_comes_once(
    restorer: Server, stores: dict[str, str], how_many: HowMany, tally: Tally
) -> None:
    @settings(max_examples=how_many(10, 300))
    @given(st.data())
    def resume(data: st.DataObject) -> None:
        how = {**draw_how(data, stores), "drop_last": False}
        how["uneven"] = data.draw(st.sampled_from(["pad", "allow"]), "shared")
        before, after = data.draw(st.sampled_from([(2, 4), (2, 4), (4, 2), (3, 1), (1, 3), (2, 3)]), "ranks")
        batch_size, batch_size_after = how["batch_size"], data.draw(st.integers(1, 14), "batch size after")
        if how["buckets"] is not None:  # a step must stay as large
            batch_size, batch_size_after = batch_size * after, batch_size * before
        ranks = [
            make_iterator({**how, "batch_size": batch_size, "world_size": before, "rank": rank})
            for rank in range(before)
        ]
        steps = draw_place(data, min(map(len, ranks)))
        seen = [number for rank in ranks for _, numbers, _ in islice(digests(rank, 1), steps) for number in numbers]
        states = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        assert all(state == states[0] for state in states)
        if states[0]["epoch"] == 0:
            for rank in range(after):
                new = {**how, "batch_size": batch_size_after, "world_size": after, "rank": rank}
                seen += [
                    number for _, numbers, _ in rest(restorer, new, states[rank % before], 1) for number in numbers
                ]
        assert sorted(seen) == list(range(RECORDS))
        tally(f"resumed with another number of ranks, {before} to {after}", "every record once")

    resume()
