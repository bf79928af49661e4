"""A profile contains the stacks of every thread and worker process."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from etl.doctor.profiling import check_profile_path, profiled


class KeepsBusy:
    """A stage that holds the GIL."""

    name = "keeps_busy"

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        in_a_worker_process()
        return record


def in_a_worker_process() -> None:
    until = time.perf_counter() + 0.2
    while time.perf_counter() < until:
        pass


def in_a_thread(done: threading.Event) -> None:
    while not done.is_set():
        pass


def test_threads_and_worker_processes_are_in_the_profile(tmp_path: Path) -> None:
    path = tmp_path / "profile.txt"
    records = [{"features": np.zeros(2, np.float32), "label": 0} for _ in range(16)]
    raw = etl.RawIterator(records, etl.Pipeline([KeepsBusy()]), batch_size=4)
    done = threading.Event()
    thread = threading.Thread(target=in_a_thread, args=(done,))
    with etl.AsyncIterator(raw, workers="process", processes=1) as loader, profiled(path):
        thread.start()
        try:
            assert sum(batch.records for batch in loader) == 16
        finally:
            done.set()
            thread.join()
    text = path.read_text()
    assert "in_a_thread" in text
    assert "in_a_worker_process" in text


def test_a_flame_graph_is_an_svg_image(tmp_path: Path) -> None:
    path = tmp_path / "profile.svg"
    with profiled(path):
        for _ in range(8):
            in_a_worker_process()
    assert "<svg" in path.read_text()[:2000]


def test_an_unknown_suffix_and_a_missing_py_spy_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"must end with one of \.svg"):
        check_profile_path(tmp_path / "profile.pdf")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    with pytest.raises(RuntimeError, match="pip install 'fair-etl\\[doctor\\]'"), profiled(tmp_path / "profile.svg"):
        pass
