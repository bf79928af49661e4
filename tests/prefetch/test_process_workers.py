"""AsyncIterator with worker processes: the same batches, in memory that is shared, and nothing left behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import etl
import presave
from etl.loading import Padding
from etl.stages import ChannelsFirst, Normalise, RandomFlip
from tests.every_strategy import bits
from tests.programs import run_python
from tests.worker_processes import HELD_NBYTES, NOTHING, Made, Workers, make_async


def augmented() -> etl.Pipeline:
    return etl.Pipeline([ChannelsFirst(), RandomFlip(), Normalise()])


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
            assert bits(iterator) == bits(plain)
        for _ in zip(range(2), iterator, strict=False):
            state = iterator.state_dict()
        plain.load_state_dict(state)
        iterator.load_state_dict(state)
        rest = bits(iterator)
        assert len(rest) == 4
        assert rest == bits(plain)
    store.close()


def test_a_shard_has_workers_of_its_own_and_an_epoch_left_early_leaves_nothing_in_the_next() -> None:
    plain = etl.RawIterator(Made(), NOTHING, 4, shuffle=True)
    with make_async(Made(), shuffle=True) as whole, whole.shard(1, 2) as part:
        for _ in range(3):
            for _ in whole:
                break
        assert bits(whole) == bits(plain)
        assert (part.processes, part.threads) == (2, 0)
        assert bits(part) == bits(etl.RawIterator(Made(), NOTHING, 4, shuffle=True).shard(1, 2))


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


def test_records_whose_lengths_are_unknown_and_random_are_loaded_once() -> None:
    class Cropped(Made):
        def __getitem__(self, index: int) -> dict[str, Any]:
            steps = random.randint(1, 50)
            return {"features": np.ones((steps, 2), np.float32), "label": steps}

    with make_async(Cropped(), padding=Padding()) as iterator:
        for _ in range(3):
            batches = list(iterator)
            assert len(batches) == 6
            for batch in batches:
                assert batch.features_mask.sum(axis=1).tolist() == batch.labels.tolist()
                assert batch.features.sum(axis=(1, 2)).tolist() == (2 * batch.labels).tolist()


def test_without_reuse_every_batch_has_memory_of_its_own_that_goes_with_it() -> None:
    with make_async(Workers(32), 4, 1, reuse=False) as iterator:
        list(iterator)
        before = psutil.Process().memory_full_info().shared
        for batch in iterator:
            del batch
        assert psutil.Process().memory_full_info().shared < before + 4 * 4 * HELD_NBYTES


def test_what_cannot_be_pickled_is_refused_where_it_was_passed() -> None:
    with pytest.raises(ValueError, match=r"cannot be sent to worker processes .*open files"):
        etl.AsyncIterator(etl.RawIterator([{"features": threading.Lock()}], NOTHING), workers="process")


STARTING = """
import multiprocessing, os, resource, shutil, signal, sys, tempfile
from multiprocessing import util
import etl

def read(processes=1):
    records = [{"features": [n], "label": n} for n in range(12)]
    options = dict(workers="process", processes=processes, start_method=sys.argv[2])
    with etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 4), 2, **options) as batches:
        assert sum(batch.records for batch in batches) == 12

def daemonic():
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=read, daemon=True)
        child.start()
        child.join()
        assert child.exitcode == 0

def long_temporary_folder():
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = os.path.join(folder, 80 * "t")
        os.mkdir(tempfile.tempdir)
        read()

def tidied_temporary_folder():
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        read()
        shutil.rmtree(util.get_temp_dir())
    read()

def closed_descriptors():
    read()
    os.closerange(3, 256)
    read()

def closed_standard_streams():
    stdout = os.dup(1)
    os.closerange(0, 3)
    sys.stdout = open(stdout, "w")
    read()

def ignored_children():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    read()
    read()
    signal.signal(signal.SIGCHLD, before)

def few_descriptors():
    limit = len(os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    read(2)

if __name__ == "__main__":
    for state in sys.argv[1].split(","):
        tempfile.tempdir = None
        globals()[state]()
        print(state, flush=True)
"""


def run_script(path: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    return run_python(path, *arguments)


@pytest.mark.parametrize(
    ("start_method", "states"),
    [
        ("forkserver", "daemonic,long_temporary_folder,tidied_temporary_folder,ignored_children,closed_descriptors"),
        ("spawn", "ignored_children,closed_descriptors,closed_standard_streams"),
    ],
)
def test_workers_start_whatever_the_state_of_their_parent(tmp_path: Path, start_method: str, states: str) -> None:
    done = run_script(tmp_path / "train.py", STARTING, states, start_method)
    assert (done.stdout.split(), done.stderr, done.returncode) == (states.split(","), "", 0)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"{STARTING}\n    sys.exit(0)", "(OSError: [Errno 24] Too many open files)"),
        (f"import os\nassert os.getppid() == {os.getpid()}\n{STARTING}", "train.py (AssertionError"),
    ],
    ids=["few descriptors", "a script that cannot be imported"],
)
def test_a_worker_that_cannot_start_says_why_and_calls_no_guard_missing(tmp_path: Path, text: str, cause: str) -> None:
    state = "few_descriptors" if "Errno" in cause else "ignored_children"
    done = run_script(tmp_path / "train.py", text, state, "spawn")
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ChildProcessError: a worker process cannot ")
    assert cause in last
    assert "__name__" not in last


@pytest.mark.parametrize(
    ("start_method", "guarded", "end"),
    [
        ("forkserver", False, "list(batches)"),
        ("spawn", True, "list(batches) if __name__ == '__main__' else sys.exit(0)"),
    ],
)
def test_a_missing_guard_is_called_that(tmp_path: Path, start_method: str, guarded: bool, end: str) -> None:
    script = (
        "import sys, etl\n"
        "raw = etl.RawIterator([{'features': [n], 'label': n} for n in range(12)], etl.Pipeline([]))\n"
        f"options = dict(workers='process', processes=2, start_method={start_method!r})\n"
        f"if __name__ == '__main__' or not {guarded}: batches = etl.AsyncIterator(raw, **options)\n"
        f"{end}\n"
    )
    done = run_script(tmp_path / "train.py", script)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ChildProcessError: ")
    assert "cannot import the program's main script" in last
    assert "what it runs must be under if __name__ == '__main__':" in last


def test_a_script_from_standard_input_needs_no_guard() -> None:
    script = """
import etl

class Records:
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"features": [index], "label": index}

with etl.AsyncIterator(etl.RawIterator(Records(), etl.Pipeline([]), 4), workers="process", processes=1) as batches:
    print([int(label) for batch in batches for label in batch.labels])
"""
    command = [sys.executable, "-"]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=180, check=False)
    assert (done.stdout, done.stderr) == (f"{list(range(12))}\n", "")
