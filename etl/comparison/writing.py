"""Presaving as it is paid for: writing a store, and how long that took."""

from __future__ import annotations

import time

from etl.comparison.samples import Written
from etl.comparison.source_files import source_files
from etl.comparison.workload import Workload
from etl.measuring.page_cache import drop_from_page_cache, read_into_page_cache


def write(workload: Workload, format: str, stage: str, jobs: int) -> Written:
    """Write the chosen records after `stage`. Their files are read before or, for a cold comparison, dropped."""
    files = source_files(workload.settings.source, workload.records)
    if workload.settings.cache == "cold":
        drop_from_page_cache(files)
    else:
        read_into_page_cache(files)
    started = time.perf_counter()
    with workload.write(format, stage, jobs) as store:
        seconds = time.perf_counter() - started
        return Written(seconds, store.nbytes, len(store))
