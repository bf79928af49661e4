"""Processes that write stores."""

from __future__ import annotations

from collections.abc import Iterator

import joblib
import pytest
from joblib.externals import loky


@pytest.fixture
def _loky() -> Iterator[None]:
    with joblib.parallel_config(backend="loky", n_jobs=2):
        yield
    loky.get_reusable_executor().shutdown(wait=True)
