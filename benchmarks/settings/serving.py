"""What the process does that settings are tried in.

Its first request is `{"data": ..., "allocator": ...}`. The process that is forked for `{"workload", "setting",
"cpus"}` answers with the memory that it took and what an epoch gave, and takes turns of about `{"seconds": ...}`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import etl
from benchmarks.fork_ready import import_everything
from benchmarks.measuring.process_tree import PeakMemory
from benchmarks.measuring.server import Answer, OpenSession, Request, Turn
from benchmarks.measuring.turns import seconds_of, settle_on
from benchmarks.settings.setting import DEFAULT, Setting
from benchmarks.settings.workloads import WORKLOADS, Workload, warm_up
from benchmarks.workload import Data

# OpenMP's threads of the other side go on spinning for a moment after its turn.
SETTLING_SECONDS = 0.005


def prepare(request: Request) -> tuple[Answer, OpenSession]:
    """Import everything. Raises `RuntimeError` where the allocator was not loaded."""
    _check_allocator(request["allocator"])
    import_everything()
    data = Data.from_json(request["data"])

    @contextmanager
    def open_session(request: Request) -> Iterator[tuple[Answer, Turn]]:
        settle_on(request["cpus"])
        is_one_thread = len(request["cpus"]) == 1
        workload = WORKLOADS[request["workload"]]
        with _turns(workload, Setting.from_json(request["setting"]), data, is_one_thread) as turns:
            yield turns

    return {}, open_session


@contextmanager
def _turns(workload: Workload, setting: Setting, data: Data, is_one_thread: bool) -> Iterator[tuple[Answer, Turn]]:
    warm_up(setting, data, workload.backend)
    before = PeakMemory()
    before.look()
    with (
        etl.runtime.HeapPolicy(setting.heap),
        etl.runtime.ThreadPolicy(setting.threads) if setting.threads else nullcontext(),
        ExitStack() as stack,
    ):
        with PeakMemory() as peak:  # sampling takes time, which turns are not to pay for
            epoch = stack.enter_context(workload.open(setting, data))
            stack.enter_context(etl.runtime.GcPolicy(setting.garbage_collection))
            result = epoch()
        started = time.perf_counter()
        epoch()
        seconds = time.perf_counter() - started

        def turn(request: Request) -> Answer:
            epochs = max(1, round(request["seconds"] / seconds))
            time.sleep(SETTLING_SECONDS)
            etl.runtime.batch_boundary()  # time that was waited is not of the window
            return {"seconds": seconds_of(lambda: [epoch() for _ in range(epochs)], is_one_thread) / epochs}

        yield {"memory": _taken(peak, before, workload.backend), "result": result}, turn


def _taken(peak: PeakMemory, before: PeakMemory, backend: str) -> int:
    """Bytes at the peak, of the device that computes."""
    if backend == "cuda":
        import torch

        return int(torch.cuda.max_memory_allocated())
    return max(1, peak.nbytes - before.nbytes)


def _check_allocator(name: str) -> None:
    # The loader of programs goes on without a library that it does not find.
    if name != DEFAULT and f"lib{name}." not in Path("/proc/self/maps").read_text():
        raise RuntimeError(f"the allocator {name} is not in this process")
