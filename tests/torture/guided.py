"""Runs as a program: files of one kind, mutated further wherever they have led to new code (libFuzzer, by atheris).

`python guided.py KIND FOLDER OPTION...`, with options of libFuzzer. Ends with another exit code than 0 at the first
fault, having said what it was.
"""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["etl", "presave", "tests.torture.planted"]):
    from tests.torture.mutated_files import INPUTS
    from tests.torture.planted import PLANTED

from tests.torture.attempts import MORE_NBYTES
from tests.torture.harness import die_of_time, limit_memory, limit_time


def main(name: str, folder: Path, *options: str) -> None:
    made = {**INPUTS, **PLANTED}[name](folder)
    seeds = folder / "seeds"
    seeds.mkdir()
    for number, content in enumerate(made.corpus):
        (seeds / str(number)).write_bytes(content)

    def attempt(content: bytes) -> None:
        limit_time(partial(made.attempt, content))
        repaired = made.repair(content)
        if repaired != content:
            limit_time(partial(made.attempt, repaired))

    warnings.simplefilter("ignore")
    # libFuzzer's own limit of time is off: a busy machine makes it a fault.
    atheris.Setup([sys.argv[0], "-timeout=0", f"-artifact_prefix={folder}/", *options, str(seeds)], attempt)
    die_of_time()
    limit_memory(MORE_NBYTES)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
