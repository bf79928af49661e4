"""Gather, cast and normalise in one pass gives the bits of the stages, compiled or in numpy, and is what loads them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import etl
import presave
from etl.kernels import find_normalise_rows, load_kernels
from etl.loading import store_loader
from etl.sources import Record
from etl.stages import ChannelsFirst, Normalise
from etl.stages import normalise as normalise_stage
from tests.every_strategy import bits
from tests.programs import run_python

PIPELINE = etl.image_pipeline((9, 7))
# 40 photographs in shards of 9, so that a shuffled batch spreads over several.
SHARD_NBYTES = 9 * 7 * 3 * 9
WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None  # what Python makes of a package that is not there
import etl, presave
from tests.loading.test_fused_normalise import digest_of_epoch
with presave.open_store(sys.argv[1]) as store:
    print(digest_of_epoch(store), "numba.core" in sys.modules)
    etl.loading.gather_normalised(store, [0], etl.stages.Normalise(), kernel="numba")
"""


class OtherNormalise(Normalise):
    """Does the same and could do anything else."""


def write(path: Path, photographs: Path, format: str = "npy") -> presave.Store:
    records = etl.records(etl.ImageFolder(photographs), PIPELINE.until("resize"))
    return presave.write(path, records, format=format, shard_nbytes=SHARD_NBYTES)


def digest_of_epoch(store: presave.Store) -> str:
    batches = etl.PresavedIterator(store, PIPELINE.after("resize"), 16, shuffle=True)
    return hashlib.sha256(b"".join(array.tobytes() for batch in batches for array in batch.arrays())).hexdigest()


@pytest.fixture(scope="module")
def store(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    with write(tmp_path_factory.mktemp("data") / "store", photographs) as written:
        yield written


@pytest.fixture(scope="module", params=presave.formats())
def store_of_any_format(
    request: pytest.FixtureRequest, photographs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[presave.Store]:
    with write(tmp_path_factory.mktemp("data") / "store", photographs, request.param) as written:
        yield written


def expected_bits(images: np.ndarray, normalise: Normalise) -> np.ndarray:
    """Normalise each image with numpy, and return integers: equal bits, not only equal numbers."""
    return ((images.transpose(0, 3, 1, 2).astype(np.float32) - normalise.offset) * normalise.scale).view(np.uint32)


channel_means = st.tuples(*[st.floats(-2, 2)] * 3)
channel_stds = st.tuples(*[st.floats(1e-3, 10)] * 3)


@settings(max_examples=30)
@given(data=st.data(), mean=channel_means, std=channel_stds)
def test_both_kernels_give_the_bits_of_the_stages_in_any_order_and_place(
    data: st.DataObject, mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    count, height, width = (data.draw(st.integers(1, most)) for most in (6, 20, 20))
    images = data.draw(hnp.arrays(np.uint8, (count, height, width, 3)))
    images.flags.writeable = False  # as a store gives them
    rows = data.draw(hnp.arrays(np.int64, st.integers(0, 8), elements=st.integers(0, count - 1)))
    slots = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    normalise, flip = Normalise(mean, std), data.draw(st.booleans())
    expected = expected_bits(images[rows, :, :: -1 if flip else 1], normalise)
    for kernel in ("numba", "numpy"):
        out = np.full((len(rows) + 1, 3, height, width), -7, np.float32)
        constants = normalise.offset.reshape(-1), normalise.scale.reshape(-1)
        find_normalise_rows(kernel)(images, rows, flip, out, slots, *constants)
        np.testing.assert_array_equal(out[slots].view(np.uint32), expected)
        assert (out[len(rows)] == -7).all()  # the place that no record was to go to


@pytest.mark.parametrize("sizes", [(224, 224), (8, 8), (5, 1001)], ids=str)
@pytest.mark.parametrize("shift", range(0, 32, 4))
def test_large_batches_have_the_same_bits_wherever_they_begin_in_memory(sizes: tuple[int, int], shift: int) -> None:
    # Large ones are written past the caches, 32 bytes at once.
    images = np.random.default_rng(0).integers(0, 256, (1 + (9 << 20) // (12 * math.prod(sizes)), *sizes, 3), np.uint8)
    load_kernels()
    from etl.kernels import normalise_numba
    from presave import mapped_rows_numba

    order = np.random.default_rng(1).permutation(len(images))
    addresses = images.ctypes.data + order * images[0].nbytes
    memory = np.full(4 * images.size + 96, 7, np.uint8)
    first = -memory.ctypes.data % 32 + shift
    out = memory[first : first + 4 * images.size].view(np.float32).reshape(-1, 3, *sizes)
    normalise = Normalise()
    normalise_numba.normalise_addresses(addresses, out, normalise.offset.reshape(-1), normalise.scale.reshape(-1))
    np.testing.assert_array_equal(out.view(np.uint32), expected_bits(images[order], normalise))
    around = memory[:first], memory[first + out.nbytes :]
    copied = memory[first + 1 : first + 1 + images.nbytes]
    mapped_rows_numba.copy_rows(addresses, images[0].nbytes, copied)
    np.testing.assert_array_equal(copied, images[order].reshape(-1))
    assert all((each == 7).all() for each in around)


@settings(max_examples=15)
@given(mean=channel_means, std=channel_stds)
def test_every_pixel_value_is_normalised_as_by_the_stages(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    normalise = Normalise(mean, std)
    images = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 16, 16, 3)
    first = np.zeros(1, np.int64)
    for kernel in ("numba", "numpy"):
        out = np.empty((1, 3, 16, 16), np.float32)
        find_normalise_rows(kernel)(
            images, first, False, out, first, normalise.offset.reshape(-1), normalise.scale.reshape(-1)
        )
        np.testing.assert_array_equal(out.view(np.uint32), expected_bits(images, normalise))


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a crop": lambda pixels: pixels[2:9, 3:7],
    "a flip": lambda pixels: pixels[:, ::-1],
    "a flipped crop": lambda pixels: pixels[1:6, 2:9][:, ::-1],
    "turned upside down": lambda pixels: pixels[::-1],
    "every second column": lambda pixels: pixels[:, ::-2],
    "other channels first": lambda pixels: pixels[:, ::-1, ::-1],
    "one column": lambda pixels: pixels[:, 3:4][:, ::-1],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("are_loaded", [False, True])
def test_the_stage_gives_the_bits_of_numpy_for_any_view(
    view: str, are_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_normalise_rows("numba")
    monkeypatch.setattr(
        normalise_stage, "find_normalise_rows", partial(find_normalise_rows, ("numpy", "numba")[are_loaded])
    )
    pixels = VIEWS[view](np.random.default_rng(0).integers(0, 256, (11, 10, 3), dtype=np.uint8))
    before = pixels.copy()
    found = Normalise()(ChannelsFirst()({"features": pixels}))["features"]
    np.testing.assert_array_equal(found.view(np.uint32), expected_bits(pixels[None], Normalise())[0])
    np.testing.assert_array_equal(pixels, before)
    assert pixels.flags.writeable


@pytest.mark.parametrize("kernel", ["auto", "numba", "numpy"])
def test_records_of_all_shards_come_in_the_order_asked_for_with_repeats(
    store_of_any_format: presave.Store, kernel: str
) -> None:
    indices = np.random.default_rng(3).integers(0, len(store_of_any_format), 70)
    normalise = Normalise()
    expected = expected_bits(store_of_any_format.gather(indices)["features"], normalise)
    found = etl.loading.gather_normalised(store_of_any_format, indices, normalise, kernel=kernel)
    np.testing.assert_array_equal(found.view(np.uint32), expected)


def test_a_buffer_that_is_given_is_written_and_returned(store: presave.Store) -> None:
    out = np.full((2, 3, 9, 7), np.nan, np.float32)
    assert etl.loading.gather_normalised(store, [30, 2], Normalise(), out) is out
    np.testing.assert_array_equal(out, etl.loading.gather_normalised(store, [30, 2], Normalise()))


@pytest.mark.parametrize(
    "out",
    [
        np.empty((3, 3, 9, 7), np.float32),
        np.empty((2, 3, 9, 7), np.float64),
        np.empty((2, 9, 7, 3), np.float32).transpose(0, 3, 1, 2),
        np.broadcast_to(np.float32(0), (2, 3, 9, 7)),
    ],
    ids=["shape", "dtype", "order", "read-only"],
)
def test_an_unsuitable_out_is_refused_with_what_is_required(store: presave.Store, out: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"must be writable, contiguous float32 of shape \(2, 3, 9, 7\)"):
        etl.loading.gather_normalised(store, [0, 1], Normalise(), out)


def test_missing_records_are_refused_before_anything_is_read(store: presave.Store) -> None:
    for wrong in ([40], [-1]):
        with pytest.raises(IndexError, match=f"record {wrong[0]} of .*, which holds 40"):
            etl.loading.gather_normalised(store, wrong, Normalise())


@pytest.mark.parametrize(
    "features", [np.zeros((4, 4, 1), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)]
)
def test_a_store_of_other_features_is_refused(tmp_path: Path, features: np.ndarray) -> None:
    other = presave.write(tmp_path / "store", [{"features": features}])
    with other, pytest.raises(ValueError, match=r"needs features of uint8 and shape \(height, width, 3\)"):
        etl.loading.gather_normalised(other, [0], Normalise())


def test_an_unknown_kernel_is_refused_with_the_known_ones(store: presave.Store) -> None:
    with pytest.raises(ValueError, match="unknown kernel 'fast'; known: auto, numba, numpy"):
        etl.loading.gather_normalised(store, [0], Normalise(), kernel="fast")


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records of each call that gathers and normalises in one pass."""
    calls: list[int] = []

    def counted(store: presave.Store, numbers: np.ndarray, *others: Any) -> np.ndarray:
        calls.append(len(numbers))
        return etl.loading.gather_normalised(store, numbers, *others)

    monkeypatch.setattr(store_loader, "gather_normalised", counted)
    return calls


def test_a_presaved_iterator_loads_every_record_in_one_pass(
    store_of_any_format: presave.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count_calls(monkeypatch)
    list(etl.PresavedIterator(store_of_any_format, PIPELINE.after("resize"), 16, shuffle=True))
    # A pickle would be read once more for it.
    assert sum(calls) == (0 if store_of_any_format.manifest.format == "pickle" else len(store_of_any_format))


@pytest.mark.parametrize("case", ["float16", "float64", "another stage", "a subclass"])
def test_a_presaved_iterator_leaves_other_remainders_to_the_stages(
    store: presave.Store, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def same(record: Record) -> Record:
        return record

    rest = {"another stage": [ChannelsFirst(), Normalise(), same], "a subclass": [ChannelsFirst(), OtherNormalise()]}
    pipeline = etl.Pipeline([*PIPELINE.until("resize").stages, *rest.get(case, [ChannelsFirst(), Normalise()])])
    dtype = case if case.startswith("float") else "float32"
    calls = count_calls(monkeypatch)
    (batch,) = etl.PresavedIterator(store, pipeline.after("resize"), 40, dtype=dtype)
    expected = expected_bits(store.gather(range(40))["features"], Normalise()).view(np.float32)
    assert calls == []
    np.testing.assert_array_equal(batch.features, expected.astype(dtype))


def test_labels_and_masks_beside_normalised_features_are_those_of_raw_loading(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    records = [
        {
            "features": random.integers(0, 256, (5, 4, 3), np.uint8),
            "label": random.random(2),
            "features_mask": np.array([1, number % 2], ">i2"),
        }
        for number in range(12)
    ]
    pipeline = etl.Pipeline([ChannelsFirst(), Normalise()])
    options = {"batch_size": 5, "shuffle": True, "seed": 4}
    with presave.write(tmp_path / "store", records) as store:
        presaved = bits(etl.PresavedIterator(store, pipeline, **options))
    assert presaved == bits(etl.RawIterator(records, pipeline, **options))


def test_without_numba_epochs_are_the_same_bytes_and_asking_for_it_says_how_to_install_it(store: presave.Store) -> None:
    find_normalise_rows("numba")  # otherwise the first batches are numpy's
    ended = run_python("-c", WITHOUT_NUMBA, store.path)
    assert ended.stdout.split() == [digest_of_epoch(store), "False"]
    assert ended.stderr.splitlines()[-1] == "ImportError: kernel 'numba' needs numba: pip install 'fair-etl[fast]'"
