"""AsyncIterator with worker processes: the same batches, in memory that is shared, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import etl
import presave
from etl.stages import ChannelsFirst, Normalise, RandomFlip
from etl.workers.shared_memory import SharedMemory, SharedView
from etl.workers.shared_object import SharedObject, load_shared

NOTHING = etl.Pipeline([])
LIMIT_SECONDS = 60
HELD_NBYTES = 3 * 64 * 64 * 4


class Made:
    """`count` records of uint8 features with shape (8, 10, 3), told by their number; picklable and small."""

    def __init__(self, count: int = 22) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = np.random.default_rng(index).integers(0, 255, (8, 10, 3), np.uint8)
        return {"features": pixels, "label": index}


class Workers(Made):
    """Records that tell which process has made them, and are large enough for several pages each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.full((3, 64, 64), index, np.float32), "label": os.getpid()}


def augmented() -> etl.Pipeline:
    return etl.Pipeline([ChannelsFirst(), RandomFlip(), Normalise()])


def make_async(records: Any, batch_size: int = 4, prefetch_size: int = 2, **options: Any) -> etl.AsyncIterator:
    iterator = etl.RawIterator(records, NOTHING, batch_size, **options)
    return etl.AsyncIterator(iterator, prefetch_size, workers="process", processes=2)


def workers_of(batches: Iterator[etl.Batch]) -> set[int]:
    """The numbers of the processes that made `batches` of `Workers`."""
    return {int(pid) for batch in batches for pid in batch.labels} - {os.getpid()}


def assert_ended(pids: set[int]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mapped_names(pids: set[int]) -> set[str]:
    """The named shared memory that any of the processes has mapped, which would be left if all were killed."""
    maps = [Path(f"/proc/{pid}/maps") for pid in pids if is_running(pid)]
    return {line.split()[-1] for each in maps for line in each.read_text().splitlines() if " /dev/shm/" in line}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def assert_equal(one: etl.Batch, other: etl.Batch) -> None:
    for mine, theirs in zip(one.arrays(), other.arrays(), strict=True):
        assert mine.dtype == theirs.dtype
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(("strategy", "start_method"), [("raw", "forkserver"), ("presaved", "spawn")])
def test_processes_make_the_bits_of_the_plain_iterator(strategy: str, start_method: str, tmp_path: Path) -> None:
    pipeline = augmented()
    store = presave.write(tmp_path / "store", etl.records(Made(), pipeline.until("channels_first")))

    def make() -> Any:
        options: dict[str, Any] = {"shuffle": True, "seed": 5, "dtype": "bfloat16"}
        if strategy == "raw":
            return etl.RawIterator(Made(), pipeline, 4, **options)
        return etl.PresavedIterator(store, pipeline.after("channels_first"), 4, **options)

    plain = make()
    with etl.AsyncIterator(make(), 2, workers="process", processes=2, start_method=start_method) as iterator:
        for _ in range(2):
            for mine, theirs in zip(iterator, plain, strict=True):
                assert_equal(mine, theirs)
        for _ in zip(range(2), iterator, strict=False):
            state = iterator.state_dict()
        plain.load_state_dict(state)
        iterator.load_state_dict(state)
        rest = list(iterator)
        assert len(rest) == 4
        for mine, theirs in zip(rest, plain, strict=True):
            assert_equal(mine, theirs)
    store.close()


def test_a_shard_has_workers_of_its_own() -> None:
    with make_async(Made(), shuffle=True) as whole, whole.shard(1, 2) as part:
        assert (part.processes, part.threads) == (2, 0)
        for mine, theirs in zip(part, etl.RawIterator(Made(), NOTHING, 4, shuffle=True).shard(1, 2), strict=True):
            assert_equal(mine, theirs)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_stages_of_the_programs_own_script_reach_the_workers(tmp_path: Path, start_method: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import dataclasses, os, etl\n"
        "@dataclasses.dataclass(frozen=True)\n"
        "class Add:\n"
        "    amount: float\n"
        "    name = 'add'\n"
        "    def __call__(self, record):\n"
        "        return {**record, 'features': [each + self.amount for each in record['features']]}\n"
        "def tell(record):\n"
        "    return {**record, 'label': os.getpid()}\n"
        "if __name__ == '__main__':\n"
        "    records = [{'features': [n], 'label': n} for n in range(12)]\n"
        "    raw = etl.RawIterator(records, etl.Pipeline([Add(3.0), tell]), 4)\n"
        f"    options = dict(workers='process', processes=2, start_method={start_method!r})\n"
        "    with etl.AsyncIterator(raw, 2, **options) as batches:\n"
        "        features, labels = zip(*batches)\n"
        "    print(sorted(float(x) for each in features for x in each[:, 0]) == [n + 3.0 for n in range(12)])\n"
        "    print(os.getpid() in {int(x) for each in labels for x in each})\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert (done.stdout.split(), done.stderr) == (["True", "False"], "")


def test_a_script_that_workers_cannot_import_is_told_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import etl\n"
        "records = [{'features': [n], 'label': n} for n in range(12)]\n"
        "list(etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([])), workers='process', processes=2))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ChildProcessError: ")
    assert "what it does must be under if __name__ == '__main__':" in last


def test_batches_are_the_memory_that_workers_wrote_and_keep_their_values() -> None:
    with make_async(Workers(64), 4, 1) as iterator:
        held = list(iterator)
        assert [batch.features[:, 0, 0, 0].tolist() for batch in held] == [
            [first, first + 1, first + 2, first + 3] for first in range(0, 64, 4)
        ]
        assert os.getpid() not in {int(pid) for batch in held[1:] for pid in batch.labels}
        places = {batch.features.ctypes.data for batch in held}
        assert len(places) == 16
        resident = psutil.Process().memory_full_info().shared
        del held
        used: set[int] = set()
        for batch in iterator:
            used.add(batch.features.ctypes.data)
            del batch
        assert len(used) <= 4
        assert psutil.Process().memory_full_info().shared < resident - 8 * 4 * HELD_NBYTES


def test_without_reuse_every_batch_has_memory_of_its_own_that_goes_with_it() -> None:
    with make_async(Workers(32), 4, 1, reuse=False) as iterator:
        list(iterator)
        before = psutil.Process().memory_full_info().shared
        for batch in iterator:
            del batch
        assert psutil.Process().memory_full_info().shared < before + 4 * 4 * HELD_NBYTES


def test_epochs_leave_no_descriptor_and_use_no_named_memory() -> None:
    with make_async(Workers(16)) as iterator:
        list(iterator)
        gc.collect()
        before = descriptors()
        for epoch in range(20):
            for _ in iterator:
                if epoch % 3 == 0:
                    break
        assert descriptors() <= before
        pids = workers_of(iterator)
        assert len(pids) <= 2
        assert mapped_names(pids) == set()
    assert_ended(pids)


@pytest.mark.parametrize("ending", ["close", "del", "collected"])
def test_workers_end_with_the_iterator(ending: str) -> None:
    gc.collect()
    before = descriptors()
    iterator: Any = make_async(Workers(16))
    pids = workers_of(iterator)
    assert pids
    assert all(map(is_running, pids))
    running = iter(iterator)
    next(running)
    if ending == "close":
        iterator.close()
        with pytest.raises(RuntimeError, match="this epoch was ended"):
            next(running)
    elif ending == "collected":
        cycle = [iterator]
        cycle.append(cycle)  # type: ignore[arg-type]
        del cycle
    del iterator, running
    gc.collect()
    assert not any(map(is_running, pids))
    # The server process that forks workers is kept for others; its pipes are two.
    assert descriptors() <= before + 2


def test_an_epoch_left_early_leaves_nothing_in_the_next() -> None:
    with make_async(Made(), shuffle=True) as iterator:
        plain = etl.RawIterator(Made(), NOTHING, 4, shuffle=True)
        for _ in range(3):
            for _ in iterator:
                break
        for mine, theirs in zip(iterator, plain, strict=True):
            assert_equal(mine, theirs)


ENDLESS = """
import ctypes, os, sys, time, etl
class Records(list):
    def __getitem__(self, index):
        if index > 20:
            HANG
        return {"features": [float(index)], "label": os.getpid()}
if __name__ == "__main__":
    iterator = etl.AsyncIterator(etl.RawIterator(Records(range(100000)), etl.Pipeline([]), 4), workers="process",
                                 processes=2)
    batches = iter(iterator)
    pids = {int(pid) for _ in range(4) for pid in next(batches).labels} - {os.getpid()}
    print(*pids, flush=True)
    END
"""


def start(tmp_path: Path, hang: str, end: str) -> tuple[subprocess.Popen[str], set[int]]:
    script = tmp_path / "train.py"
    script.write_text(ENDLESS.replace("HANG", hang).replace("END", end))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    pids = {int(pid) for pid in process.stdout.readline().split()}
    assert pids
    return process, pids | {child.pid for child in psutil.Process(process.pid).children(recursive=True)}


@pytest.mark.parametrize("end", ["", "os._exit(0)"])
def test_workers_end_with_the_interpreter(tmp_path: Path, end: str) -> None:
    process, pids = start(tmp_path, "time.sleep(0.01)", end)
    _, noise = process.communicate(timeout=LIMIT_SECONDS)
    assert (process.returncode, noise) == (0, "")
    assert_ended(pids)


def test_workers_end_with_a_program_that_is_killed_even_while_one_holds_the_interpreters_lock(tmp_path: Path) -> None:
    hang = "ctypes.PyDLL(None).sleep(600)"
    process, pids = start(tmp_path, hang, "time.sleep(600)")
    assert mapped_names(pids) == set()
    process.kill()
    process.communicate(timeout=LIMIT_SECONDS)
    assert_ended(pids)


def test_an_interrupt_ends_the_program_with_its_own_traceback_alone(tmp_path: Path) -> None:
    process, pids = start(tmp_path, "time.sleep(0.01)", "[None for batch in batches]")
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, noise = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == -signal.SIGINT
    assert noise.startswith("Traceback")
    assert noise.count("Traceback") == 1
    assert noise.rstrip().endswith("KeyboardInterrupt")
    assert "etl-worker" not in noise
    assert_ended(pids)


def test_an_iterator_of_the_callers_own_is_refused_with_the_reason() -> None:
    class Own:
        async_supported = True
        epoch = 0

        def state_dict(self) -> dict[str, Any]:
            return {}

    own: Any = Own()
    with pytest.raises(ValueError, match=r"workers='process' needs an iterator .* Own makes them itself.*'thread'"):
        etl.AsyncIterator(own, workers="process")


def test_what_cannot_be_pickled_is_refused_where_it_was_passed() -> None:
    refused = pytest.raises(ValueError, match=r"cannot be sent to worker processes .*open files")
    with refused:
        etl.AsyncIterator(etl.RawIterator([{"features": threading.Lock()}], NOTHING), workers="process")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start_method": "fork"}, "start_method must be 'forkserver' or 'spawn', not 'fork'"),
        ({"processes": 0}, "processes must be a whole number of at least 1, not 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        etl.AsyncIterator(etl.RawIterator(Made(), NOTHING), workers="process", **options)


def test_large_arrays_of_a_source_are_shared_and_copied_where_they_are_changed() -> None:
    array = np.arange(100_000.0)
    shared = SharedObject({"large": array, "small": np.arange(3)})
    assert len(shared.parts) == 2
    first, second = (load_shared(shared.fd, shared.parts) for _ in range(2))
    first["large"][7] = -1
    assert first["large"][7] == -1
    assert np.array_equal(second["large"], array)
    assert np.array_equal(second["small"], [0, 1, 2])
    shared.close()


def test_shared_memory_is_seen_where_it_is_and_used_again() -> None:
    memory = SharedMemory("test")
    with contextlib.closing(memory):
        view = SharedView(memory.fd)
        kept = [memory.allocate(400_000).view(np.float32).reshape(-1, 10) for _ in range(9)]
        for number, array in enumerate(kept):
            array[...] = number
            assert (view.array(memory.place(array[3:5])) == number).all()
            assert view.array(memory.place(array[3:5])).shape == (2, 10)
        before = os.fstat(memory.fd).st_blocks
        addresses = {array.ctypes.data for array in kept}
        del array, kept
        assert os.fstat(memory.fd).st_blocks * 512 < before * 512 - 8 * 390_000
        again = memory.allocate(400_000)
        assert again.ctypes.data in addresses
        assert not again.any()
        with pytest.raises(ValueError, match="not in this shared memory"):
            memory.place(np.zeros(3))
