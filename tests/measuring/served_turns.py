"""A server for tests, whose arms take as long as each request says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from etl.measuring.same_work import DoneWork
from etl.measuring.turns import OpenedArm


def prepare(_: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """Answer with nothing."""
    return {}, session


@contextmanager
def session(arm: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Do the work with the arm's digest, and take its seconds for each turn, as often as the request says."""

    def turn(request: dict[str, Any]) -> dict[str, Any]:
        if arm.get("breaks"):
            raise RuntimeError("it is broken")
        return {"seconds": arm["seconds"] * request["times"]}

    yield OpenedArm(DoneWork(digest=arm["digest"]), {"wall": arm["seconds"]}, memory=os.getppid()).to_json(), turn
