"""The path of a batch is short: few functions, in few folders (docs/architecture.md)."""

from __future__ import annotations

import re
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import etl
from etl.sources import Record

ROOT = Path(etl.__file__).parents[1]
GUIDE = ROOT / "docs" / "architecture.md"
# Long enough for the threads to have loaded what they may, on any machine: then they wait.
SETTLED_SECONDS = 0.5
MAX_FUNCTIONS, MAX_FOLDER_CHANGES = 18, 8


class Squares:
    """A source in memory."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"features": np.full((3, 8, 8), index % 251, np.uint8), "label": index}


def scale(record: Record) -> Record:
    """A user's stage."""
    return {**record, "features": record["features"] / np.float32(255)}


class Calls:
    """Records the project's functions that are entered, in all threads, while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        # Thread, file and name, in the order of the first call.
        self.entered: dict[tuple[str, Path, str], None] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if self.is_on and event == "call" and path.is_relative_to(ROOT):
            file = path.relative_to(ROOT)
            if file.parts[0] in ("etl", "presave"):
                thread = threading.current_thread().name
                self.entered.setdefault((thread, file, f"{frame.f_code.co_name}:{frame.f_code.co_firstlineno}"))


@pytest.fixture(scope="module")
def calls() -> Calls:
    """Return those of one batch."""
    calls = Calls()
    raw = etl.RawIterator(Squares(), etl.Pipeline([scale]), batch_size=8, shuffle=True)
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        with etl.AsyncIterator(raw, prefetch_size=1, threads=1) as iterator:
            batches = iter(iterator)
            for _ in range(3):
                next(batches)
            time.sleep(SETTLED_SECONDS)
            calls.is_on = True
            next(batches)
            time.sleep(SETTLED_SECONDS)
            calls.is_on = False
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def test_a_batch_enters_few_functions_in_few_folders(calls: Calls) -> None:
    entered = calls.entered
    functions = {(file, name) for _, file, name in entered}
    threads = dict.fromkeys(thread for thread, _, _ in entered)
    assert len(threads) == 2
    folders = [[file.parent for each, file, _ in entered if each == thread] for thread in threads]
    changes = sum(here != there for path in folders for here, there in pairwise(path))
    assert 10 < len(functions) <= MAX_FUNCTIONS, sorted(functions)
    assert changes <= MAX_FOLDER_CHANGES, folders


def test_the_guide_says_how_many() -> None:
    assert f"{MAX_FUNCTIONS} functions of this project are entered for one batch, in {MAX_FOLDER_CHANGES} changes" in (
        " ".join(GUIDE.read_text().split())
    )


def test_the_guide_names_functions_that_are_entered(calls: Calls) -> None:
    entered = {name.split(":")[0] for _, _, name in calls.entered}
    path = GUIDE.read_text().partition("## The path of a record")[2].partition("## The path of a sample")[0]
    named = set(re.findall(r"\b(take|plan_epoch|batches|plan|empty|take_chunk|load|write_into|write_record)\b", path))
    assert len(named) == 9
    assert named <= entered
