"""AsyncIterator and DeviceIterator over loaders of other libraries."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import DataLoader

import etl
from tests.leftovers import prefetch_threads, wait_for_prefetch_threads
from tests.loaders import BATCH, LOADERS, Epochs, Generated, Numbers, dataloader, pairs
from tests.programs import run_python

LIMIT_SECONDS = 20
pytestmark = pytest.mark.usefixtures("no_prefetch_thread_is_left")
LABELS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
AHEAD: dict[str, Callable[[Any], Any]] = {
    "async": etl.AsyncIterator,
    "device": lambda loader: etl.DeviceIterator(loader, "cpu"),
    "both": lambda loader: etl.DeviceIterator(etl.AsyncIterator(loader, 9), "cpu"),
}


def labels_of(batches: Any) -> list[list[int]]:
    return [(batch["label"] if isinstance(batch, dict) else batch[1]).tolist() for batch in batches]


@pytest.mark.parametrize("prefetch_size", [0, 2])
@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_the_batches_are_the_loaders_own_in_the_same_order(make: Callable[[], Any], prefetch_size: int) -> None:
    loader = make()
    iterator = etl.AsyncIterator(loader, prefetch_size)
    for epoch in range(2):
        assert iterator.epoch == epoch
        assert labels_of(iterator) == LABELS


def test_batches_of_any_form_are_handed_on_unchanged() -> None:
    batches = [{"image": [1, {"deep": (2,)}]}, "text", 5]
    assert [id(batch) for batch in etl.AsyncIterator(batches)] == [id(batch) for batch in batches]


def test_a_single_thread_advances_it_and_no_further_than_prefetch_size() -> None:
    class Watched:
        def __init__(self) -> None:
            self.begun = threading.Semaphore(0)
            self.threads: set[int] = set()

        def __iter__(self) -> Iterator[int]:
            for number in range(8):
                self.threads.add(threading.get_ident())
                self.begun.release()
                yield number

    watched = Watched()
    iterator = etl.AsyncIterator(watched, 2, threads=4)
    assert iterator.threads == 1
    batches = iter(iterator)
    for taken in range(3):
        for _ in range(2 if taken == 0 else 1):
            assert watched.begun.acquire(timeout=LIMIT_SECONDS)
        assert not watched.begun.acquire(timeout=0.1)
        assert next(batches) == taken
    assert list(batches) == [3, 4, 5, 6, 7]
    assert len(watched.threads) == 1
    assert threading.get_ident() not in watched.threads


@pytest.mark.parametrize("prefetch_size", [0, 1, 3])
def test_an_error_is_raised_at_its_batch(prefetch_size: int) -> None:
    loader = Generated(fails_at=2)
    batches = iter(etl.AsyncIterator(loader, prefetch_size))
    assert [next(batches)[1].tolist() for _ in range(2)] == LABELS[:2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert loader.open == 0
    assert prefetch_threads() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_data_set_is_raised_at_its_batch(workers: int) -> None:
    batches = iter(etl.AsyncIterator(dataloader(workers, bad=9)))
    assert [next(batches)[1].tolist() for _ in range(2)] == LABELS[:2]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_a_batch_that_is_none_is_an_error_when_it_is_loaded_ahead() -> None:
    batches = iter(etl.AsyncIterator([5, None, 6]))
    assert next(batches) == 5
    with pytest.raises(ValueError, match="batch 1 of the epoch is None"):
        next(batches)


def test_leaving_the_loop_ends_the_thread_and_closes_the_loaders_epoch() -> None:
    loader = Generated()
    iterator = etl.AsyncIterator(loader)
    for _ in iterator:
        assert len(prefetch_threads()) == 1
        break
    assert prefetch_threads() == []
    assert loader.open == 0
    assert iterator.epoch == 0
    assert labels_of(iterator) == LABELS


def test_leaving_the_loop_ends_the_workers_of_a_dataloader() -> None:
    before = set(psutil.Process().children())
    for _ in etl.AsyncIterator(dataloader(workers=2)):
        assert len(set(psutil.Process().children()) - before) >= 2
        break
    gc.collect()
    assert set(psutil.Process().children()) <= before


def test_closing_ends_the_epoch_and_the_loader_while_something_still_refers_to_it() -> None:
    class Closing(Generated):
        closed = False

        def close(self) -> None:
            self.closed = True

    loader = Closing()
    with etl.AsyncIterator(loader) as iterator:
        batches = iter(iterator)
        next(batches)
    assert prefetch_threads() == []
    assert (loader.open, loader.closed) == (0, True)
    with pytest.raises(RuntimeError, match="this epoch was ended"):
        next(batches)
    with pytest.raises(RuntimeError, match="the iterator over a Closing is closed"):
        iter(iterator)


def test_an_iterator_is_read_once() -> None:
    iterator = etl.AsyncIterator(iter(pairs()))
    assert labels_of(iterator) == LABELS
    assert labels_of(iterator) == []


def test_a_sampler_is_told_the_epoch_that_the_caller_is_in() -> None:
    sampler = Epochs()
    iterator = etl.AsyncIterator(DataLoader(Numbers(), BATCH, sampler=sampler), 9)
    for _ in iterator:
        wait_for_prefetch_threads()
        assert sampler.epoch == 0  # though the thread has read to the end
        break
    first = labels_of(iterator)
    assert (sampler.iterated, iterator.epoch) == ([0, 0], 1)
    assert labels_of(iterator) != first
    iterator.set_epoch(0)
    assert labels_of(iterator) == first
    assert sampler.iterated == [0, 0, 1, 0]


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("wrap", AHEAD.values(), ids=AHEAD)
def test_an_epoch_that_the_sampler_is_told_holds_after_a_loop_that_was_left(
    wrap: Callable[[Any], Any], taken: int
) -> None:
    sampler = Epochs()
    iterator = wrap(DataLoader(Numbers(), BATCH, sampler=sampler))
    for epoch in (0, np.int64(1), 2, 7):
        sampler.set_epoch(epoch)  # type: ignore[arg-type]
        batches = iter(iterator)
        for _ in range(taken):
            next(batches)
        assert iterator.epoch == epoch
    assert sampler.iterated == [0, 1, 2, 7]


@pytest.mark.parametrize("wrap", AHEAD.values(), ids=AHEAD)
def test_an_epoch_that_the_sampler_is_told_holds_after_whole_epochs(wrap: Callable[[Any], Any]) -> None:
    sampler = Epochs()
    iterator = wrap(DataLoader(Numbers(), BATCH, sampler=sampler))
    for epoch in (0, 0, 5):
        sampler.set_epoch(epoch)
        assert len(list(iterator)) == 3
        assert iterator.epoch == epoch + 1
    assert sampler.iterated == [0, 0, 5]


def test_a_loop_over_a_device_iterator_that_asks_for_no_batch_after_the_last_ends_its_epoch() -> None:
    sampler = Epochs()
    device = etl.DeviceIterator(DataLoader(Numbers(), BATCH, sampler=sampler), "cpu")
    for _ in range(3):
        batches = iter(device)
        for _ in range(len(device)):
            next(batches)
    assert sampler.iterated == [0, 1, 2]


def test_it_tells_what_its_loader_tells() -> None:
    iterator = etl.AsyncIterator(dataloader())
    assert (len(iterator), iterator.batch_size, iterator.prefetch_size) == (3, 4, 2)
    with pytest.raises(AttributeError, match="a DataLoader does not tell its dtype"):
        _ = iterator.dtype
    unknown = etl.AsyncIterator(Generated())
    with pytest.raises(AttributeError, match="a Generated does not tell its batch_size"):
        _ = unknown.batch_size
    with pytest.raises(TypeError, match="'Generated' has no len"):
        len(unknown)


@pytest.mark.parametrize("wrap", [etl.AsyncIterator, lambda loader: etl.DeviceIterator(loader, "cpu")])
@pytest.mark.parametrize("begun", [False, True])
def test_what_it_cannot_do_is_one_sentence(wrap: Callable[[Any], Any], begun: bool) -> None:
    iterator = wrap(dataloader())
    batches = iter(iterator)
    if begun:
        next(batches)
    with pytest.raises(TypeError, match="the position in an epoch of a DataLoader is unknown: save the number"):
        iterator.state_dict()
    with pytest.raises(TypeError, match="the position in an epoch of a DataLoader is unknown"):
        iterator.load_state_dict({})
    with pytest.raises(TypeError, match=r"a DataLoader cannot be divided among ranks .* torch's DistributedSampler"):
        iterator.shard(0, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "process"}, r"workers='process' needs .* DataLoader makes whole batches itself: use .*'thread'"),
        ({"memory_budget": 1000}, "the size of batches, which DataLoader does not tell; use prefetch_size"),
    ],
)
def test_options_for_batches_in_parts_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        etl.AsyncIterator(dataloader(), **options)


@pytest.mark.parametrize("wrap", [etl.AsyncIterator, etl.DeviceIterator])
def test_what_cannot_be_iterated_is_refused(wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"batches come from an iterable, such as an iterator of etl .*, not a int"):
        wrap(5)


@pytest.mark.parametrize("loader", [dataloader(mappings=True), pairs(), etl.AsyncIterator(Generated())])
def test_a_device_iterator_yields_tensors_of_any_loader(loader: Any) -> None:
    device = etl.DeviceIterator(loader, "cpu")
    for epoch in range(2):
        assert device.epoch == epoch
        batches = list(device)
        assert [batch.labels.tolist() for batch in batches] == LABELS
        assert all(isinstance(batch.features, torch.Tensor) for batch in batches)


def test_a_device_iterator_finishes_the_batches_of_a_loader_that_names_no_dtype() -> None:
    loader = [(np.ones((2, 4, 4, 3), np.uint8), np.zeros(2, np.int64))]
    (batch,) = etl.DeviceIterator(loader, "cpu", finish=etl.Pipeline([etl.stages.ChannelsFirst()]))
    assert batch.features.shape == (2, 3, 4, 4)
    finish = etl.Pipeline([etl.stages.ChannelsFirst(), etl.stages.Normalise()])
    (batch,) = etl.DeviceIterator(loader, "cpu", finish=finish)
    assert batch.features.dtype == torch.float32


def test_leaving_the_loop_over_a_device_iterator_closes_the_loaders_epoch() -> None:
    loader = Generated()
    batches = iter(etl.DeviceIterator(loader, "cpu"))
    next(batches)
    assert loader.open == 1
    batches.close()  # type: ignore[attr-defined]
    assert loader.open == 0


def test_the_interpreter_exits_in_mid_epoch() -> None:
    script = (
        "import etl\n"
        "from tests.loaders import dataloader\n"
        "batches = iter(etl.AsyncIterator(dataloader(workers=2), 1))\n"
        "next(batches)\n"
    )
    done = run_python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
