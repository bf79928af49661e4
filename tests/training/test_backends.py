"""Backends: selection, and that the CPU backend does not copy batches."""

from __future__ import annotations

import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import etl
from etl.stages.dtypes import DTYPES
from tests.programs import output_of

CPU, GPU = "BACKEND_PRIORITY_CPU", "BACKEND_PRIORITY_GPU"


@pytest.fixture(autouse=True)
def no_priorities(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (CPU, GPU):
        monkeypatch.delenv(variable, raising=False)


class StandIn:
    """Replaces `CudaBackend`, which needs a device; these tests are about selection only."""

    name = "cuda"

    def __init__(self, index: int | None = None) -> None:
        self.index = index


@pytest.mark.parametrize(
    ("has_cuda", "cpu", "gpu", "chosen"),
    [
        (False, None, None, "cpu"),
        (True, None, None, "cuda"),
        (False, "3", "3", "cpu"),
        (True, "3", "3", "cuda"),
        (True, "1", None, "cpu"),
        (True, "10", "9", "cpu"),
        (True, "9", "10", "cuda"),
        (True, None, "-1", "cpu"),
        (True, "-1", None, "cuda"),
        (False, "100", "0", "cpu"),
        (False, None, "-1", "cpu"),
        (True, " 1 ", "+2", "cuda"),
    ],
)
def test_auto_takes_the_backend_of_the_higher_priority_or_the_device_that_is_there(
    monkeypatch: pytest.MonkeyPatch, has_cuda: bool, cpu: str | None, gpu: str | None, chosen: str
) -> None:
    for variable, value in ((CPU, cpu), (GPU, gpu)):
        if value is not None:
            monkeypatch.setenv(variable, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr("etl.training.backends.cuda.CudaBackend", StandIn)
    assert etl.backend().name == chosen


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_a_backend_asked_for_by_name_is_taken_whatever_the_priorities(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(CPU, "5" if name == "cuda" else "0")
    monkeypatch.setenv(GPU, "5" if name == "cpu" else "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("etl.training.backends.cuda.CudaBackend", StandIn)
    assert etl.backend(name).name == name


def test_a_device_is_chosen_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("etl.training.backends.cuda.CudaBackend", StandIn)
    chosen: Any = etl.backend("cuda:1")
    assert (chosen.name, chosen.index) == ("cuda", 1)
    with pytest.raises(RuntimeError, match="backend 'cuda:2' was asked for, but there are 2 CUDA devices"):
        etl.backend("cuda:2")


@pytest.mark.parametrize("name", ["gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:one", "auto:1"])
def test_an_unknown_backend_is_refused_and_the_known_ones_listed(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown backend '{name}'; known: auto, cpu, cuda"):
        etl.backend(name)


@pytest.mark.parametrize("value", ["high", "", "1.5", "0x10"])
@pytest.mark.parametrize("variable", [CPU, GPU])
def test_a_priority_that_is_no_integer_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable} must be an integer, not {value!r}"):
        etl.backend()


def test_priorities_that_prefer_a_device_that_is_not_there_are_an_error_that_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(GPU, "7")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=f"preferred by {CPU}=unset and {GPU}=7, but .* no CUDA device"):
        etl.backend()


def test_asking_for_cuda_without_a_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"backend 'cuda' was asked for, but .* no CUDA device"):
        etl.backend("cuda")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_cpu_takes_features_of_every_dtype_with_their_values_and_without_a_copy(dtype: str) -> None:
    features = np.linspace(-3, 3, 24).reshape(2, 3, 4).astype(DTYPES[dtype])
    labels = np.array([1, 0])
    tensors = etl.backend("cpu").put(etl.Batch(features, labels))
    assert tensors.features.dtype == getattr(torch, dtype)
    assert tensors.features.tolist() == features.astype(np.float64).tolist()
    assert tensors.labels.tolist() == [1, 0]
    # The memory is shared: a write to one shows in the other.
    features[1, 2, 3], labels[0] = 0.5, 7
    assert tensors.features[1, 2, 3].item() == 0.5
    assert tensors.labels[0].item() == 7


def test_the_cpu_takes_tuples_and_masks_in_their_places() -> None:
    arrays = [np.full((2, 3), number, np.float32) for number in range(5)]
    batch = etl.Batch((arrays[0], arrays[1]), (arrays[2],), features_mask=arrays[3], labels_mask=arrays[4])
    put = etl.backend("cpu").put(batch)
    assert isinstance(put.features, tuple)
    assert isinstance(put.labels, tuple)
    assert [tensor.data_ptr() for tensor in put.arrays()] == [array.ctypes.data for array in arrays]
    assert put.features_mask.data_ptr() == arrays[3].ctypes.data
    assert (put.records, put.nbytes) == (batch.records, batch.nbytes)


@pytest.mark.parametrize("form", ["pair", "list of tensors", "mapping"])
def test_the_cpu_takes_batches_as_loaders_yield_them_without_a_copy(form: str) -> None:
    features, labels = np.ones((2, 3), np.float32), np.array([1, 0])
    batch = {
        "pair": (features, labels),
        "list of tensors": [torch.from_numpy(features), torch.from_numpy(labels)],
        "mapping": {"label": labels, "image": features},
    }[form]
    put = etl.backend("cpu").put(batch)
    assert isinstance(put, etl.Batch)
    assert [tensor.data_ptr() for tensor in put.arrays()] == [features.ctypes.data, labels.ctypes.data]


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">u8", "<f8", "bool", "float16", "bfloat16", "uint16", "uint32"])
@pytest.mark.parametrize("form", ["reversed", "read-only", "strided", "transposed"])
def test_the_cpu_takes_arrays_of_any_layout_and_byte_order_with_their_values(form: str, dtype: str) -> None:
    whole = np.arange(24).reshape(4, 6).astype({"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype))
    array = {"reversed": whole[::-1, ::-2], "strided": whole[::2, 1::3], "transposed": whole.T}.get(form, whole)
    array.flags.writeable = form != "read-only"
    tensor = etl.backend("cpu").put((array, array[:, 0])).features
    assert tensor.tolist() == array.tolist()
    tensor.zero_()  # the model may write into it
    assert form != "read-only" or whole.any()


@pytest.mark.parametrize("values", [["a", "b"], [None, None], [object(), 1], np.array(["2020"], "datetime64[D]")])
def test_values_that_torch_has_no_dtype_for_are_named_with_their_field_and_dtype(values: Any) -> None:
    array = np.array(values)
    message = f"the labels of a batch have dtype {array.dtype}, which torch lacks: convert them to numbers"
    with pytest.raises(ValueError, match=re.escape(message)):
        etl.backend("cpu").put((np.zeros((len(array), 1)), array))


@pytest.mark.parametrize("dtype", DTYPES)
def test_placing_a_model_gives_its_floating_parameters_the_dtype_in_place(dtype: str) -> None:
    model = torch.nn.BatchNorm1d(3)
    assert etl.backend("cpu").place(model, dtype) is model
    assert model.weight.dtype == getattr(torch, dtype)
    assert model.num_batches_tracked is not None
    assert model.num_batches_tracked.dtype == torch.int64


def test_placing_a_model_refuses_a_dtype_that_features_cannot_have() -> None:
    with pytest.raises(ValueError, match="unknown dtype 'int8'"):
        etl.backend("cpu").place(torch.nn.Linear(2, 2), "int8")


@pytest.mark.parametrize("call", [lambda: etl.backend("cpu"), etl.backend, lambda: etl.fit(None, None)])  # type: ignore[arg-type]
def test_without_torch_the_error_says_how_to_install_it(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(RuntimeError, match=r"^training needs torch: pip install 'fair-etl\[torch\]'$"):
        call()


def test_without_torch_batches_are_loaded_all_the_same() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import etl\n"
        "records = [{'features': [1.0, 2.0], 'label': 0}] * 5\n"
        "print(sum(b.records for b in etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 2))))"
    )
    assert output_of("-c", code) == "5\n"
