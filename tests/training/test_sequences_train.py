"""Padded, bucketed sequences through `fit`: padding has no influence on what is learnt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import etl
import presave
from etl.loading import Padding
from tests.sequences import CLASSES, INPUTS, NOTHING, Sequences, sequences


def iterators(folder: Path, source: Sequences, **settings: Any) -> dict[str, Any]:
    """Padded and bucketed by every strategy."""
    given: dict[str, Any] = {"shuffle": True, "padding": Padding(100.0, multiple_of=4), "bucket_records": 40}
    store = presave.write(folder / "store", etl.records(source, NOTHING), ragged=source.ragged & ragged_of(source))
    raw = etl.RawIterator(source, NOTHING, 8, **given, **settings)
    saved = etl.PresavedIterator(store, NOTHING, 8, **given, **settings)
    return {"raw": raw, "presaved": saved, "async raw": etl.AsyncIterator(raw), "async saved": etl.AsyncIterator(saved)}


def ragged_of(source: Sequences) -> set[str]:
    return {name for name, value in source[0].items() if np.ndim(value)}


@pytest.mark.slow
def test_an_lstm_learns_from_padded_and_bucketed_batches_of_every_strategy(tmp_path: Path) -> None:
    scores = {}
    for strategy, iterator in iterators(tmp_path, Sequences(sequences(80))).items():
        iterator.set_epoch(0)  # the asynchronous ones wrap those that have been trained with
        model = etl.models.create("lstm", (1, INPUTS), CLASSES)
        with etl.runtime.ThreadPolicy(1):
            trained = etl.fit(model, iterator, backend="cpu", optimizer="adam", learning_rate=0.02, epochs=6)
        scores[strategy] = trained.scores
    assert np.mean(scores["raw"][-10:]) < 0.5 * np.mean(scores["raw"][:10])
    assert all(each == scores["raw"] for each in scores.values())


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("per_step", [False, True])
def test_padded_steps_change_no_gradient(per_step: bool) -> None:
    source = Sequences(sequences(12, per_step))
    model: nn.Module = StepLstm() if per_step else etl.models.create("lstm", (1, INPUTS), CLASSES)
    unpadded = [etl.RawIterator([record], NOTHING, 1) for record in source]
    losses = []
    for iterator in unpadded:
        (batch,) = (etl.backend("cpu").put(each) for each in iterator)
        losses.append(torch.nn.functional.cross_entropy(model(batch.features).flatten(0, -2), batch.labels.flatten()))
    weights = torch.tensor([float(np.size(record["label"])) for record in source])
    (torch.stack(losses) * weights / weights.sum()).sum().backward()
    expected = [gradient.clone() for gradient in gradients(model)]
    before = [parameter.detach().clone() for parameter in model.parameters()]

    padded = etl.RawIterator(source, NOTHING, 12, padding=Padding(100.0, multiple_of=16))
    etl.fit(model, padded, backend="cpu", learning_rate=1.0)
    for old, new, gradient in zip(before, model.parameters(), expected, strict=True):
        torch.testing.assert_close(old - new.detach(), gradient, rtol=1e-3, atol=1e-6)


class StepLstm(nn.Module):
    """The class of each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.output = nn.LSTM(INPUTS, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.output(self.lstm(features)[0])
        return logits


def test_a_loss_that_would_learn_the_padding_of_labels_is_refused() -> None:
    padded = etl.RawIterator(Sequences(sequences(12, per_step=True)), NOTHING, 4, padding=Padding())
    with pytest.raises(ValueError, match=r"the loss takes no `mask`: use loss\(output, labels, mask=None\)"):
        etl.fit(StepLstm(), padded, backend="cpu", loss=nn.CrossEntropyLoss())


def test_a_loss_of_ones_own_is_given_the_mask_of_the_labels() -> None:
    seen = []

    def loss(output: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seen.append(mask.sum().item())
        return (output.sum(dim=2) * mask).sum() + labels.sum() * 0

    source = Sequences(sequences(12, per_step=True))
    etl.fit(StepLstm(), etl.RawIterator(source, NOTHING, 4, padding=Padding()), backend="cpu", loss=loss)
    assert sum(seen) == sum(source.lengths)
