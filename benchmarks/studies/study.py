"""A study: results that take minutes each, kept in a journal, and shown once all are there."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.console import say_failure, wide_console
from benchmarks.journal import Journal, Key, Kind, Result
from benchmarks.servers import ROOT

FOLDER = ROOT / ".asv" / "studies"
INTERRUPTED = 130


def run_study(
    kind: Kind[Key, Result],
    path: Path,
    header: Mapping[str, Any],
    wanted: Sequence[Key],
    measure: Callable[[Key], Result],
    show: Callable[[dict[Key, Result], Console], None],
    name: Callable[[Key], str] = str,
) -> int:
    """Measure what is missing, show all results, and return the exit code: 2 if the study failed.

    An interrupted study goes on if kind and header are the same, so the header must have all that decides what is
    measured. It does not have the code: name another file after a change of it.

    Parameters
    ----------
    kind, path, header
        As `Journal` takes them.
    wanted : sequence
        Keys of the results, in the order in which they are measured.
    measure : callable
        Returns the result of a key.
    show : callable
        Called with the results by key, and the console.
    name : callable
        Returns what a key is called while it is measured.
    """
    errors = Console(stderr=True)
    errors.print(f"Results are kept in {path}; an interrupted study goes on.", highlight=False, soft_wrap=True)
    try:
        journal = Journal(kind, path, header)
        missing = [each for each in wanted if each not in journal.results]
        took: list[float] = []
        for done, key in enumerate(missing):
            left = f", {(len(missing) - done) * statistics.median(took) / 60:.0f} minutes left" if took else ""
            errors.print(f"{done + 1} of {len(missing)}{left}: {name(key)}", highlight=False)
            started = time.monotonic()
            journal.note(key, measure(key))
            took.append(time.monotonic() - started)
    except (ValueError, RuntimeError, OSError) as error:
        say_failure(error, errors)
        return 2
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command continues from here.", highlight=False)
        return INTERRUPTED
    show({each: journal.results[each] for each in wanted}, wide_console())
    return 0


def study_parser(module: str, documentation: str | None, **counts: int) -> argparse.ArgumentParser:
    """Return a parser with an option for the journal, and one for each of `counts`, with its default."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(documentation or "").partition("\n")[0].replace("%", "%%")
    )
    for name, default in counts.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=whole_number, default=default, metavar="N", help=f"default: {default}")
    folder = FOLDER.relative_to(ROOT)
    parser.add_argument("--samples", type=Path, metavar="FILE", help=f"the journal (default: below {folder})")
    return parser


def whole_number(text: str) -> int:
    """Return the number in `text`, which is at least 0."""
    if (number := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {number}")
    return number
