"""Items of any structure: their arrays are records, and batches are put together as torch's default collate does it."""

from __future__ import annotations

import collections
import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

import etl
import presave
from etl.sources import RecordError

NOTHING = etl.Pipeline([])
RECORDS = 5


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    """A frozen dataclass, which torch's default collate does not take."""

    image: Any
    more: Any


class Named(dict):  # type: ignore[type-arg]
    """A mapping with an attribute, which a batch must keep."""

    origin = "nowhere"


def named(value: Any) -> Named:
    made = Named(value=value)
    made.origin = "here"
    return made


# Functions from the number of a record to a value.
LEAVES = [
    lambda number: torch.full((2, 3), number, dtype=torch.float32),
    lambda number: torch.tensor(number),
    lambda number: torch.full((2,), number, dtype=torch.bfloat16),
    lambda number: np.full((3,), number, np.float64),
    lambda number: np.full((1, 2), number, np.uint8),
    lambda number: np.array(number, np.float16),
    lambda number: np.float32(number),
    lambda number: np.int16(number),
    lambda number: np.bool_(number % 2),
    lambda number: number,
    lambda number: number / 4,
    lambda number: number % 2 == 0,
    lambda number: [number, number + 1, number + 2],
    lambda number: ((0.5, float(number)), (1.5, 2.5)),
    lambda number: [True, number, 0.5],
    lambda number: [np.float32(number), np.float32(1)],
]
CONTAINERS = [
    lambda parts: tuple(parts),
    lambda parts: list(parts),
    lambda parts: {f"key {place}": part for place, part in enumerate(parts)},
    lambda parts: dict(enumerate(parts)),
    lambda parts: collections.OrderedDict((str(place), part) for place, part in enumerate(parts)),
    lambda parts: MappingProxyType({"a": parts[0]}),
    lambda parts: collections.UserDict({"a": parts[-1]}),
    lambda parts: collections.UserList(parts),
    lambda parts: Point(parts[0], parts[-1]),
    lambda parts: named(parts[0]),
    lambda parts: {"features": parts[0], "label": parts[-1]},
    lambda parts: (*parts, {}),
]


def contain(container: Any, parts: list[Any]) -> Any:
    return lambda number: container([part(number) for part in parts])


STRUCTURES = st.recursive(
    st.sampled_from(LEAVES),
    lambda parts: st.builds(contain, st.sampled_from(CONTAINERS), st.lists(parts, min_size=1, max_size=3)),
    max_leaves=8,
)


def assert_equal(found: Any, expected: Any) -> None:
    """Compare containers, their attributes, dtypes, shapes and values."""
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, Mapping):
        assert list(found) == list(expected)
        assert getattr(found, "origin", None) == getattr(expected, "origin", None)
        for key, value in expected.items():
            assert_equal(found[key], value)
    else:
        assert isinstance(expected, Sequence)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [each for part in (value.values() if isinstance(value, Mapping) else value) for each in tensors(part)]


@hypothesis.settings(max_examples=100)
@hypothesis.given(STRUCTURES)
def test_a_batch_is_what_default_collate_makes_of_the_items(structure: Any) -> None:
    items = [structure(number) for number in range(RECORDS)]
    source = etl.MapDataset(items)
    (batch,) = etl.RawIterator(source, NOTHING, RECORDS, dtype=None)
    collated = source.collated(batch)
    assert_equal(collated, default_collate(items))
    for tensor in tensors(collated):
        bits = tensor.view(torch.uint8) if tensor.dtype == torch.bfloat16 else tensor
        assert any(np.shares_memory(bits.numpy(), array) for array in batch.arrays())


def test_a_record_is_pairs_by_name_and_all_else_in_order() -> None:
    image, mask = np.zeros((2, 2), np.uint8), np.ones((2, 2), bool)
    for item, features, labels in [
        (((image, mask), 3), 2, 1),
        ((image, {"mask": mask, "boxes": [[1, 2], [3, 4]]}), 1, 2),
        ({"features": {"a": image, "b": mask}, "label": 1}, 2, 1),
        ((image, mask, 3), 3, 0),
        ({"image": image, "label": 3}, 1, 1),
        ({"image": image, "weights": mask}, 1, 1),
        ({"a": image, "b": mask}, 2, 0),
        (Sample(image, {"mask": mask}), 2, 0),
        ([0.5, 1.5, 2.5], 1, 0),
        (image, 1, 0),
    ]:
        (batch,) = etl.RawIterator(etl.MapDataset([item, item]), NOTHING, 2)
        found = [len(part) if isinstance(part, tuple) else int(part is not None) for part in batch]
        assert found == [features, labels], item


def test_every_array_of_a_pair_may_be_features() -> None:
    source = etl.MapDataset([(np.zeros(2), 1), (np.ones(2), 0)], features=None)
    (batch,) = etl.RawIterator(source, NOTHING, 2)
    assert [len(batch.features), batch.labels] == [2, None]
    assert_equal(source.collated(batch), [torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([1, 0])])


def test_a_dataclass_is_made_again() -> None:
    source = etl.MapDataset([Sample(np.ones(2), {"id": number}) for number in range(3)])
    (batch,) = etl.RawIterator(source, NOTHING, 3)
    collated = source.collated(batch)
    assert isinstance(collated, Sample)
    assert collated.image.shape == (3, 2)
    assert collated.more["id"].tolist() == [0, 1, 2]


def test_a_list_that_is_empty_in_the_first_item_is_not_left_out_of_the_others() -> None:
    items = [{"image": np.ones(2), "boxes": boxes, "id": number} for number, boxes in enumerate([[], [3, 4], []])]
    source = etl.MapDataset(items)
    (batch,) = etl.RawIterator(source, NOTHING, 3, padding=etl.loading.Padding())
    images, boxes, ids = batch.features
    assert images.tolist() == [[1, 1]] * 3
    assert boxes.tolist() == [[0, 0], [3, 4], [0, 0]]
    assert ids.tolist() == [0, 1, 2]
    lengths = [mask if mask is None else mask.sum(1).tolist() for mask in batch.features_mask]
    assert lengths == [[2] * 3, [0, 2, 0], None]
    with pytest.raises(RecordError, match=r"record \d of list: .* 'features\.1' has shape \(\d,\), the records"):
        list(etl.RawIterator(source, NOTHING, 3))


def test_lists_that_are_always_empty_are_those_of_default_collate() -> None:
    items: list[Any] = [{"x": number, "more": ([], ())} for number in range(3)]
    source = etl.MapDataset(items)
    (batch,) = etl.RawIterator(source, NOTHING, 3, dtype=None)
    assert_equal(source.collated(batch), default_collate(items))


def test_a_text_is_left_out_and_named_once() -> None:
    items = [{"x": np.ones(2), "caption": "a cat", "more": ("b", number)} for number in range(4)]
    source = etl.MapDataset(items, name="captions")
    with pytest.warns(UserWarning, match="leaves out") as caught:
        (batch,) = etl.RawIterator(source, NOTHING, 4)
    said = "MapDataset leaves out item['caption'], item['more'][0] of captions, since records cannot hold text"
    assert [str(each.message) for each in caught] == [said]
    collated = source.collated(batch)
    assert collated["caption"] is None
    assert collated["more"][0] is None
    assert collated["more"][1].tolist() == [0, 1, 2, 3]


def test_what_is_left_out_of_a_mapping_or_a_pair_is_none_in_its_place() -> None:
    source = etl.MapDataset([{"id": 1, "img": np.ones(2), "label": 1}], features="img", label=None)
    with pytest.warns(UserWarning, match="leaves out the keys 'id', 'label'"):
        (batch,) = etl.RawIterator(source, NOTHING, 1)
    collated = source.collated(batch)
    assert list(collated) == ["id", "img", "label"]
    assert (collated["id"], collated["label"]) == (None, None)
    pairs = etl.MapDataset([(np.ones(2), 1)], label=None)
    (batch,) = etl.RawIterator(pairs, NOTHING, 1)
    assert pairs.collated(batch)[1] is None


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([{"a": 1, "b": 2}, {"a": 1}], "its item is a dict with 'a'; the first one is a dict with 'a', 'b'"),
        ([(1, 2, [1, 0.5]), (1, 2, [1])], r"its item\[2\] is a list of 1; the first one is a list of 2"),
        ([{"a": {"b": 1}}, {"a": 3}], r"its item\['a'\] is a int; the first one is a dict with 'b'"),
        ([{"a": 1, "b": 1}, {"a": None, "b": 1}], r"its item\['a'\] are a NoneType, not numbers"),
        ([("only", "texts", "here")], "its item is a tuple of 3, and no array is in it"),
        ([Sample(1, 2), Sample(1, object())], "its item.more are a object, not numbers"),
        ([Sample(1, 2), Point(1, 2)], "its item is a Point of 2; the first one is a Sample"),
        ([("text", 1)], "its features are a str, not numbers"),
    ],
)
def test_an_item_of_another_structure_is_an_error_that_names_the_place(items: list[Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"record {len(items) - 1} of list: failed at stage 'read': {message}"):
        list(etl.RawIterator(etl.MapDataset(items), NOTHING, 2))


def test_a_batch_that_a_stage_took_apart_is_an_error() -> None:
    def add(record: Any) -> Any:
        return {"features": sum(record["features"])}

    source = etl.MapDataset([(1.0, 2, 3.0)])
    (batch,) = etl.RawIterator(source, etl.Pipeline([add]), 1)
    with pytest.raises(ValueError, match="the batch has 1 arrays of features, an item of the data set has 3"):
        source.collated(batch)
    lists = etl.MapDataset([[1.0, 2.0, 3.0]])
    (batch,) = etl.RawIterator(lists, etl.Pipeline([add]), 1)
    with pytest.raises(ValueError, match=r"item of a batch has shape \(1,\), without the axes of the item's lists"):
        lists.collated(batch)
    pairs = etl.MapDataset([(np.ones(2), 1)])
    (batch,) = etl.RawIterator(pairs, etl.Pipeline([add]), 1)
    with pytest.raises(ValueError, match="the batch has 0 arrays of label, an item of the data set has 1"):
        pairs.collated(batch)


class Boxes(torch.utils.data.Dataset[Any]):
    """Nested items."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return {
            "image": torch.full((3, 2), float(index)),
            "target": (index, {"box": [index, 2 * index]}),
            "weight": 0.5,
        }


def test_every_iterator_gives_what_the_data_loader_gives(tmp_path: Path) -> None:
    source = etl.MapDataset(Boxes())
    expected = list(DataLoader(Boxes(), batch_size=5))
    store = presave.write(tmp_path / "store", etl.records(source, NOTHING), jobs=2)
    with (
        store,
        etl.RawIterator(source, NOTHING, 5, dtype=None) as raw,
        etl.AsyncIterator(etl.RawIterator(source, NOTHING, 5, dtype=None), threads=2) as ahead,
        etl.AsyncIterator(etl.RawIterator(source, NOTHING, 5, dtype=None), workers="process", processes=2) as processes,
        etl.PresavedIterator(store, NOTHING, 5, dtype=None) as saved,
    ):
        fresh = pickle.loads(pickle.dumps(etl.MapDataset(Boxes())))  # which has read no item yet
        for iterator in (raw, ahead, processes, saved):
            for batch, other in zip(iterator, expected, strict=True):
                assert_equal(fresh.collated(batch), other)


class Lines(torch.utils.data.Dataset[Any]):
    """Items as they come from lines of JSON: every second one has its keys in another order."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        item = {"height": float(index), "width": float(-index), "depth": 100.0 + index}
        return item if index % 2 == 0 else dict(reversed(item.items()))


def test_the_first_item_decides_on_the_order_of_keys_whichever_is_read_first() -> None:
    assert [float(array) for array in etl.MapDataset(Lines())[1]["features"]] == [1, -1, 101]  # as after a resume
    raw = etl.RawIterator(etl.MapDataset(Lines()), NOTHING, 4)
    with etl.AsyncIterator(raw, workers="process", processes=2) as batches:  # one of them begins with item 1
        for batch in batches:
            heights, widths, depths = batch.features
            assert widths.tolist() == (-heights).tolist()
            assert depths.tolist() == (heights + 100).tolist()


def test_an_item_that_cannot_be_read_decides_on_nothing() -> None:
    items: list[Any] = [("only", "texts", "here"), {"a": 1, "b": 2}, {"b": 4, "a": 3}]
    assert [int(array) for array in etl.MapDataset(items)[2]["features"]] == [3, 4]
