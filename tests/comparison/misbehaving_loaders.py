"""Loaders that misbehave, each in one way, and `good`, which does not. Tests copy this module into a folder.

They are written as users write them, without annotations, and are named as the reports name them.
"""
# mypy: ignore-errors
# ruff: noqa: N801, N818, PTH123, SIM115

import csv
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np


class good:
    """Shuffled pairs of arrays, one epoch an iteration."""

    def __init__(self, path, batch_size, seed):
        with open(path) as file:
            rows = list(csv.reader(file))[1:]
        self.features = np.array([row[:-1] for row in rows], np.float32)
        self.labels = np.array(["abc".index(row[-1]) for row in rows])
        self.batch_size = batch_size
        self.random = np.random.default_rng(seed)

    def __len__(self):
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self):
        order = self.random.permutation(len(self.labels))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield self.features[chosen], self.labels[chosen]


class Broken(Exception):
    """An exception that is no usual one."""


class raises_at_once(good):
    def __iter__(self):
        raise Broken("the disk is on fire")  # place: raises_at_once


class raises_in_the_middle(good):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 3:
                load_image("3.jpg")
            yield batch


def load_image(name):
    raise ValueError(f"{name} is no image")  # place: raises_in_the_middle


class raises_without_a_message(good):
    def __iter__(self):
        assert len(self.labels) == 0  # place: raises_without_a_message
        return super().__iter__()


class exits(good):
    def __iter__(self):
        sys.exit("no more")  # place: exits


class ends_the_process(good):
    def __iter__(self):
        os._exit(0)


def yields_nothing():
    yield from ()


def returns_nothing():
    return None


def is_exhausted(path, batch_size, seed):
    return iter(good(path, batch_size, seed))


def never_ends(path, batch_size, seed, epoch):
    loader = good(path, batch_size, seed + epoch)
    while True:
        yield from loader


class loses_records(good):
    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number != 2:
                yield batch


class changes_shapes(good):
    def __iter__(self):
        for number, (features, labels) in enumerate(super().__iter__()):
            yield features[:, : 4 - number % 2], labels


class segfaults(good):
    def __iter__(self):
        yield next(super().__iter__())
        crash()


def crash():
    ctypes.string_at(0)  # place: segfaults


class hangs_when_closed(good):
    def close(self):
        time.sleep(600)  # place: hangs_when_closed


class holds_on(good):
    """A worker in its own session ignores signals and holds every pipe; the loader dies."""

    def __iter__(self):
        yield next(super().__iter__())
        if os.fork() == 0:
            os.setsid()
            for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(each, signal.SIG_IGN)
            SharedMemory(create=True, size=4096, name=f"holds-on-{Path(__file__).parent.name}-{os.getpid()}")
            tempfile.mkdtemp(prefix="holds-on-")
            time.sleep(600)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)


class prints(good):
    def __iter__(self):
        for batch in super().__iter__():
            print('{"answer": {}}')
            os.write(1, b"from a library\n")
            subprocess.run(["echo", "from a process"])
            yield batch


class reads_input(good):
    def __iter__(self):
        input("shall I? ")  # place: reads_input
        return super().__iter__()


class closes_everything(good):
    def __iter__(self):
        os.closerange(3, 1024)
        return super().__iter__()


class moves(good):
    def __iter__(self):
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
        return super().__iter__()


class sets_threads(good):
    def __iter__(self):
        import torch

        torch.set_num_threads(7)
        return super().__iter__()


class needs_its_cpus(good):
    """Fail unless libraries that read this variable when they are loaded, as pyarrow does, would use all CPUs."""

    def __iter__(self):
        program = "import os; print(os.environ['OMP_NUM_THREADS'])"
        threads = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip()
        if not threads == os.environ["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0))):
            raise Broken(f"{threads} threads")
        return super().__iter__()


class leaves_a_worker(good):
    def __iter__(self):
        self.worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # left"])
        return super().__iter__()


class leaves_a_daemon(good):
    """Leave a process that ignores signals, in its own session, whose parent has ended."""

    def __iter__(self):
        program = "import os, signal, time; os.fork() and os._exit(0); signal.signal(15, 1); time.sleep(600)"
        subprocess.run([sys.executable, "-c", program], start_new_session=True)
        return super().__iter__()


class allocates(good):
    def __iter__(self):
        used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        try:
            np.ones(1 << 28)  # place: allocates
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class fails_later(good):
    """Fail in the ninth process: after the try, two checks and the first sample, four may have been taken again."""

    def __iter__(self):
        if count_processes("fails_later") > 8:
            raise Broken("that was too much")  # place: fails_later
        return super().__iter__()


class hangs_in_the_try(good):
    def __iter__(self):
        wait_for_ever()


class hangs_in_a_later_round(good):
    """Hang in the ninth process, as does `fails_later`."""

    def __iter__(self):
        if count_processes("hangs_in_a_later_round") > 8:
            wait_for_ever()
        return super().__iter__()


def wait_for_ever():
    """Say so in a file, and wait, as does a process in another session."""
    if os.fork() == 0:
        os.setsid()
    else:
        Path(__file__).with_name("waits").touch()
    time.sleep(600)


def count_processes(name):
    """Return how many processes have called this with `name`."""
    with Path(__file__).with_name(f"{name}.processes").open("a+") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        file.seek(0)
        return len(set(file))
