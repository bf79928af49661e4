"""Batches of JAX and of TensorFlow are read where they are, and equal those of numpy."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from etl.measuring.arrays import (
    Access,
    access_of,
    copy_of,
    digest_of,
    layout_of,
    page_count,
    record_digests,
    touch,
    views_in,
)
from etl.measuring.structure import record_count

FEATURES = np.arange(3 * 5000, dtype=np.float32).reshape(3, 5000)
LABELS = np.array([2, 0, 1], np.int32)


@pytest.fixture(params=["jax.numpy", "tensorflow"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = pytest.importorskip(request.param)
    return module


@pytest.fixture
def convert(library: ModuleType) -> Callable[[np.ndarray], Any]:
    made: Callable[[np.ndarray], Any] = getattr(library, "asarray", None) or library.convert_to_tensor
    return made


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_arrays_equal_those_of_numpy(convert: Callable[[np.ndarray], Any], dtype: str) -> None:
    features = FEATURES.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    batch, expected = {"x": convert(features), "y": convert(LABELS)}, (features, LABELS)
    assert digest_of(batch) == digest_of(expected)
    assert record_digests(batch) == record_digests(expected)
    assert layout_of(batch) == layout_of(expected) == [(dtype, (5000,)), ("int32", ())]
    assert record_count(batch) == 3
    assert touch(batch) == touch(expected)
    assert page_count(batch) == page_count(expected)
    assert digest_of(copy_of(batch)) == digest_of(expected)


def test_arrays_on_the_cpu_are_not_copied(convert: Callable[[np.ndarray], Any]) -> None:
    array = convert(FEATURES)
    assert access_of(array) == Access(read=FEATURES.nbytes)
    assert np.shares_memory(*views_in((array, array)))


def test_arrays_without_elements_and_without_axes_are_taken(convert: Callable[[np.ndarray], Any]) -> None:
    for content in (np.zeros((0, 3), np.float32), np.array(3, np.int32)):
        assert touch([convert(content)]) == touch([content])
        assert digest_of([convert(content)]) == digest_of([content])


def test_texts_of_tensorflow_belong_to_records() -> None:
    tensorflow: Any = pytest.importorskip("tensorflow")
    names = [b"a", b"bc", b""]
    expected = record_digests((FEATURES, names))
    assert record_digests((tensorflow.constant(FEATURES), tensorflow.constant(names))) == expected


def test_a_copy_of_jax_outlives_a_step_that_takes_over_the_memory_of_its_batch() -> None:
    jax: Any = pytest.importorskip("jax")
    batch = (jax.numpy.asarray(FEATURES),)
    copied = copy_of(batch)
    batch[0].delete()
    assert digest_of(copied) == digest_of((FEATURES,))


def test_arrays_of_jax_over_several_devices_are_gathered_only_for_digests() -> None:
    jax: Any = pytest.importorskip("jax")
    if len(jax.devices()) < 3:
        pytest.skip("JAX has fewer than three devices; XLA_FLAGS=--xla_force_host_platform_device_count=3 makes them")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:3]), "x")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    batch = (jax.device_put(FEATURES, sharding),)
    assert touch(batch) == 0
    assert sum(access_of(batch).unread.values()) == FEATURES.nbytes
    assert record_digests(batch) == record_digests((FEATURES,))
