"""Arrays are found in batches of any structure and library, and so is the number of records."""

from __future__ import annotations

import array
import mmap
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import etl
from etl.measuring.arrays import (
    Access,
    access_of,
    copy_of,
    digest_of,
    layout_of,
    memory_of,
    merge_layouts,
    page_count,
    record_digests,
    touch,
    views_in,
)
from etl.measuring.structure import leaves_in, record_count

RECORDS = 4
FEATURES = np.arange(RECORDS * 6, dtype=np.float32).reshape(RECORDS, 2, 3)
LABELS = np.arange(RECORDS)
BATCH = etl.Batch(FEATURES, LABELS)
Pair = namedtuple("Pair", "features labels")  # noqa: PYI024 - what users have


@dataclass(frozen=True)
class Sample:
    features: Any
    labels: Any


class Dlpack:
    """An array that only the DLPack protocol reveals."""

    def __init__(self, content: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.content, self.device = content, device

    shape = property(lambda self: self.content.shape)

    def __dlpack__(self, **options: Any) -> Any:
        return self.content.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class Converted:
    """An array that makes a copy whenever it is read."""

    def __init__(self, content: np.ndarray) -> None:
        self.content, self.conversions = content, 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self.conversions += 1
        return self.content.copy()


def tensor(content: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(content.copy())


SAME_CONTENT = {
    "pair": (FEATURES, LABELS),
    "list": [FEATURES, LABELS],
    "named tuple": Pair(FEATURES, LABELS),
    "dataclass": Sample(FEATURES, LABELS),
    "mapping": OrderedDict(features=FEATURES, labels=LABELS),
    "mapping that is no dict": UserDict(features=FEATURES, labels=LABELS),
    "nested": [{"a": (FEATURES,)}, [[LABELS]], None],
    "batch in a tuple": (BATCH,),
    "tensors": (tensor(FEATURES), tensor(LABELS)),
    "batch of tensors": etl.Batch(tensor(FEATURES), tensor(LABELS)),
    "tensors with gradients": (tensor(FEATURES).requires_grad_(), tensor(LABELS)),
    "channels last": (tensor(FEATURES[:, None]).to(memory_format=torch.channels_last)[:, 0], tensor(LABELS)),
    "DLPack": (Dlpack(FEATURES), Dlpack(LABELS)),
    "buffers": (memoryview(FEATURES), array.array("q", LABELS.tolist())),
    "only converted": (Converted(FEATURES), Converted(LABELS)),
}


@pytest.mark.parametrize("batch", SAME_CONTENT.values(), ids=SAME_CONTENT)
def test_content_does_not_depend_on_structure_and_library(batch: Any) -> None:
    assert digest_of(batch) == digest_of(BATCH)
    assert record_digests(batch) == record_digests(BATCH)
    assert record_count(batch) == RECORDS
    assert layout_of(batch) == layout_of(BATCH) == [("float32", (2, 3)), ("int64", ())]


@pytest.mark.parametrize("batch", SAME_CONTENT.values(), ids=SAME_CONTENT)
def test_a_copy_is_equal_and_keeps_its_content_when_the_batch_is_overwritten(batch: Any) -> None:
    before = digest_of(batch)
    copied = copy_of(batch)
    assert type(copied) is type(batch)
    assert [type(each) for each in leaves_in(copied)] == [type(each) for each in leaves_in(batch)]
    assert digest_of(copied) == before
    for ours, theirs in zip(views_in(copied), views_in(batch), strict=True):
        assert not np.shares_memory(ours, theirs)


def test_a_copy_of_a_mapped_array_is_in_memory_and_keeps_its_strides(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FEATURES)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r").transpose(0, 2, 1)
    (copied,) = copy_of((mapped,))
    assert type(copied) is np.ndarray
    assert copied.strides == mapped.strides
    assert copied.flags.writeable


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_dtypes_that_numpy_does_not_know_are_read_by_their_bits(dtype: str) -> None:
    import ml_dtypes

    features = torch.from_numpy(FEATURES).to(getattr(torch, dtype))
    expected = etl.Batch(FEATURES.astype(getattr(ml_dtypes, dtype)), None)
    assert digest_of((features,)) == digest_of(expected)
    assert record_digests([features]) == record_digests(expected)
    assert layout_of((features,)) == layout_of(expected) == [(dtype, (2, 3))]
    assert np.shares_memory(*views_in((features, features)))


def test_arrays_of_the_cpu_are_not_copied_even_if_they_are_read_only() -> None:
    read_only = FEATURES.view()
    read_only.flags.writeable = False
    for batch in (BATCH, (torch.from_numpy(FEATURES), None), Dlpack(FEATURES), memoryview(read_only), read_only):
        assert np.shares_memory(views_in(batch)[0], FEATURES)


def test_tensors_without_memory_of_their_own_layout_are_compared_by_their_content() -> None:
    values = torch.tensor([[1 + 2j, 3 - 1j]])
    for converted in (values.conj(), values.to_sparse()):
        assert digest_of([converted]) == digest_of([converted.to_dense().resolve_conj().numpy()])
        assert access_of([converted]).unread == {"Tensor": 16}


def test_arrays_that_only_a_copy_converts_are_not_read_by_touch() -> None:
    converted = Converted(FEATURES)
    assert touch((FEATURES, converted)) == touch((FEATURES,))
    assert page_count((converted,)) == converted.conversions == 0
    assert access_of((FEATURES, converted)) == Access(read=FEATURES.nbytes, unread={"Converted": FEATURES.nbytes})


def test_a_device_that_nothing_can_wait_for_is_refused() -> None:
    with pytest.raises(TypeError, match="can wait for a Dlpack on DLPack device 8:1"):
        touch((Dlpack(FEATURES, device=(8, 1)),))
    with pytest.raises(TypeError, match="torch cannot wait for the device meta"):
        touch(torch.zeros(3, device="meta"))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tensors_on_a_device_are_waited_for_and_named() -> None:
    batch = (torch.from_numpy(FEATURES).cuda(non_blocking=True), LABELS)
    assert touch(batch) == touch((LABELS,))
    assert access_of(batch) == Access(read=LABELS.nbytes, on_device={"cuda:0": FEATURES.nbytes})
    assert digest_of(batch) == digest_of(BATCH)
    assert leaves_in(copy_of(batch))[0].is_cuda


def test_objects_in_which_no_arrays_can_be_found_are_refused() -> None:
    with pytest.raises(TypeError, match=r"a batch holds a builtins\.object, in which no arrays can be found"):
        touch((FEATURES, {"meta": object()}))


IMAGES = [np.full((3, 4 + number, 5), number, np.float32) for number in range(RECORDS)]
TARGETS = [{"boxes": np.full((number + 1, 4), number, np.float32), "label": number} for number in range(RECORDS)]
PAIRS = list(zip(IMAGES, TARGETS, strict=True))
LISTS = {
    "detection": (IMAGES, TARGETS),
    "detection as tuples": (tuple(IMAGES), tuple(TARGETS)),
    "tensors": [[tensor(each) for each in IMAGES], [{**each, "boxes": tensor(each["boxes"])} for each in TARGETS]],
    "mapping of lists": {"image": IMAGES, "target": TARGETS},
    "list of pairs": PAIRS,
    "list of lists": [list(each) for each in PAIRS],
    "list of mappings": [{"image": image, "target": target} for image, target in PAIRS],
    "array of objects": (np.array([*IMAGES, None], object)[:-1], TARGETS),
}


@pytest.mark.parametrize("batch", LISTS.values(), ids=LISTS)
def test_lists_with_an_item_for_each_record_are_records(batch: Any) -> None:
    assert record_count(batch) == RECORDS
    assert record_digests(batch) == [record_digests(([image], [target]))[0] for image, target in PAIRS]
    assert layout_of(batch) == [("float32", (3, -1, 5)), ("float32", (-1, 4)), ("int64", ())]


@pytest.mark.parametrize(
    "batch",
    [
        ([*FEATURES], LABELS.tolist()),
        [(features, int(label)) for features, label in zip(FEATURES, LABELS, strict=True)],
        [{"x": features, "y": label} for features, label in zip(FEATURES, LABELS, strict=True)],
        {"x": list(map(tensor, FEATURES)), "y": [torch.tensor(label) for label in LABELS]},
        (FEATURES, LABELS.tolist()),
    ],
    ids=["lists", "list of pairs", "list of mappings", "mapping of lists", "array and list"],
)
def test_records_in_lists_equal_the_rows_of_arrays_although_the_arrays_of_records_share_a_first_axis(
    batch: Any,
) -> None:
    assert record_count(batch) == RECORDS
    assert record_digests(batch) == record_digests(BATCH)
    assert layout_of(batch) == layout_of(BATCH)


def test_several_inputs_in_a_list_are_not_taken_for_records() -> None:
    batch = ([FEATURES, FEATURES + 1], [LABELS, LABELS])
    assert record_count(batch) == RECORDS
    assert record_digests(batch) == record_digests((FEATURES, FEATURES + 1, LABELS, LABELS))


def test_names_of_records_belong_to_them_and_a_number_of_the_batch_to_none() -> None:
    names = ["a", "b", "c", "d"]
    digests = record_digests({"x": FEATURES, "name": names, "step": 7, "of": "training"})
    assert digests == record_digests({"x": FEATURES, "name": names, "step": 8, "of": "training"})
    changed = record_digests({"x": FEATURES, "name": ["a", "b", "c", "e"], "step": 7, "of": "training"})
    assert [a == b for a, b in zip(digests, changed, strict=True)] == [True, True, True, False]


def test_texts_in_an_array_are_those_of_their_records_whatever_the_longest_beside_them_is() -> None:
    texts = ["a", "b", "c", "a longer one"]
    digests = record_digests((np.array(texts), LABELS))
    assert digests == record_digests((texts, LABELS))
    assert digests[:2] == record_digests((np.array(texts[:2]), LABELS[:2]))
    assert layout_of((np.array(texts), LABELS)) == [("int64", ())]
    assert record_count(np.array(texts)) == RECORDS


def test_scalars_and_texts_count_for_the_digest_of_a_batch() -> None:
    scalars = [(), (3,), (3.0,), (True,), ("3",), (b"3",), (Path("3"),), (2**70,), ("34", "5"), ("3", "45")]
    batches = [(FEATURES, *each) for each in scalars]
    assert len({digest_of(each) for each in batches}) == len(batches)
    assert digest_of((FEATURES, None)) == digest_of((FEATURES,))


@pytest.mark.parametrize(
    ("batch", "look"),
    [
        ((FEATURES, LABELS[:2]), r"\(float32 \(4, 2, 3\), int64 \(2,\)\)"),
        ({"x": FEATURES, "y": [LABELS[:3], None]}, r"\{'x': float32 \(4, 2, 3\), 'y': \[int64 \(3,\), NoneType\]\}"),
        ([], r"\[\]"),
        ("text", "str"),
    ],
    ids=["pair", "mapping", "empty", "text"],
)
def test_a_batch_whose_records_cannot_be_counted_is_refused_with_its_look(batch: Any, look: str) -> None:
    with pytest.raises(ValueError, match=f"the number of records in a batch is unknown: {look}; "):
        record_count(batch)


def test_axes_that_differ_among_batches_are_marked() -> None:
    assert merge_layouts([("float32", (3, 8)), ("int64", ())], [("float32", (3, 9)), ("int64", ())]) == [
        ("float32", (3, -1)),
        ("int64", ()),
    ]
    assert merge_layouts([("float32", (3,))], [("uint8", (3,))]) == [("float32", (3,)), ("uint8", (3,))]


@st.composite
def strided_views(draw: st.DrawFn) -> np.ndarray:
    """Return any view of an array of some pages: sliced, reversed, transposed, repeated."""
    shape = draw(st.sampled_from([(5000,), (70, 300), (9, 40, 50), (3, 5, 4, 1100), (2, 9000), (40, 3000)]))
    whole = np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * 2), np.uint16).reshape(shape)
    parts = []
    for length in shape:
        start = draw(st.integers(0, length - 1))
        stop = draw(st.integers(start + 1, length))
        step = draw(st.integers(1, max(1, length // 2)))
        parts.append(slice(start, stop, step))
    view = whole[tuple(parts)]
    view = view[tuple(slice(None, None, draw(st.sampled_from([1, -1]))) for _ in shape)]
    view = view.transpose(draw(st.permutations(range(view.ndim))))
    return np.broadcast_to(view, (2, *view.shape)) if draw(st.booleans()) else view


@given(strided_views())
def test_touch_reads_every_page_of_a_view_and_no_page_without_an_element(view: np.ndarray) -> None:
    memory = memory_of(view)
    assert memory.dtype == np.uint8
    base = view
    while isinstance(base.base, np.ndarray):
        base = base.base
    origin = base.__array_interface__["data"][0]
    # Addresses, relative to the mapping, which begins at the start of a page.
    places = np.arange(base.nbytes).reshape(-1)
    lowest = memory.__array_interface__["data"][0] - origin
    at = np.lib.stride_tricks.as_strided(places[lowest:], memory.shape, [8 * step for step in memory.strides])
    read = {*np.unique(at[..., :: mmap.PAGESIZE] // mmap.PAGESIZE), *np.unique(at[..., -1] // mmap.PAGESIZE)}
    first = view.__array_interface__["data"][0] - origin
    offsets = sum(np.ix_(*(np.arange(n) * step for n, step in zip(view.shape, view.strides, strict=True))))
    assert read == set(np.unique((first + offsets) // mmap.PAGESIZE))
    assert touch((view,)) == 0
    assert page_count((view,)) == np.prod(memory.shape[:-1]) * -(-memory.shape[-1] // mmap.PAGESIZE)


def test_an_array_without_gaps_is_one_run_whatever_the_order_of_its_axes() -> None:
    images = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    for order in ((0, 1, 2, 3), (0, 3, 1, 2), (3, 2, 1, 0)):
        memory = memory_of(images.transpose(order)[::-1])
        assert memory.tobytes() == images.tobytes()
        assert np.shares_memory(memory, images)


def test_touch_reads_the_pages_of_a_few_rows_and_not_those_between_them(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(64 * 10 * mmap.PAGESIZE))
    rows = np.memmap(tmp_path / "zeros", np.uint8, "r", shape=(64, 10 * mmap.PAGESIZE))[::8, :100]
    assert page_count((rows,)) == 8
    assert memory_of(rows).shape == (8, 100)


def test_batches_of_any_structure_go_through_the_clock() -> None:
    from etl.measuring.clock import run_epoch

    def batches() -> Iterator[Any]:
        yield from SAME_CONTENT.values()
        yield from LISTS.values()

    def count(batch: Any) -> None:
        seen.append(batch)

    seen: list[Any] = []
    times = run_epoch(batches(), count)
    assert times.samples == RECORDS * len(seen) == RECORDS * (len(SAME_CONTENT) + len(LISTS))
