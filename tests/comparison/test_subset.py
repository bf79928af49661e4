"""A subset of a source is a source: its records, and what is known of them, are those of the whole."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import etl
from etl.comparison.workload import Subset
from etl.loading.lengths import source_lengths
from etl.sources.record import record_error
from tests.sequences import NOTHING, Sequences, sequences


class Named:
    """Ten records that have a name and describe themselves."""

    name = "letters"
    classes = ("even", "odd")

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> etl.Record:
        return {"features": np.full(3, index, np.float32), "label": index % 2}

    def describe(self, index: int) -> str:
        return f"letter {'abcdefghij'[index]}"


def test_records_are_chosen_at_random_once_each_and_stay_in_order() -> None:
    subset = Subset(Named(), 9, seed=0)
    numbers = [int(subset[index]["features"][0]) for index in range(len(subset))]
    assert len(numbers) == len(set(numbers)) == 9
    assert numbers == sorted(numbers)
    assert numbers == subset.indices.tolist()


def test_the_seed_alone_decides_which_records() -> None:
    chosen = [Subset(Named(), 5, seed).indices.tolist() for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("count", [10, 11, 1000])
def test_of_a_source_with_no_more_all_records_are_taken(count: int) -> None:
    assert Subset(Named(), count, seed=3).indices.tolist() == list(range(10))


def test_name_and_classes_are_those_of_the_source() -> None:
    subset = Subset(Named(), 5, seed=0)
    assert (subset.name, subset.classes) == ("letters", ("even", "odd"))


def test_messages_name_a_record_by_its_number_in_the_source() -> None:
    subset = Subset(Named(), 5, seed=0)
    number = int(subset.indices[3])
    assert subset.describe(3) == f"record {number}, letter {'abcdefghij'[number]}"
    assert f"record {number}, letter" in str(record_error(subset, 3, "read", ValueError("bad")))
    assert Subset([{"features": np.zeros(2)}] * 4, 2, seed=0).describe(0).startswith("record ")


def test_ragged_fields_and_lengths_are_those_of_the_chosen_records() -> None:
    whole = Sequences(sequences(30))
    subset = Subset(whole, 12, seed=1)
    assert subset.ragged == whole.ragged
    assert subset.lengths.tolist() == [len(subset[index]["features"]) for index in range(12)]
    found = source_lengths(subset, NOTHING)
    assert found is not None
    assert found.of("features").tolist() == subset.lengths.tolist()  # type: ignore[union-attr]


def test_lengths_of_each_field_are_chosen_for_each() -> None:
    class Two(Sequences):
        @property
        def lengths(self) -> dict[str, list[int]]:  # type: ignore[override]
            return {"features": [len(each["features"]) for each in self], "label": [1] * len(self)}

    subset = Subset(Two(sequences(20)), 5, seed=0)
    assert subset.lengths["features"].tolist() == [len(subset[index]["features"]) for index in range(5)]
    assert subset.lengths["label"].tolist() == [1] * 5


def test_a_source_without_lengths_classes_or_ragged_fields_does_not_seem_to_have_them() -> None:
    subset = Subset(sequences(8), 4, seed=0)
    for name in ("lengths", "classes", "ragged", "options"):
        assert not hasattr(subset, name)
    assert source_lengths(subset, NOTHING) is None


def test_batches_of_a_subset_are_padded_as_those_of_the_whole() -> None:
    whole = Sequences(sequences(30))
    with etl.RawIterator(Subset(whole, 7, seed=0), NOTHING, 7, padding=etl.Padding()) as iterator:
        (batch,) = list(iterator)
    assert batch.features_mask.sum(axis=1).tolist() == Subset(whole, 7, seed=0).lengths.tolist()


def test_a_subset_goes_to_worker_processes_as_it_is() -> None:
    subset = Subset(Named(), 4, seed=2)
    copy = pickle.loads(pickle.dumps(subset))
    assert copy.indices.tolist() == subset.indices.tolist()
    assert [copy[index]["label"] for index in range(4)] == [subset[index]["label"] for index in range(4)]
