"""Work on a Dask cluster, with a profile of its workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import joblib

from etl.commands.output import save_json

CONNECT_SECONDS = 5


@contextmanager
def cluster(address: str, profile: Path | None) -> Iterator[None]:
    """Run joblib's work inside the block on the workers of the Dask scheduler at `address`.

    At the end, even after an error, the statistical profile of each worker is saved to `profile`, unless that is None.

    Raises
    ------
    ValueError
        If Dask is not installed.
    OSError
        If no scheduler or no worker answers at `address`, or the scheduler disappears.
    """
    client = _connect(address)
    started = time.time()
    try:
        with joblib.parallel_config(backend="dask", n_jobs=-1):
            yield
    except CancelledError as error:
        raise OSError(
            f"--scheduler {address}: the scheduler has disappeared; start it and its workers again"
        ) from error
    finally:
        try:
            if profile is not None and client.status == "running":
                _save_profile(client, started, profile)
        finally:
            client.close()


def _connect(address: str) -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ValueError(f"--scheduler needs Dask ({error}): pip install 'fair-etl[cluster]'") from error
    # Dask replaces lost workers; its warnings about them would be mixed with the output of this command.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        raise OSError(
            f"--scheduler {address}: no Dask scheduler answers there ({error}); start one with `dask scheduler` and "
            "give the address that it prints, tcp://HOST:PORT"
        ) from error
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except distributed.TimeoutError as error:
        client.close()
        raise OSError(f"--scheduler {address} has no workers; start some with `dask worker {address}`") from error
    return client


def _save_profile(client: Any, started: float, path: Path) -> None:
    """Save a tree of calls for each worker; a call has a `description`, `count` samples, and the `children` it made."""
    trees = client.profile(start=started, merge_workers=False)
    content = {"seconds": time.time() - started, "workers": trees}
    save_json(path, content)
