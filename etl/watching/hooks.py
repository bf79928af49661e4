"""Finds the loops of a script that knows nothing of them: torch DataLoaders and iterators of etl, once they load."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from etl.watching.session import Session
from etl.watching.stacks import BOUNDARIES

TORCH = "torch.utils.data.dataloader"
# Classes of etl whose `__iter__` begins an epoch, by module.
ITERATORS = {
    "etl.iterators.indexed": "IndexedIterator",
    "etl.iterators.asynchronous": "AsyncIterator",
    "etl.iterators.device": "DeviceIterator",
    "etl.iterators.user_loader": "UserLoaderIterator",
}


def watch_all(session: Session) -> None:
    """Let `session` time every loop of this process from now on."""

    def change(module: ModuleType) -> None:
        if module.__name__ == TORCH:
            _watch_torch(module, session)
        else:
            _watch_iterators(getattr(module, ITERATORS[module.__name__]), session)

    names = {TORCH, *ITERATORS}
    for name in names & sys.modules.keys():
        change(sys.modules[name])
    sys.meta_path.insert(0, _AfterImport(names - sys.modules.keys(), change))


class _AfterImport(MetaPathFinder):
    """Calls a function with each of some modules as soon as it is imported."""

    def __init__(self, names: set[str], change: Callable[[ModuleType], None]) -> None:
        self._names = names
        self._change = change

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:  # noqa: ARG002
        if name not in self._names:
            return None
        self._names.discard(name)  # before it is looked for by the finders after this one
        spec = importlib.util.find_spec(name)
        loader: Any = None if spec is None else spec.loader

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # this function, which is in the way of the loader's own
            loader.exec_module(module)
            self._change(module)

        if loader is not None:
            loader.exec_module = exec_module
        return spec


def _watch_torch(module: Any, session: Session) -> None:
    loader, epoch, of_workers = module.DataLoader, module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter
    make, prepare, take, reset = loader._get_iterator, epoch.__init__, epoch.__next__, of_workers._reset

    def _get_iterator(self: Any) -> Any:
        if not session.is_here or session.clock.is_waiting:  # it is read by a loader around it, perhaps in a thread
            return make(self)
        times = session.times_of(self)
        with contextlib.suppress(Exception):  # a user's class may raise anything
            # Those of Ultralytics and timm take the batches of all epochs from one iterator, whose sampler is endless.
            if type(self).__iter__ is not loader.__iter__ and not hasattr(self._index_sampler, "__len__"):
                times.epoch_length = len(self)
        with session.reports.of(self, times):
            batches = session.clock.start(times, lambda: make(self))
        batches._etl_times = times
        return batches

    def __init__(self: Any, loader: Any) -> None:  # noqa: N807 - called whatever a subclass or a script has replaced
        if session.is_here and not session.clock.is_waiting:
            self._etl_times = session.times_of(loader)
        prepare(self, loader)

    def __next__(self: Any) -> Any:  # noqa: N807
        times = getattr(self, "_etl_times", None) if session.is_here else None
        return take(self) if times is None else session.clock.take(times, lambda: take(self))

    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        times = getattr(self, "_etl_times", None) if session.is_here else None
        if times is None or first_iter:
            reset(self, loader, first_iter)
        else:
            session.clock.start(times, lambda: reset(self, loader, first_iter))

    BOUNDARIES.add(__next__.__code__)
    loader._get_iterator, epoch.__init__ = _get_iterator, __init__
    epoch.__next__, of_workers._reset = __next__, _reset


def _watch_iterators(kind: Any, session: Session) -> None:
    iterate = kind.__iter__
    kind.__iter__ = lambda self: session.epoch(self, iterate)
