"""A server for tests, whose sessions do what each request says."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STATE: list[int] = []


def prepare(request: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Do what `request` says, and return the answer and the sessions."""
    act(request)
    return {"seed": os.environ["PYTHONHASHSEED"]}, session


@contextmanager
def session(request: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Answer all requests of a session with `act`."""
    try:
        yield act(request), act
    finally:
        STATE.append(-1)


def wait_for_others() -> None:
    """Wait for something that does not come."""
    time.sleep(600)


def act(request: dict[str, Any]) -> dict[str, Any]:
    """Raise, die at once or while answering, exit, hang, print, start a thread, register an exit function, or count."""
    does = request.get("does")
    if does == "raise":
        raise RuntimeError("it is broken")
    if does == "refuse":
        raise ValueError("photographs/3.jpg is no image")
    if does == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if does == "die half way":
        write = os.write
        vars(os)["write"] = lambda file, data: [write(file, data[:50]), os.kill(os.getpid(), signal.SIGKILL)]
    if does == "exit":
        os._exit(3)
    if does == "hang":
        time.sleep(600)
    if does == "wait":
        wait_for_others()
    if does == "thread":
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    if does == "register":
        atexit.register(Path(os.environ["NOTE"]).touch)
    if does == "print":
        print("an answer?", flush=True)
    STATE.append(1)
    return {"state": len(STATE), "pid": os.getpid()}
