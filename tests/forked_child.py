"""A child that is forked from this process, and has only so long for what it does; and the locks that one keeps."""

from __future__ import annotations

import fcntl
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

CHILD_SECONDS = 120


def forked(run: Callable[[], object]) -> int:
    """The exit code of a child that does `run`; minus 14 where it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS)
        try:
            run()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - whatever it is, no further line of the program is run here
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def locks_in_a_fork() -> Iterator[None]:
    """Let another descriptor hold each lock of the block, too, as that of a fork does; waiting for one is an error."""
    flock = fcntl.flock
    copies: list[int] = []

    def copy_and_lock(descriptor: int, operation: int) -> None:
        copies.append(os.dup(descriptor))
        flock(descriptor, operation | fcntl.LOCK_NB)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fcntl, "flock", copy_and_lock)
        try:
            yield
        finally:
            for each in copies:
                os.close(each)
