"""The losses of a training step: which labels they take, and what they say about others."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import etl
from etl.training.step import NumberedClasses, cross_entropy, default_loss, squared_error
from tests.worker_processes import NOTHING

NUMBERS = [0, 2, 1, 1, 0, 2]
OUTPUT = torch.arange(18.0).reshape(6, 3).sin()
EXPECTED = torch.nn.functional.cross_entropy(OUTPUT, torch.tensor(NUMBERS))
INTEGERS = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
DOES = "convert them, or give a loss of your own (loss=) or a training step (--step)"


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_class_numbers_have_any_integer_dtype_and_may_have_an_axis_of_length_one(
    dtype: str, shape: tuple[int, ...]
) -> None:
    labels = torch.tensor(NUMBERS).reshape(shape).to(getattr(torch, dtype))
    assert default_loss(labels)(OUTPUT, labels) == EXPECTED
    steps = OUTPUT.reshape(2, 3, 3), labels.reshape(2, 3, *shape[1:])
    assert cross_entropy(*steps, mask=torch.ones(2, 3)) == EXPECTED


def test_truth_values_are_the_classes_0_and_1_and_probabilities_are_taken_as_torch_takes_them() -> None:
    truths = torch.tensor(NUMBERS) > 1
    assert default_loss(truths)(OUTPUT, truths) == cross_entropy(OUTPUT, truths.long())
    assert cross_entropy(OUTPUT, torch.nn.functional.one_hot(torch.tensor(NUMBERS)).float()).isclose(EXPECTED)
    ignored = torch.tensor([*NUMBERS[:5], -100], dtype=torch.int32)
    assert cross_entropy(OUTPUT, ignored) == torch.nn.functional.cross_entropy(OUTPUT[:5], torch.tensor(NUMBERS[:5]))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (np.array([0, -1, 1, 1, 0, 0], np.int16), "labels of dtype int16 hold -1, and the model has 3 outputs: "),
        (np.array([0, 3, 1, 1, 0, 0]), "labels of dtype int64 hold 3, and the model has 3 outputs: "),
        (np.array([0, 2**63, 1, 1, 0, 0], np.uint64), "labels of dtype uint64 hold 9223372036854775808, "),
        (
            np.zeros((6, 3), np.int32),
            "labels of dtype int32 have shape (6, 3), and the model's output has shape (6, 3)",
        ),
        (np.zeros(5, np.int64), "labels of dtype int64 have shape (5,), and the model's output has shape (6, 3)"),
        (np.zeros(6, np.float64), "labels of dtype float64 have shape (6,), and the model's output has shape (6, 3): "),
        (np.zeros(6, np.complex64), "labels of dtype complex64 have shape (6,), "),
        (None, "the batches have no labels to train on; give as `loss`"),
        ((np.zeros(6), np.zeros(6)), "the labels of a batch are a tuple of 2, and the loss takes one array; "),
    ],
)
def test_other_labels_are_refused_with_dtype_and_value_or_shape_and_what_to_do(labels: Any, said: str) -> None:
    tensor = torch.from_numpy(labels) if isinstance(labels, np.ndarray) else labels
    with pytest.raises(ValueError, match=f"^{re.escape(said)}") as raised:
        cross_entropy(OUTPUT, tensor)
    assert labels is None or str(raised.value).endswith(DOES)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ((OUTPUT, OUTPUT), "the model returns a tuple of 2"),
        ({"logits": OUTPUT}, "the model returns a dict with 'logits'"),
        (None, "the model returns a NoneType"),
    ],
)
@pytest.mark.parametrize("labels", [torch.tensor(NUMBERS), torch.zeros(6)], ids=["classes", "targets"])
def test_an_output_that_is_no_tensor_is_refused_with_what_to_do(output: Any, said: str, labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=f"^{said}, and the loss takes one tensor; give a loss of your own"):
        default_loss(labels)(output, labels)


def test_an_output_without_an_axis_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"have shape \(6,\), and the model's output has shape \(\): cross"):
        cross_entropy(torch.tensor(0.5), torch.tensor(NUMBERS))


def test_targets_that_the_outputs_do_not_fit_or_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match=r"labels of dtype float32 and shape \(6,\) are targets of a regression"):
        squared_error(OUTPUT, torch.zeros(6))
    assert squared_error(OUTPUT[:, :1], torch.zeros(6)) == OUTPUT[:, 0].square().mean()
    with pytest.raises(ValueError, match="labels of dtype float16 hold nan; convert them"):
        default_loss(torch.tensor([0, torch.nan], dtype=torch.float16))


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([-1, 1, 7], "int8"), ([10**12, 10**12 + 3, 10**15], "int64"), ([5, 2**63, 2**64 - 1], "uint64")],
)
def test_labels_of_any_integers_are_numbered_in_ascending_order(values: list[int], dtype: str) -> None:
    labels = torch.from_numpy(np.array(values, dtype)[NUMBERS])
    loss = default_loss(labels, values)
    assert loss(OUTPUT, labels) == EXPECTED
    assert loss(OUTPUT, labels[:, None]) == EXPECTED
    padded = torch.from_numpy(np.array([*(values[number] for number in NUMBERS), 0, 0], dtype)).reshape(2, 4)
    outputs, mask = torch.cat([OUTPUT, OUTPUT[:2]]).reshape(2, 4, 3), torch.arange(8).reshape(2, 4) < 6
    assert NumberedClasses(values)(outputs, padded, mask) == EXPECTED
    with pytest.raises(ValueError, match=f"labels of dtype {dtype} hold 0, which is not among the 3 labels"):
        loss(outputs.flatten(0, 1), padded.flatten())


@pytest.mark.parametrize("dtype", ["bool", "int32", "uint64"])
def test_a_model_is_trained_alike_whatever_the_dtype_of_its_labels_and_the_loader(dtype: str) -> None:
    features = np.random.default_rng(0).standard_normal((12, 4), np.float32)
    numbers = (np.arange(12) % 2).astype(dtype)
    scores = []
    for labels in (numbers.astype(np.int64), numbers):
        records = [{"features": features[row], "label": labels[row]} for row in range(12)]
        pairs = DataLoader(list(zip(features, map(np.atleast_1d, labels), strict=True)), 4)
        for batches in (etl.RawIterator(records, NOTHING, 4), pairs):
            torch.manual_seed(0)
            scores.append(etl.fit(torch.nn.Linear(4, 2), batches, backend="cpu").scores)
    assert scores[1:] == scores[:-1]


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8", "uint16", "uint32", "uint64", "int64", "bool"])
@pytest.mark.parametrize("layer", ["Linear", "Conv1d"])
def test_features_of_another_dtype_than_the_weights_are_named_with_what_to_do(dtype: str, layer: str) -> None:
    batches = [(np.ones((2, 4, 4)).astype(dtype), np.zeros(2, np.int64))]
    model = torch.nn.Sequential(getattr(torch.nn, layer)(4, 2, **{"kernel_size": 4} if layer == "Conv1d" else {}))
    how = r"dtype='float32' \(--dtype\)" if dtype.startswith("float") else r"the stage etl\.stages\.Cast\('float32'\)"
    said = (
        rf"the features of a batch have dtype {dtype}, and the model's weights float32 \(.*\): "
        rf"convert the features in the loader, as {how} does"
    )
    with pytest.raises(ValueError, match=said):
        etl.fit(model, batches, backend="cpu")
    with pytest.raises(RuntimeError, match="shapes"):  # another error stays as it is
        etl.fit(torch.nn.Linear(3, 2), [(torch.ones(2, 4), torch.zeros(2))], backend="cpu")


def test_of_several_inputs_the_one_that_does_not_fit_is_named_and_not_the_numbers_of_an_embedding() -> None:
    class Recommender(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.linear = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 2)

        def forward(self, numbers: torch.Tensor, amounts: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.linear(self.embedding(numbers) + amounts)
            return output

    batches = [((np.zeros(2, np.int64), np.ones((2, 4))), np.zeros(2, np.int64))]
    with pytest.raises(ValueError, match="the features of a batch have dtype float64, and the model's weights float32"):
        etl.fit(Recommender(), batches, backend="cpu")


def test_a_last_batch_of_one_record_that_cannot_be_normalised_is_named_with_what_to_do() -> None:
    records = [{"features": np.ones((3, 16, 16), np.float32), "label": 0} for _ in range(5)]
    model = etl.models.create("residual", (3, 16, 16), 2)
    with pytest.raises(ValueError, match=r"cannot be trained on a batch of one record, .*: choose another batch size"):
        etl.fit(model, etl.RawIterator(records, NOTHING, 4), backend="cpu")
