"""An iterator where torch's tools expect a data set: a DataLoader, and the loops of Lightning and Accelerate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import etl
from etl.iterators import BatchIterator
from tests.leftovers import prefetch_threads

COUNT = 10
RECORDS = [{"features": np.full(3, number, np.float32), "label": number} for number in range(COUNT)]
NOTHING = etl.Pipeline([])
Make = Callable[[], BatchIterator]


def make_raw() -> etl.RawIterator:
    return etl.RawIterator(RECORDS, NOTHING, 4, shuffle=True)


def make_async() -> etl.AsyncIterator:
    return etl.AsyncIterator(make_raw(), threads=2)


@pytest.fixture(params=[make_raw, make_async])
def make(request: pytest.FixtureRequest) -> Make:
    return request.param  # type: ignore[no-any-return]


def labels_of(loader: Any) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


def epochs_of(iterator: BatchIterator, count: int) -> list[list[list[int]]]:
    return [[batch.labels.tolist() for batch in iterator] for _ in range(count)]


def test_a_data_loader_gives_the_iterators_batches_as_tensors_epoch_after_epoch(make: Make) -> None:
    loader = DataLoader(etl.TorchDataset(make()), batch_size=None)
    expected = epochs_of(make(), 3)
    assert expected[0] != expected[1]
    assert [labels_of(loader) for _ in range(3)] == expected
    assert len(loader) == 3
    features, labels = next(iter(loader))
    assert (features.dtype, labels.dtype) == (torch.float32, torch.int64)
    assert features[:, 0].tolist() == labels.tolist()


def test_a_users_loader_that_is_loaded_ahead_gives_tensors_too() -> None:
    pairs = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    ahead = etl.AsyncIterator(DataLoader(pairs, 4))
    assert [features[:, 0].tolist() for features, _ in etl.TorchDataset(ahead)] == [[0, 2, 4, 6], [8, 10]]


def test_tensors_share_the_memory_of_the_arrays() -> None:
    batch = etl.Batch(np.zeros((2, 3), np.float32), np.arange(2))
    features, labels = next(iter(etl.TorchDataset(etl.SyntheticIterator.repeating(batch, 2))))
    features += 7
    labels += 1
    assert (batch.features == 7).all()
    assert batch.labels.tolist() == [1, 2]


def test_bfloat16_masks_several_inputs_and_missing_labels_come_through() -> None:
    def only(batch: etl.Batch) -> tuple[Any, ...]:
        first, *_ = etl.TorchDataset(etl.SyntheticIterator.repeating(batch, 1))
        return first

    (batch,) = etl.RawIterator(RECORDS, NOTHING, COUNT, dtype="bfloat16")
    assert only(batch)[0].dtype == torch.bfloat16
    assert only(batch)[0][:, 0].tolist() == list(range(COUNT))
    inputs, labels = only(etl.Batch((np.zeros((2, 3)), np.ones((2, 4))), np.arange(2)))
    assert [tuple(each.shape) for each in inputs] == [(2, 3), (2, 4)]
    features, labels, mask, labels_mask = only(etl.Batch(np.zeros((2, 3)), None, np.ones((2, 3)), None))
    assert (labels, labels_mask) == (None, None)
    assert mask.shape == features.shape


def test_a_loop_that_never_asks_for_the_batch_after_the_last_goes_on_to_the_next_epoch(make: Make) -> None:
    # As Lightning does, which knows the length.
    view = etl.TorchDataset(make())
    seen = []
    for _ in range(2):
        batches = iter(view)
        seen.append([next(batches)[1].tolist() for _ in range(len(view))])
    assert seen == epochs_of(make(), 2)


def test_a_view_goes_on_after_the_epoch_that_a_loop_over_its_iterator_has_taken(make: Make) -> None:
    iterator = make()
    batches = iter(iterator)
    for _ in range(len(iterator)):
        next(batches)
    view = etl.TorchDataset(iterator)
    assert [labels_of(islice(view, 2)) for _ in range(2)] == [epoch[:2] for epoch in epochs_of(make(), 3)[1:]]


def test_an_epoch_left_early_is_followed_by_another_one(make: Make) -> None:
    # As Lightning does with limit_train_batches: the same few batches again and again would train on nothing else.
    view = etl.TorchDataset(make())
    assert [labels_of(islice(view, 2)) for _ in range(3)] == [epoch[:2] for epoch in epochs_of(make(), 3)]


def test_asking_whether_it_can_be_iterated_begins_no_epoch(make: Make) -> None:
    view = etl.TorchDataset(make())
    iter(view)
    iter(view)
    assert labels_of(view) == epochs_of(make(), 1)[0]


def test_set_epoch_chooses_the_epoch(make: Make) -> None:
    view = etl.TorchDataset(make())
    expected = epochs_of(make(), 4)
    for epoch in (2, 2, 0, 3):
        view.set_epoch(epoch)
        assert labels_of(DataLoader(view, batch_size=None)) == expected[epoch]
    view.set_epoch(1)
    next(iter(view))
    view.set_epoch(1)
    assert labels_of(view) == expected[1]


@pytest.mark.parametrize("taken", [0, 2, 3])
@pytest.mark.parametrize("sets_epoch", [False, True])
def test_a_saved_state_resumes_even_if_the_loop_sets_the_epoch(make: Make, taken: int, sets_epoch: bool) -> None:
    def batches(view: etl.TorchDataset) -> Iterator[list[int]]:
        for epoch in range(view.state_dict()["epoch"], 3):
            if sets_epoch:
                view.set_epoch(epoch)
            yield from labels_of(view)

    saved, resumed = etl.TorchDataset(make()), etl.TorchDataset(make())
    everything = [batch for epoch in epochs_of(make(), 3) for batch in epoch]
    running = (labels.tolist() for _ in range(3) for _, labels in saved)
    seen = list(islice(running, taken))
    resumed.load_state_dict(saved.state_dict())
    assert seen + list(batches(resumed)) == everything


def test_setting_another_epoch_discards_the_loaded_state(make: Make) -> None:
    saved, resumed = etl.TorchDataset(make()), etl.TorchDataset(make())
    next(iter(saved))
    resumed.load_state_dict(saved.state_dict())
    resumed.set_epoch(1)
    resumed.set_epoch(0)
    assert labels_of(resumed) == epochs_of(make(), 1)[0]


def test_a_state_or_an_epoch_that_the_iterator_itself_was_given_holds(make: Make) -> None:
    iterator, expected = make(), epochs_of(make(), 2)
    view = etl.TorchDataset(iterator)
    batches = iter(view)
    next(batches)
    state = iterator.state_dict()
    next(batches)
    iterator.load_state_dict(state)  # as after a loss that is not a number
    assert view.epoch == 0
    assert labels_of(view) == expected[0][1:]
    next(iter(view))
    iterator.set_epoch(1)
    assert labels_of(view) == expected[1]
    resumed = make()
    resumed.load_state_dict(state)
    view = etl.TorchDataset(resumed)
    view.set_epoch(0)  # as a training loop does before every epoch
    assert labels_of(view) == expected[0][1:]


def test_a_loop_that_is_left_ends_the_threads() -> None:
    view = etl.TorchDataset(etl.AsyncIterator(etl.RawIterator(RECORDS, NOTHING, 2), threads=2))
    for _ in DataLoader(view, batch_size=None):
        break
    assert prefetch_threads() == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_worker_processes_are_refused_with_the_remedy() -> None:
    loader = DataLoader(etl.TorchDataset(make_raw()), batch_size=None, num_workers=1, multiprocessing_context="fork")
    with pytest.raises(
        RuntimeError, match=r"each worker would load all of it again: use .*num_workers=0\), and let Async"
    ):
        list(loader)


class Recorded(torch.nn.Linear):
    """A linear model that keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(3, COUNT)
        self.seen: list[list[float]] = []

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.seen.append(features[:, 0].tolist())
        return super().forward(features)


def lightning_module(lightning: Any, view: etl.TorchDataset | None = None) -> Any:
    """Return a module that keeps what Lightning gives it, and sets the epochs of `view`, if given."""

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = Recorded()

        def on_train_epoch_start(self) -> None:
            if view is not None:
                view.set_epoch(self.current_epoch)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    return Module()


def lightning_trainer(lightning: Any, folder: Path, epochs: int) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        accelerator="cpu", max_epochs=epochs, enable_checkpointing=False, default_root_dir=folder, **quiet
    )


@pytest.mark.filterwarnings("ignore")  # of libraries about one another
def test_lightning_trains_on_each_epochs_order(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning.pytorch")
    for wrap in (lambda view: view, lambda view: DataLoader(view, batch_size=None)):
        module = lightning_module(lightning)
        trainer = lightning_trainer(lightning, tmp_path, 2)
        trainer.fit(module, train_dataloaders=wrap(etl.TorchDataset(make_async())))
        assert module.model.seen == [batch for epoch in epochs_of(make_raw(), 2) for batch in epoch]


@pytest.mark.filterwarnings("ignore")  # of libraries about one another
def test_lightning_goes_on_after_a_whole_epoch_if_the_module_sets_the_epoch(tmp_path: Path) -> None:
    # Lightning itself restores the state of a loader from a checkpoint within an epoch alone.
    lightning: Any = pytest.importorskip("lightning.pytorch")
    checkpoint = str(tmp_path / "epoch.ckpt")
    for wrap in (lambda view: view, lambda view: DataLoader(view, batch_size=None)):
        seen: list[Any] = []
        for epochs, resumed in ((1, None), (2, checkpoint)):
            view = etl.TorchDataset(make_async())
            module, trainer = lightning_module(lightning, view), lightning_trainer(lightning, tmp_path, epochs)
            trainer.fit(module, train_dataloaders=wrap(view), ckpt_path=resumed)
            trainer.save_checkpoint(checkpoint)
            seen += module.model.seen
        assert seen == [batch for epoch in epochs_of(make_raw(), 2) for batch in epoch]


@pytest.mark.filterwarnings("ignore")  # of libraries about one another
def test_accelerate_gives_each_epochs_order() -> None:
    accelerate: Any = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    for wrap in (lambda view: view, lambda view: DataLoader(view, batch_size=None)):
        loader = accelerator.prepare(wrap(etl.TorchDataset(make_async())))
        assert [labels_of(loader) for _ in range(2)] == epochs_of(make_raw(), 2)


@pytest.mark.filterwarnings("ignore")  # of libraries about one another
def test_accelerate_goes_on_after_an_epoch_left_early_if_the_loop_sets_the_epoch() -> None:
    # Accelerate itself sets the number of whole epochs, and would begin the same one again.
    accelerate: Any = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(etl.TorchDataset(make_async()), batch_size=None))
    seen = []
    for epoch in range(3):
        loader.set_epoch(epoch)
        seen.append(labels_of(islice(loader, 2)))
    assert seen == [epoch[:2] for epoch in epochs_of(make_raw(), 3)]


@pytest.mark.filterwarnings("ignore")  # of libraries about one another
def test_torchdatas_loader_saves_and_restores_it() -> None:
    torchdata: Any = pytest.importorskip("torchdata.stateful_dataloader")
    saved, resumed = (torchdata.StatefulDataLoader(etl.TorchDataset(make_async()), batch_size=None) for _ in range(2))
    next(iter(saved))
    resumed.load_state_dict(saved.state_dict())
    first, second = epochs_of(make_raw(), 2)
    assert [labels_of(resumed), labels_of(resumed)] == [first[1:], second]
