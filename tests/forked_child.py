"""A child that is forked from this process, and has only so long for what it does."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

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
