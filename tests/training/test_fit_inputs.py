"""The inputs that `fit` passes to the model: several features, and masks if the model takes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import etl
from etl.sources import Record

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS, INPUTS, CLASSES = 7, 3, 2
LENGTHS = (7, 2, 5, 1, 6)


class TwoTowers(nn.Module):
    """Takes two inputs; fails if it gets one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.left(left) + self.right(right)
        return logits


class Masked(nn.Module):
    """Keeps the mask it was called with."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(INPUTS, CLASSES)
        self.masks: list[torch.Tensor | None] = []

    def forward(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        self.masks.append(mask)
        logits: torch.Tensor = self.dense(features.mean(dim=1))
        return logits


class Unmasked(Masked):
    """The same, for data without padding."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(features)


def sequences(padding: float = 0.0) -> list[Record]:
    """Sequences of different lengths, filled up to the longest with `padding`."""
    random = np.random.default_rng(0)
    records = []
    for number, length in enumerate(LENGTHS):
        features = np.full((STEPS, INPUTS), padding, np.float32)
        features[:length] = random.standard_normal((length, INPUTS))
        mask = (np.arange(STEPS) < length).astype(np.float32)
        records.append({"features": features, "label": number % CLASSES, "features_mask": mask})
    return records


def iterate(records: list[Record], batch_size: int = 8, **settings: str) -> etl.RawIterator:
    return etl.RawIterator(records, etl.Pipeline([]), batch_size, **settings)  # type: ignore[arg-type]


def test_several_features_are_several_arguments() -> None:
    random = np.random.default_rng(1)
    inputs = tuple(random.random((8, width), dtype=np.float32) for width in (4, 6))
    batches = etl.SyntheticIterator.repeating(etl.Batch(inputs, random.integers(0, CLASSES, 8)), 3)
    result = etl.fit(TwoTowers(), batches, backend="cpu")
    assert len(result.scores) == 3
    assert result.samples == 24
    assert result.scores[2] < result.scores[0]


def test_the_mask_of_the_features_reaches_a_model_that_takes_one() -> None:
    model = Masked()
    etl.fit(model, iterate(sequences()), backend="cpu")
    (mask,) = model.masks
    assert mask is not None
    assert mask.sum(dim=1).tolist() == list(LENGTHS)


def test_a_model_that_takes_a_mask_gets_none_if_nothing_is_padded() -> None:
    model = Masked()
    records = [{name: record[name] for name in ("features", "label")} for record in sequences()]
    etl.fit(model, iterate(records), backend="cpu")
    assert model.masks == [None]


def test_a_model_that_takes_no_mask_is_given_none() -> None:
    model = Unmasked()
    etl.fit(model, iterate(sequences()), backend="cpu")
    assert model.masks == [None]


@pytest.mark.parametrize("wrap", [lambda model: torch.compile(model, backend="eager"), nn.DataParallel])
def test_a_wrapper_of_torch_hides_no_mask_and_invents_none(wrap: Callable[[nn.Module], nn.Module]) -> None:
    masked, unmasked = Masked(), Unmasked()
    for model in (masked, unmasked):
        etl.fit(wrap(model), iterate(sequences()), backend="cpu")
    assert [each is None for each in (*masked.masks, *unmasked.masks)] == [False, True]


def test_the_content_of_padded_steps_changes_nothing_in_training() -> None:
    scores = [
        etl.fit(etl.models.create("lstm", (STEPS, INPUTS), CLASSES), iterate(sequences(padding)), backend="cpu").scores
        for padding in (0.0, 1000.0)
    ]
    assert scores[0] == scores[1]


def test_a_padded_batch_gives_the_output_of_each_sequence_alone() -> None:
    model = etl.models.create("lstm", (STEPS, INPUTS), CLASSES)
    records = sequences()
    batch = etl.backend("cpu").put(next(iter(iterate(records))))
    with torch.no_grad():
        together = model(batch.features, mask=batch.features_mask)
        alone = [
            model(torch.from_numpy(record["features"][None, :length]))
            for record, length in zip(records, LENGTHS, strict=True)
        ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-6)


def test_the_last_step_of_a_long_sequence_is_found_if_the_dtype_of_the_mask_cannot_count_steps() -> None:
    # bfloat16 has no number between 256 and 258.
    steps = 257
    model = etl.models.create("lstm", (steps, INPUTS), CLASSES).to(torch.bfloat16)
    features = torch.zeros(1, steps, INPUTS, dtype=torch.bfloat16)
    features[:, -1] = 1
    with torch.no_grad():
        with_mask = model(features, mask=torch.ones(1, steps, dtype=torch.bfloat16))
        torch.testing.assert_close(with_mask, model(features))


def test_masks_reach_a_model_through_a_wrapper_that_takes_any_keyword() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self, module: torch.nn.Module) -> None:
            super().__init__()
            self.module = module
            self.masks: list[torch.Tensor] = []

        def forward(self, *inputs: torch.Tensor, **keywords: torch.Tensor) -> torch.Tensor:
            self.masks.append(keywords["mask"])
            return self.module(*inputs, **keywords)

    wrapper = Wrapper(etl.models.create("lstm", (5, 3), 2))
    batch = etl.Batch(np.ones((2, 5, 3), np.float32), np.array([0, 1]), np.ones((2, 5), np.float32))
    etl.fit(wrapper, etl.SyntheticIterator.repeating(batch, 2), backend="cpu")
    assert len(wrapper.masks) == 2
