"""Settings of a torch DataLoader are changed from outside, and its batches stay the same."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, get_worker_info

from etl.strategies import open_loader
from etl.strategies.settings import Value
from etl.strategies.task import Task
from etl.strategies.torch_loader import (
    TORCH_SETTINGS,
    apply_torch_settings,
    given_torch_settings,
    is_torch_loader,
    torch_settings,
)

# On a machine with fewer CPUs than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

RECORDS, BATCH = 10, 4
TASK = Task(batch_size=BATCH, dtype="float32", seed=7, epoch=0, records=RECORDS, cpus=2, workers=2, folder="files")
HAS_IN_ORDER = hasattr(DataLoader([0]), "in_order")  # type: ignore[arg-type]
SPEEDS: dict[str, Value] = {
    "num_workers": 2,
    "prefetch_factor": 4,
    "persistent_workers": True,
    "sharing_strategy": "file_system",
}


@pytest.fixture(autouse=True)
def sharing_strategy() -> Iterator[None]:
    """Put back what a test sets for this process."""
    before = torch.multiprocessing.get_sharing_strategy()
    yield
    torch.multiprocessing.set_sharing_strategy(before)


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), index * index, dtype=torch.float32), index


class SharingStrategies(Squares):
    """Records that say how their process shares tensors, and what `seed_worker` left there."""

    def __getitem__(self, index: int) -> Any:
        return torch.multiprocessing.get_sharing_strategy(), seeded


seeded = -1


def seed_worker(worker: int) -> None:
    global seeded
    seeded = worker


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(RECORDS))


class DividedStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return self.part()

    def part(self) -> Iterator[int]:
        worker = get_worker_info()
        yield from range(RECORDS) if worker is None else range(worker.id, RECORDS, worker.num_workers)


class InheritedStream(DividedStream):
    """A data set whose base class divides the records."""


def divide_stream(worker: int) -> None:
    """Say nothing: what counts is that it asks for the worker."""
    assert get_worker_info().id == worker


class DoublingLoader(DataLoader[Any]):
    """A subclass with arguments of its own, which changes what is loaded."""

    def __init__(self, times: int) -> None:
        super().__init__(Squares(), BATCH)
        self.times = times

    def __iter__(self) -> Any:
        return (images * self.times for images, _ in super().__iter__())


class EagerLoader(DataLoader[Any]):
    """A subclass that starts its workers when it is made, as others do that never end them."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.iterator = super().__iter__()


def shuffled(**more: Any) -> DataLoader[Any]:
    return DataLoader(Squares(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(3), **more)


def in_custom_batches() -> DataLoader[Any]:
    batches = BatchSampler(SequentialSampler(range(RECORDS)[::-1]), 3, drop_last=True)
    return DataLoader(Squares(), batch_sampler=batches)


def without_batches() -> DataLoader[Any]:
    return DataLoader(Squares(), batch_size=None)


def doubled() -> DataLoader[Any]:
    return DoublingLoader(times=2)


def values_of(loader: Any) -> list[Any]:
    return [[torch.as_tensor(each).tolist() for each in batch] for batch in loader]


@pytest.mark.parametrize("make", [shuffled, in_custom_batches, without_batches, doubled])
def test_batches_are_the_same_with_other_settings(make: Callable[..., DataLoader[Any]]) -> None:
    expected = values_of(make())
    loader = make()
    kept = {name: value for name, value in vars(loader).items() if name not in (*TORCH_SETTINGS, "worker_init_fn")}
    assert apply_torch_settings(loader, SPEEDS) is loader
    assert SPEEDS.items() <= given_torch_settings(loader).items()
    assert values_of(loader) == expected
    for name in kept.keys() - {"_iterator"}:
        assert vars(loader)[name] is kept[name], name


def test_workers_are_taken_away_as_torch_demands() -> None:
    expected = values_of(shuffled())
    loader = shuffled(num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=60)
    apply_torch_settings(loader, {"num_workers": 0, "prefetch_factor": 8, "persistent_workers": True})
    assert (loader.prefetch_factor, loader.persistent_workers, loader.timeout) == (None, False, 0)
    assert values_of(loader) == expected


def test_a_single_setting_leaves_the_others() -> None:
    loader = shuffled(num_workers=2, prefetch_factor=4, timeout=60)
    apply_torch_settings(loader, {"num_workers": 1})
    assert (loader.num_workers, loader.prefetch_factor, loader.timeout) == (1, 4, 60)
    without = apply_torch_settings(shuffled(), {"num_workers": 1})
    assert without.prefetch_factor == 2
    assert apply_torch_settings(shuffled(), {"prefetch_factor": 4}).prefetch_factor is None


def test_without_settings_nothing_is_touched() -> None:
    loader = shuffled()
    before = dict(vars(loader))
    assert apply_torch_settings(loader, {}) is loader
    assert vars(loader) == before


def test_workers_that_are_kept_from_an_earlier_epoch_are_replaced() -> None:
    loader = DataLoader(Squares(), BATCH, num_workers=1, persistent_workers=True)
    expected = values_of(loader)
    first = loader._iterator
    apply_torch_settings(loader, {"num_workers": 2})
    assert values_of(loader) == expected
    assert loader._iterator is not first


def test_workers_share_the_records_of_a_stream_that_they_divide() -> None:
    loader = apply_torch_settings(DataLoader(DividedStream(), BATCH), {"num_workers": 2})
    assert sorted(number for batch in loader for number in batch.tolist()) == list(range(RECORDS))


@pytest.mark.skipif(not HAS_IN_ORDER, reason="this torch always keeps the order")
def test_batches_in_another_order_are_the_same_batches() -> None:
    loader = apply_torch_settings(DataLoader(Squares(), BATCH), {"num_workers": 2, "in_order": False})
    assert sorted(values_of(loader)) == sorted(values_of(DataLoader(Squares(), BATCH)))


def test_tensors_are_shared_as_chosen_in_the_process_and_its_workers() -> None:
    context = multiprocessing.get_context("spawn")  # which inherits nothing
    loader = DataLoader(
        SharingStrategies(), BATCH, num_workers=1, multiprocessing_context=context, worker_init_fn=seed_worker
    )
    chosen: dict[str, Value] = {"sharing_strategy": "file_system"}
    apply_torch_settings(apply_torch_settings(loader, chosen), chosen)
    assert torch.multiprocessing.get_sharing_strategy() == "file_system"
    assert loader.multiprocessing_context is context
    batches = list(loader)
    assert {each for strategies, _ in batches for each in strategies} == {"file_system"}
    assert {each for _, workers in batches for each in workers.tolist()} == {0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": -1}, "the setting 'num_workers' of a DataLoader cannot be -1"),
        ({"num_workers": True}, "the setting 'num_workers' of a DataLoader cannot be True"),
        ({"num_workers": 2, "prefetch_factor": 0}, "the setting 'prefetch_factor' of a DataLoader cannot be 0"),
        ({"persistent_workers": "yes"}, "the setting 'persistent_workers' of a DataLoader cannot be 'yes'"),
        ({"sharing_strategy": "post"}, "the setting 'sharing_strategy' of a DataLoader cannot be 'post'"),
        (
            {"batch_size": 8},
            "the setting 'batch_size' is not one of this DataLoader; it has num_workers, prefetch_factor",
        ),
    ],
)
def test_impossible_settings_are_named_before_anything_changes(settings: dict[str, Value], message: str) -> None:
    loader = shuffled()
    before = dict(vars(loader))
    with pytest.raises(ValueError, match=message):
        apply_torch_settings(loader, settings)
    assert vars(loader) == before


def test_a_setting_that_this_torch_lacks_is_named() -> None:
    loader = shuffled()
    vars(loader).pop("in_order", None)
    with pytest.raises(ValueError, match="the setting 'in_order' is not one of this DataLoader"):
        apply_torch_settings(loader, {"in_order": False})
    assert "in_order" not in torch_settings(loader, 2)


@pytest.mark.parametrize(
    ("cpus", "workers"),
    [
        (1, (0, 1, 2)),
        (2, (0, 1, 2, 4)),
        (4, (0, 1, 2, 4, 8)),
        (6, (0, 1, 3, 6)),
        (8, (0, 1, 2, 4, 8)),
        (64, (0, 1, 16, 32, 64)),
    ],
)
def test_the_numbers_of_workers_follow_the_cpus(cpus: int, workers: tuple[int, ...]) -> None:
    assert torch_settings(shuffled(), cpus)["num_workers"] == workers


def test_every_value_worth_trying_can_be_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    offered = torch_settings(DoublingLoader(1), 2)
    assert set(offered) == set(TORCH_SETTINGS) - (set() if HAS_IN_ORDER else {"in_order"})
    for name, values in offered.items():
        for value in values:
            loader = apply_torch_settings(DoublingLoader(1), {"num_workers": 2, name: value})
            assert given_torch_settings(loader)[name] == value


def test_memory_is_pinned_only_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "pin_memory" not in torch_settings(shuffled(), 2)


@pytest.mark.parametrize(
    ("loader", "workers"),
    [
        (DataLoader(Stream(), BATCH), (0, 1)),
        (DataLoader(Stream(), BATCH, num_workers=1), (0, 1)),
        (DataLoader(Stream(), BATCH, num_workers=2), (0, 1, 2)),
        (DataLoader(Stream(), BATCH, worker_init_fn=divide_stream), (0, 1, 2)),
        (DataLoader(DividedStream(), BATCH), (0, 1, 2)),
        (DataLoader(InheritedStream(), BATCH), (0, 1, 2)),
    ],
    ids=["undivided", "one worker", "two workers", "worker_init_fn", "divided", "inherited"],
)
def test_a_stream_gets_workers_only_if_they_divide_it(loader: DataLoader[Any], workers: tuple[int, ...]) -> None:
    offered = torch_settings(loader, 2)
    assert offered["num_workers"] == workers
    assert ("in_order" in offered) == (HAS_IN_ORDER and workers[-1] > 1)


@pytest.mark.parametrize("loader", [[1, 2], iter([1]), (each for each in shuffled()), None])
def test_other_loaders_have_no_settings(loader: Any) -> None:
    assert not is_torch_loader(loader)
    assert torch_settings(loader, 2) == given_torch_settings(loader) == {}


def test_a_loader_that_has_started_its_workers_cannot_be_changed() -> None:
    loader = EagerLoader(Squares(), BATCH)
    assert torch_settings(loader, 2) == {}
    with pytest.raises(ValueError, match="'num_workers' comes too late: EagerLoader starts its workers"):
        apply_torch_settings(loader, {"num_workers": 1})


def task(**settings: Value) -> Task:
    return dataclasses.replace(TASK, settings=settings)


def test_settings_that_a_function_does_not_ask_for_are_applied_to_its_loader() -> None:
    def load(batch_size: int, workers: int, prefetch_factor: int = 2) -> DataLoader[Any]:
        asked.append(prefetch_factor)
        return DataLoader(Squares(), batch_size, num_workers=workers, prefetch_factor=prefetch_factor)

    asked: list[int] = []
    loader: Any = open_loader(load, task(workers=1, prefetch_factor=8, persistent_workers=True))
    assert asked == [8]
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (1, 8, True)
    assert values_of(loader) == values_of(DataLoader(Squares(), BATCH))
    with pytest.raises(ValueError, match=r"'prefetch' reaches nothing: .*load has no .*, and returned a DataLoader"):
        open_loader(load, task(num_workers=1, prefetch=8))


def test_a_function_of_the_whole_task_reads_what_it_declares_and_leaves_the_rest_to_its_loader() -> None:
    def load(task: Task) -> DataLoader[Any]:
        return DataLoader(Squares(), BATCH, num_workers=int(task.settings.get("num_workers") or 0) + 1)

    load.settings = {"num_workers": (0, 1)}  # type: ignore[attr-defined]
    loader: Any = open_loader(load, task(num_workers=1, prefetch_factor=8))
    assert (loader.num_workers, loader.prefetch_factor) == (2, 8)
