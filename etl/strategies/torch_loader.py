"""Settings of a torch DataLoader that need no code of its user. Nothing is imported unless there is a DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import Any

from etl.strategies.settings import PREFETCH_FACTOR, Value

TORCH_SETTINGS = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "in_order", "sharing_strategy")
PREFETCH_FACTORS = (2, 4, 8)
# Up to this many CPUs, twice as many workers may be worth it: some of them wait for the disk.
MAX_CPUS_TO_DOUBLE = 4


def is_torch_loader(loader: object) -> bool:
    """Return True if `loader` is a DataLoader of torch, or of a subclass."""
    return isinstance(loader, getattr(sys.modules.get("torch.utils.data"), "DataLoader", ()))


def torch_settings(loader: Any, cpus: int) -> dict[str, tuple[Value, ...]]:
    """Return the values worth trying of each setting that `apply_torch_settings` can change.

    It returns nothing for other loaders, and for subclasses that start their workers when they are made. The workers of
    an iterable data set are varied only if they are known to share its records: there are several already, or the data
    set or `worker_init_fn` calls `get_worker_info`.
    """
    if not is_torch_loader(loader) or _has_started(loader):
        return {}
    torch = sys.modules["torch"]
    workers = _worker_counts(cpus)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        # Each worker may end with an incomplete batch. A comparison allows at least as many of them as there are CPUs.
        workers = tuple(each for each in workers if each <= (cpus if _is_divided(loader) else 1))
    found: dict[str, tuple[Value, ...]] = {
        "num_workers": workers,
        "prefetch_factor": PREFETCH_FACTORS,
        "persistent_workers": (False, True),
    }
    if torch.cuda.is_available():
        found["pin_memory"] = (False, True)
    if hasattr(loader, "in_order") and workers[-1] > 1:
        found["in_order"] = (True, False)
    strategies = sorted(torch.multiprocessing.get_all_sharing_strategies())
    if len(strategies) > 1:
        found["sharing_strategy"] = tuple(strategies)
    return found


def given_torch_settings(loader: Any) -> dict[str, Value]:
    """Return the present values of the settings of a DataLoader; nothing for other loaders."""
    if not is_torch_loader(loader):
        return {}
    found: dict[str, Value] = {
        "num_workers": int(loader.num_workers),
        "prefetch_factor": None if loader.prefetch_factor is None else int(loader.prefetch_factor),
        "persistent_workers": bool(loader.persistent_workers),
        "pin_memory": bool(loader.pin_memory),
    }
    if hasattr(loader, "in_order"):
        found["in_order"] = bool(loader.in_order)
    return {**found, "sharing_strategy": sys.modules["torch"].multiprocessing.get_sharing_strategy()}


def apply_torch_settings(loader: Any, settings: Mapping[str, Value]) -> Any:
    """Return `loader`, a DataLoader, with these settings, by the names of `TORCH_SETTINGS`, before its first epoch.

    All else stays as it is. As torch demands, without workers nothing is prefetched, no worker is kept, and there is no
    timeout. Raises `ValueError` if a setting is unknown or has an impossible value, or the loader cannot be changed any
    more.
    """
    if not settings:
        return loader
    _check(loader, settings)
    values: dict[str, Any] = {**given_torch_settings(loader), **settings}
    strategy = values.pop("sharing_strategy")
    if not values["num_workers"]:
        values.update(prefetch_factor=None, persistent_workers=False, timeout=0)
    elif values["prefetch_factor"] is None:
        values["prefetch_factor"] = PREFETCH_FACTOR
    if "sharing_strategy" in settings:
        sys.modules["torch"].multiprocessing.set_sharing_strategy(strategy)
        values["worker_init_fn"] = _SharingStrategy(str(strategy), loader.worker_init_fn)
    # A new loader would lose what a subclass adds to the arguments of DataLoader, so this one is changed. It reads
    # these attributes whenever it makes an iterator. Its own __setattr__ refuses `persistent_workers`.
    for name, value in {**values, "_iterator": None}.items():
        object.__setattr__(loader, name, value)
    return loader


@contextmanager
def kept_sharing_strategy() -> Iterator[None]:
    """Restore how this process shares tensors at the end, which `apply_torch_settings` may change."""
    shared = sys.modules.get("torch.multiprocessing")
    if shared is None:  # then a loader that imports torch is the first one to change anything
        yield
        return
    before = shared.get_sharing_strategy()
    try:
        yield
    finally:
        shared.set_sharing_strategy(before)


def _check(loader: Any, settings: Mapping[str, Value]) -> None:
    """Raise `ValueError` if `settings` cannot be applied to `loader`."""
    if _has_started(loader):
        raise ValueError(
            f"the setting {next(iter(settings))!r} comes too late: {type(loader).__name__} starts its workers when it "
            "is made; give the function a parameter of that name"
        )
    present = given_torch_settings(loader)
    strategies = sys.modules["torch"].multiprocessing.get_all_sharing_strategies()
    allowed: dict[str, Callable[[Value], bool]] = {
        "num_workers": lambda value: type(value) is int and value >= 0,
        "prefetch_factor": lambda value: value is None or (type(value) is int and value > 0),
        "sharing_strategy": lambda value: value in strategies,
    }
    for name, value in settings.items():
        if name not in present:
            raise ValueError(f"the setting {name!r} is not one of this DataLoader; it has {', '.join(present)}")
        if not (allowed[name](value) if name in allowed else isinstance(value, bool)):
            raise ValueError(f"the setting {name!r} of a DataLoader cannot be {value!r}")


class _SharingStrategy:
    """A `worker_init_fn` that sets how tensors are shared in workers that are not forked, then calls the user's."""

    def __init__(self, strategy: str, then: Callable[[int], None] | None) -> None:
        self._strategy = strategy
        self._then: Callable[[int], None] | None = then._then if isinstance(then, _SharingStrategy) else then

    def __call__(self, worker: int) -> None:
        sys.modules["torch"].multiprocessing.set_sharing_strategy(self._strategy)  # torch's code calls this
        if self._then is not None:
            self._then(worker)


def _worker_counts(cpus: int) -> tuple[int, ...]:
    """Return numbers of workers worth trying on `cpus` CPUs, at most five."""
    doubled = [2 * cpus] if cpus <= MAX_CPUS_TO_DOUBLE else []
    return tuple(sorted({0, 1, cpus // 4, cpus // 2, cpus, *doubled}))


def _has_started(loader: Any) -> bool:
    """Return True if `loader` holds an iterator of its own, beside the one that DataLoader keeps for its next epoch."""
    iterator = sys.modules["torch.utils.data"].dataloader._BaseDataLoaderIter
    return any(isinstance(value, iterator) for name, value in vars(loader).items() if name != "_iterator")


def _is_divided(loader: Any) -> bool:
    """Return True if the workers of an iterable data set are known to share its records.

    Otherwise each of them would yield all records.
    """
    if loader.num_workers > 1:
        return True
    return any("get_worker_info" in _names(code) for code in _codes(loader))


def _codes(loader: Any) -> Iterator[CodeType]:
    """Yield the code of the methods of an iterable data set, and of `worker_init_fn`."""
    of_all = sys.modules["torch.utils.data"].IterableDataset.__mro__
    kinds = [each for each in type(loader.dataset).__mro__ if each not in of_all]
    for function in (*(each for kind in kinds for each in vars(kind).values()), loader.worker_init_fn):
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _names(code: CodeType) -> set[str]:
    """Return the names of globals and attributes that `code` uses, and functions in it."""
    inner = (_names(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*inner)
