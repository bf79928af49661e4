"""A map-style PyTorch data set as a source: pairs and mappings of arrays, tensors and images become records.

Items of any other structure are in test_structure.py.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
import torch
from PIL import Image

import etl
import presave
from etl.loading.batch import as_batch
from etl.sources import RecordError

NOTHING = etl.Pipeline([])
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 3), dtype=np.uint8)


class Pairs(torch.utils.data.Dataset[Any]):
    """Twelve pairs of a tensor and a number."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index


class Photographs(torch.utils.data.Dataset[Any]):
    """Like torchvision's ImageFolder: opened images, the user's transform, and the files in `samples`."""

    def __init__(self, folder: Path, transform: Callable[[Image.Image], Any] | None = None) -> None:
        source = etl.ImageFolder(folder)
        self.classes = source.classes
        self.samples = [
            (str(folder / file), int(label)) for file, label in zip(source.files, source.labels, strict=True)
        ]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        image = Image.open(path)
        return (image if self.transform is None else self.transform(image)), label


class Sample(NamedTuple):
    """An item with names for its parts."""

    x: np.ndarray
    y: int


def one(item: Any, **options: Any) -> Any:
    """The record of a data set that holds `item` alone."""
    return etl.MapDataset([item], **options)[0]


def test_opened_images_go_through_the_pipeline_as_their_files_do(photographs: Path, tmp_path: Path) -> None:
    source = etl.MapDataset(Photographs(photographs), ragged=["features"])
    pipeline = etl.image_pipeline(8)
    (expected,) = etl.RawIterator(etl.ImageFolder(photographs), pipeline, 40)
    (found,) = etl.RawIterator(source, pipeline.after("decode"), 40)
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.labels, expected.labels)
    with presave.write(tmp_path / "store", etl.records(source, NOTHING)) as store:
        assert store.fields["features"].is_ragged
        np.testing.assert_array_equal(store[3]["features"], source[3]["features"])
    assert etl.records(source, NOTHING).provenance["classes"] == etl.ImageFolder(photographs).classes


@pytest.mark.parametrize(
    "item",
    [
        (PIXELS, 3),
        [PIXELS, 3],
        (torch.from_numpy(PIXELS), torch.tensor(3)),
        (Image.fromarray(PIXELS), np.int64(3)),
        (PIXELS.tolist(), 3),
        {"features": PIXELS, "label": 3},
        collections.UserDict({"features": PIXELS, "label": 3}),
        Sample(PIXELS, 3),
    ],
    ids=["tuple", "list", "tensors", "image", "numbers", "dict", "mapping", "namedtuple"],
)
def test_pairs_and_mappings_of_all_kinds_are_records(item: Any) -> None:
    record = one(item)
    assert set(record) == {"features", "label"}
    np.testing.assert_array_equal(record["features"], PIXELS)
    assert record["label"].tolist() == 3
    assert record["label"].shape == ()


@pytest.mark.parametrize(
    ("item", "options", "said"),
    [
        ({"features": PIXELS, "label": 3, "path": "a", "id": 1}, {}, "leaves out the keys 'path', 'id' of Repeated"),
        (
            {"img": PIXELS, "fine_label": 3, "coarse_label": 1},
            {"features": "img"},
            "leaves out the keys 'fine_label', 'coarse_label' of Repeated; there is no 'label': pass label=KEY, or "
            "label=None",
        ),
        ({"img": PIXELS, "text": "x"}, {"features": "img", "label": None}, "leaves out the keys 'text' of Repeated"),
    ],
)
def test_keys_that_records_do_not_have_are_said_once(item: Any, options: dict[str, Any], said: str) -> None:
    class Repeated(Pairs):
        def __getitem__(self, index: int) -> Any:
            return item

    source = etl.MapDataset(Repeated(), **options)
    with pytest.warns(UserWarning, match="leaves out") as caught:
        records = [source[number] for number in range(3)]
    assert [str(each.message) for each in caught] == [f"MapDataset {said}"]
    assert {*records[0]} == ({"features", "label"} if "label" in item else {"features"})


def test_keys_may_have_other_names_and_the_label_may_be_missing() -> None:
    image = Image.fromarray(PIXELS)
    record = one({"image": image, "labels": 2}, features="image", label="labels")
    np.testing.assert_array_equal(record["features"], PIXELS)
    assert record["label"].tolist() == 2
    assert set(one({"image": image}, features="image")) == {"features"}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32])
def test_tensors_are_taken_without_a_copy(dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    array = one((tensor, 0))["features"]
    assert array.__array_interface__["data"][0] == tensor.data_ptr()
    assert array.astype(float).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (array.dtype == ml_dtypes.bfloat16) == (dtype == torch.bfloat16)


def test_a_tensor_with_a_gradient_is_taken_as_its_values() -> None:
    assert one((torch.ones(2, requires_grad=True), 0))["features"].tolist() == [1, 1]


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK", "I;16"])
def test_images_of_every_mode_are_rgb_pixels(mode: str) -> None:
    image = Image.new(mode, (4, 5))
    features = one((image, 0))["features"]
    assert (features.dtype, features.shape) == (np.uint8, (5, 4, 3))


def test_an_image_that_is_the_label_keeps_its_mode() -> None:
    segments = np.arange(20, dtype=np.uint8).reshape(5, 4)
    record = one((Image.fromarray(PIXELS), Image.fromarray(segments)))
    np.testing.assert_array_equal(record["label"], segments)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (PIXELS, "its item is a ndarray; the first one is a tuple of 2"),
        ((PIXELS, 1, 2), "its item is a tuple of 3; the first one is a tuple of 2"),
        ({"image": PIXELS, "y": 1}, "its item is a dict with 'image', 'y'; the first one is a tuple of 2"),
        (("cat.jpg", 1), "its features are a str, not numbers"),
        ((PIXELS, "cat"), "its label are a str, not numbers"),
        ((None, 1), "its features are a NoneType, not numbers"),
    ],
)
def test_an_item_of_another_form_is_an_error_that_describes_it(item: Any, message: str) -> None:
    iterator = etl.RawIterator(etl.MapDataset([(PIXELS, 0), item]), NOTHING, 2)
    with pytest.raises(RecordError, match=f"record 1 of list: failed at stage 'read': {message}"):
        list(iterator)


def test_a_mapping_without_the_key_that_was_given_is_an_error_that_names_it() -> None:
    source = etl.MapDataset([{"img": PIXELS, "label": 3}], features="image")
    with pytest.raises(ValueError, match="its item is a dict with 'img', 'label', without 'image'; pass the key"):
        source[0]


def test_a_label_that_the_first_item_lacks_is_an_error() -> None:
    source = etl.MapDataset([{"features": PIXELS}, {"features": PIXELS, "label": 3}])
    assert set(source[0]) == {"features"}
    with pytest.raises(ValueError, match="'features', 'label'; the first item has no 'label'"):
        source[1]


@pytest.mark.parametrize("error", [OSError("gone"), IndexError("list index out of range"), KeyError("x")])
def test_what_the_data_set_raises_names_the_record_and_its_file(photographs: Path, error: Exception) -> None:
    def fail(image: Image.Image) -> Any:
        image.load()  # which closes its file
        if image.filename == data.samples[2][0]:  # type: ignore[attr-defined]
            raise error
        return np.zeros(1)

    data = Photographs(photographs, fail)
    message = rf"record 2 of Photographs \({data.samples[2][0]}\): failed at stage 'read': .*{error.args[0]}"
    with pytest.raises(RecordError, match=message):
        list(etl.RawIterator(etl.MapDataset(data), NOTHING, 4))


def test_an_error_of_an_item_that_a_subset_chooses_names_its_file(photographs: Path) -> None:
    def fail(record: etl.sources.Record) -> etl.sources.Record:
        raise ValueError("bad")

    data, source = Photographs(photographs), etl.ImageFolder(photographs)
    chosen: list[tuple[Any, str]] = [
        (etl.MapDataset(torch.utils.data.Subset(data, [5])), data.samples[5][0]),
        (torch.utils.data.Subset(source, [5]), source.files[5]),
        (torch.utils.data.Subset(torch.utils.data.Subset(source, [7, 5]), [1]), source.files[5]),
    ]
    for records, file in chosen:
        with pytest.raises(RecordError, match=rf"record 0 of Subset \({file}\): failed at stage 'fail': bad"):
            list(etl.RawIterator(records, etl.Pipeline([fail]), 1))


def test_a_record_that_is_not_there_is_an_index_error() -> None:
    source = etl.MapDataset(Pairs())
    for wrong in (12, -1):
        with pytest.raises(IndexError, match=f"record {wrong} of Pairs, which holds 12"):
            source[wrong]


def test_what_has_no_numbered_items_is_refused() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([1, 2, 3])

    class NoLength(torch.utils.data.Dataset[Any]):
        pass

    for wrong in (Stream(), NoLength(), iter([1]), 3):
        other: Any = wrong
        with pytest.raises(ValueError, match=f"a {type(wrong).__name__} is not a map-style data set: .*__getitem__"):
            etl.MapDataset(other)


@pytest.mark.parametrize("make", [etl.RawIterator, lambda source: etl.records(source, NOTHING), etl.MapDataset])
def test_what_is_not_read_by_number_is_refused_with_what_to_do(make: Callable[[Any], Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "columns.npz", x=np.zeros((3, 2)), y=np.zeros(3))
    with np.load(tmp_path / "columns.npz") as columns:
        for wrong, said in [
            ({"train": Pairs(), "test": Pairs()}, "a dict of 'train', 'test' is not a .*: .* pass one of its values"),
            (columns, r"a NpzFile of 'x', 'y' is not a .* an object whose \[i\] returns their values"),
            (iter([PIXELS]), "a list_iterator is not a .*: .* put the items of a stream into a list"),
        ]:
            with pytest.raises(ValueError, match=said):
                make(wrong)


def test_a_mapping_of_numbers_is_a_sequence_of_records() -> None:
    records: Any = {number: {"features": np.full(2, number), "label": number} for number in range(3)}
    (batch,) = etl.RawIterator(records, NOTHING, 3)
    assert batch.labels.tolist() == [0, 1, 2]


def test_a_string_is_not_taken_for_the_names_of_ragged_fields() -> None:
    with pytest.raises(ValueError, match=r"ragged is a collection of names, such as \['features'\]"):
        etl.MapDataset(Pairs(), ragged="features")


def test_it_is_pickled_with_its_data_set() -> None:
    copy = pickle.loads(pickle.dumps(etl.MapDataset(Pairs())))
    assert copy[5]["label"] == 5
    assert repr(copy) == "MapDataset('Pairs', 12 records)"


def test_torchs_own_data_sets_and_subsets_are_sources() -> None:
    tensors = torch.utils.data.TensorDataset(torch.arange(6).reshape(3, 2), torch.arange(3))
    both = torch.utils.data.ConcatDataset([torch.utils.data.Subset(tensors, [2, 0]), tensors])
    (batch,) = etl.RawIterator(etl.MapDataset(both), NOTHING, 5)
    assert batch.labels.tolist() == [2, 0, 0, 1, 2]
    assert batch.features.tolist() == [[4, 5], [0, 1], [0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("label", ["label", "labels", "target", "Y", "mask"])
@pytest.mark.parametrize("features", ["image", "img", "pixel_values", "X", "features"])
def test_the_usual_keys_are_read_as_fit_reads_them(features: str, label: str) -> None:
    item = {label: np.int64(3), features: PIXELS}
    record = one(item)
    (batch,) = etl.RawIterator(etl.MapDataset([item]), NOTHING, 1, dtype=None)
    read_by_fit = as_batch({key: np.asarray(value)[None] for key, value in item.items()})
    np.testing.assert_array_equal(record["features"], PIXELS)
    assert record["label"] == 3
    for mine, other in zip(batch, read_by_fit, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_nothing_of_a_mapping_with_further_entries_is_left_out() -> None:
    assert len(one({"id": 7, "image": PIXELS, "target": 3})["features"]) == 3


def test_a_caller_who_wants_no_label_gets_none() -> None:
    with pytest.warns(UserWarning, match="leaves out the keys 'target'"):
        assert set(one({"image": PIXELS, "target": 3}, label=None)) == {"features"}
    assert len(one({"image": PIXELS, "target": 3}, features=None)["features"]) == 2


def test_a_caption_is_no_label() -> None:
    with pytest.warns(UserWarning, match=r"leaves out item\['caption'\]"):
        assert set(one({"image": PIXELS, "caption": "a cat"})) == {"features"}


@pytest.mark.parametrize("path", ["photos", b"photos", Path("photos")], ids=["text", "bytes", "path"])
def test_a_path_is_no_source(path: Any, tmp_path: Path) -> None:
    for make in (
        lambda: etl.RawIterator(path, NOTHING),
        lambda: etl.records(path, NOTHING),
        lambda: etl.MapDataset(path),
    ):
        with pytest.raises(ValueError, match=r"a path or a name, not a sequence of records; pass etl.open_source\("):
            make()
    with pytest.raises(presave.StoreError, match="is a path, not a sequence of records"):
        presave.write(tmp_path / "store", path)
    for take in (etl.AsyncIterator, lambda batches: etl.fit(torch.nn.Linear(1, 1), batches)):
        with pytest.raises(TypeError, match="batches come from an iterable"):
            take(path)
