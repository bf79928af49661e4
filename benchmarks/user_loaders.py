"""User loaders, named by FAIR_ETL_STRATEGIES: found, prepared and opened by the commit under test."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import etl
from benchmarks.cells import STRATEGIES_VARIABLE, Cell
from benchmarks.measuring.page_cache import read_into_page_cache
from benchmarks.measuring.processes import MeasurementError
from benchmarks.measuring.server import Answer, OpenSession, Request, every_answer
from benchmarks.servers import ROOT, import_everything, start_server
from benchmarks.workload import SEED, Data, PreparedLoader, make_pipeline, open_source, unsupported_reason


def check_functions(functions: Mapping[str, str]) -> None:
    """Import the user's loaders in a process of their own.

    Raises
    ------
    ValueError
        If one of them cannot be found, unless the commit under test could not call it anyway.
    """
    named = [function for name, function in functions.items() if not unsupported_reason(Cell(name))]
    if named:
        with start_server("a strategy", "user_loaders:find", {"functions": named}) as server:
            try:
                server.wait_until_ready()
            except MeasurementError as error:
                raise ValueError(error.reason) from None


def find(request: Request) -> tuple[Answer, OpenSession]:
    """Find the functions in `request`. There are no sessions."""
    for function in request["functions"]:
        find_function(function)
    return {}, every_answer(lambda _: {})


def find_function(name: str) -> Callable[..., Any]:
    """Return the function "package.module:function": of an installed package, or of the folder with asv.conf.json.

    Raises
    ------
    ValueError
        If there is no such function, or it is not callable. The message quotes whatever the module raised.
    """
    # After the packages to be measured, which are installed and imported: the working tree's are in that folder.
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    module, _, function = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for each in function.split("."):
            found = getattr(found, each)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{STRATEGIES_VARIABLE}: {name}: {type(error).__name__}: {error}; give package.module:function, found from "
            "the folder of asv.conf.json, on ASV_PYTHONPATH, or in asv's environment"
        ) from error
    if not callable(found):
        raise ValueError(f"{STRATEGIES_VARIABLE}: {name} is a {type(found).__name__}, which is not callable")
    function_found: Callable[..., Any] = found
    return function_found


def prepare_loaders(functions: Mapping[str, str], data: Data, folder: Path, cpus: Sequence[int]) -> None:
    """Run what prepares the user's loaders, once, and add the loaders to `data` with its cost."""
    for name, function in functions.items():
        loader = data.loaders[name] = PreparedLoader(function, str(folder / f"loader-{name}"))
        Path(loader.folder).mkdir()
        try:
            with start_server(name, "user_loaders:prepare", {"data": data.to_json(), "cpus": list(cpus)}) as server:
                data.loaders[name] = PreparedLoader.from_json(server.sample({"strategy": name}))
        except MeasurementError as error:  # reported by the metrics of this loader; others are measured
            data.loaders[name] = replace(loader, failure=error.text)


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything. A session names a strategy, and is answered with its `PreparedLoader`, prepared."""
    os.sched_setaffinity(0, request["cpus"])
    import_everything()
    data = Data.from_json(request["data"])
    return {}, every_answer(lambda asked: _prepare(asked["strategy"], data).to_json())


def _prepare(strategy: str, data: Data) -> PreparedLoader:
    loader = data.loaders[strategy]
    prepares = etl.strategies.find_prepare(find_function(loader.function))
    if prepares is None:
        return loader
    read_into_page_cache(_files_below(data.photographs))
    task = make_task(Cell(strategy), data)
    started = time.perf_counter()
    prepares(task)
    seconds = time.perf_counter() - started
    nbytes = sum(path.stat().st_size for path in _files_below(loader.folder))
    return replace(loader, prepare_seconds=seconds, nbytes=nbytes)


def _files_below(folder: str) -> Iterable[Path]:
    return (path for path in Path(folder).rglob("*") if path.is_file())


def open_loader(cell: Cell, data: Data) -> Iterable[Any]:
    """Return the user's loader that is the cell's strategy: an iterable of batches, one epoch an iteration.

    It is to be closed, if it has `close`.
    """
    loader = data.loaders[cell.strategy]
    if loader.failure:
        raise RuntimeError(f"the data of {cell.strategy!r} were not prepared:\n{loader.failure}")
    opened: Iterable[Any] = etl.strategies.open_loader(find_function(loader.function), make_task(cell, data))
    return opened


def make_task(cell: Cell, data: Data) -> etl.Task:
    """Return the task of a user's loader: the photographs that all strategies load, on the CPUs of this process.

    How it uses the CPUs beside compute is its own affair.
    """
    cpus = len(os.sched_getaffinity(0))
    return etl.Task(
        batch_size=cell.batch_size,
        dtype=cell.dtype,
        seed=SEED,
        epoch=0,
        records=data.records,
        cpus=cpus,
        workers=cpus,
        folder=data.loaders[cell.strategy].folder,
        open_path=lambda: data.photographs,
        open_source=lambda: open_source(data),
        open_pipeline=lambda: make_pipeline(data),
    )
