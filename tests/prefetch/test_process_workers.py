"""AsyncIterator with worker processes: the same batches, in memory that is shared, and nothing left behind."""

from __future__ import annotations

import os
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
from etl.stages import ChannelsFirst, Normalise, RandomFlip
from tests.worker_processes import HELD_NBYTES, LIMIT_SECONDS, NOTHING, Made, Workers, make_async


def augmented() -> etl.Pipeline:
    return etl.Pipeline([ChannelsFirst(), RandomFlip(), Normalise()])


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
    assert "what it runs must be under if __name__ == '__main__':" in last


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


def test_an_epoch_left_early_leaves_nothing_in_the_next() -> None:
    with make_async(Made(), shuffle=True) as iterator:
        plain = etl.RawIterator(Made(), NOTHING, 4, shuffle=True)
        for _ in range(3):
            for _ in iterator:
                break
        for mine, theirs in zip(iterator, plain, strict=True):
            assert_equal(mine, theirs)


def test_an_iterator_of_the_callers_own_is_refused_with_the_reason() -> None:
    class Own:
        async_supported = True
        epoch = 0

        def state_dict(self) -> dict[str, Any]:
            return {}

    own: Any = Own()
    with pytest.raises(
        ValueError, match=r"workers='process' needs an iterator .* Own makes whole batches itself.*'thread'"
    ):
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


STARTING = """
import multiprocessing, os, resource, shutil, signal, sys, tempfile
from multiprocessing import util
import etl

def read():
    records = [{"features": [n], "label": n} for n in range(12)]
    options = dict(workers="process", processes=2, start_method=sys.argv[2])
    with etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 4), 2, **options) as batches:
        print(sum(len(batch) for batch in batches), flush=True)

def daemonic():
    for method in ("fork", "spawn"):
        child = multiprocessing.get_context(method).Process(target=read, daemon=True)
        child.start()
        child.join()

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
    os.dup2(1, 9)
    os.closerange(0, 3)
    sys.stdout = open(9, "w")
    read()

def ignored_children():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    read()
    read()

def few_descriptors():
    limit = len(os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    read()

if __name__ == "__main__":
    globals()[sys.argv[1]]()
"""


def run_script(path: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path.write_text(text)
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)


@pytest.mark.parametrize(
    ("state", "start_method", "epochs"),
    [
        ("daemonic", "forkserver", 2),
        ("long_temporary_folder", "forkserver", 1),
        ("tidied_temporary_folder", "forkserver", 2),
        ("closed_descriptors", "forkserver", 2),
        ("closed_descriptors", "spawn", 2),
        ("closed_standard_streams", "spawn", 1),
        ("ignored_children", "forkserver", 2),
        ("ignored_children", "spawn", 2),
    ],
)
def test_workers_start_whatever_the_state_of_their_parent(
    tmp_path: Path, state: str, start_method: str, epochs: int
) -> None:
    done = run_script(tmp_path / "train.py", STARTING, state, start_method)
    assert (done.stdout.split(), done.stderr, done.returncode) == (["12"] * epochs, "", 0)


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


@pytest.mark.parametrize("end", ["list(batches)", "list(batches) if __name__ == '__main__' else sys.exit(0)"])
def test_a_missing_guard_is_called_that_with_new_interpreters_too(tmp_path: Path, end: str) -> None:
    script = (
        "import sys, etl\n"
        "raw = etl.RawIterator([{'features': [n], 'label': n} for n in range(12)], etl.Pipeline([]))\n"
        "def make(): return etl.AsyncIterator(raw, workers='process', processes=2, start_method='spawn')\n"
        f"batches = make() if __name__ == '__main__' or {end == 'list(batches)'} else None\n{end}\n"
    )
    last = run_script(tmp_path / "train.py", script).stderr.strip().splitlines()[-1]
    assert "cannot import the program's main script" in last
    assert "what it runs must be under if __name__ == '__main__':" in last
