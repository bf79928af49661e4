"""Runs as a program: writes the store that it is given a path for, slowly, in processes that outlive it when killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import joblib
import numpy as np

import presave

SECONDS_A_RECORD = 0.04
COUNT = 120


class SlowRecords:
    stage, fingerprint, provenance = "resize", "0123", {"source": "photos/"}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(SECONDS_A_RECORD)
        return {"x": np.full(4, index), "y": index}


def main() -> None:
    from tests.torture.slow_writer import SlowRecords as Records  # as a module, for the processes to import

    with joblib.parallel_config(backend="loky"):
        presave.write(Path(sys.argv[1]), Records(), shard_nbytes=10 * 40, jobs=2).close()


if __name__ == "__main__":
    main()
