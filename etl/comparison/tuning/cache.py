"""Results of tuning that are kept, so that the same question is answered at once when it is asked again."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from etl.comparison.judge.make_report import describe_machine, describe_versions
from etl.comparison.request.candidates import Candidate
from etl.comparison.run.workload import Workload
from etl.comparison.tuning.space import usable_formats
from etl.comparison.tuning.tuning_results import TunedStrategy
from etl.functions import find_function, is_carried, is_function_name
from etl.sources.identity import stamp
from presave.files import write_atomically

# Increase it if the search changes, so that its earlier results are not used.
VERSION = 4
# Settings of a comparison that have no effect on which configuration is the best.
WITHOUT_EFFECT = (
    "strategies",
    "formats",
    "budget_seconds",
    "rounds",
    "etl_alone_rounds",
    "records",
    "configured",
    "pythons",
    "source",
    "source_name",
    "search",
    "unchecked",
    "tuning_cache",
    "retune",
    "what_if",
    "check_epoch",
    "stages",
)
# Files whose size and time of modification identify a source: so many at most, evenly chosen.
STAT_FILES = 1_000


class Cache:
    """Results of tuning in a folder: one file for each strategy, machine, source, model and set of versions.

    Parameters
    ----------
    folder : str or None
        The folder; None for `fair-etl/tuning` in the user's cache folder, and "" to keep nothing.
    """

    def __init__(self, folder: str | None) -> None:
        kept = user_cache_path("fair-etl") / "tuning" if folder is None else folder
        self._folder = Path(kept) if kept else None

    def path(self, workload: Workload, candidate: Candidate, affinity: list[int]) -> Path | None:
        """Return the file for the result of `candidate`; None if it is not kept."""
        identity = None if self._folder is None else _identity(workload, candidate, affinity)
        if self._folder is None or identity is None:
            return None
        text = json.dumps(identity, sort_keys=True, default=str)
        return self._folder / f"{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}.json"

    def load(self, path: Path | None) -> TunedStrategy | None:
        """Return the result in the file; None if there is none, or it cannot be read."""
        if path is None:
            return None
        try:
            return TunedStrategy.from_json(json.loads(path.read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def save(self, path: Path | None, result: TunedStrategy) -> None:
        """Keep a result. A cache that cannot be written is not an error: the next run tunes again."""
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(result.to_json(), indent=1).encode())
        except OSError:
            return


def _identity(workload: Workload, candidate: Candidate, affinity: list[int]) -> dict[str, Any] | None:
    """Return all that decides which configuration is the best; None if some of it cannot be known."""
    settings = workload.settings
    functions = [candidate.kind.function, settings.step, settings.model, settings.pipeline, settings.source]
    named = [each for each in functions if each is not None and is_function_name(each)]
    codes = {each: _code(each) for each in named}
    if None in codes.values():
        return None
    python = settings.pythons.get(workload.name(candidate))
    machine = describe_machine()
    machine.pop("frequency_mhz")
    return {
        "version": VERSION,
        "machine": machine,
        "cpus": len(affinity),
        "versions": describe_versions(),
        "formats": list(usable_formats()),  # of stores, which need packages that are not among the versions
        "settings": {name: value for name, value in settings.to_json().items() if name not in WITHOUT_EFFECT},
        "source": str(Path(settings.source).absolute()),
        "files": _files(workload),
        "records": len(workload.source),
        "strategy": str(candidate.kind.function or candidate.strategy),
        "given": candidate.to_json(),
        "python": None if python is None else _python(python),
        "functions": codes,
    }


def _code(name: str) -> str | None:
    """Return the digest of the file that holds a user's function; None if it was carried, or has no file."""
    if is_carried(name):
        return None
    try:
        file = inspect.getsourcefile(inspect.unwrap(find_function(name, "--strategies")))
        return None if file is None else hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except (TypeError, OSError, ValueError):
        return None


def _python(interpreter: str) -> list[str]:
    """Return what identifies another Python and its packages: the names of their metadata have their versions."""
    found = shutil.which(interpreter)
    if found is None:
        return [interpreter]
    path = Path(found).absolute()  # of a virtual environment it is a link, which is not followed
    packages = path.parent.parent.glob("lib*/python*/*-packages/*-info")
    return [str(path), stamp(path.stat()), *sorted(map(str, packages))]


def _files(workload: Workload) -> list[tuple[str, int, int]]:
    files = workload.source_files()
    chosen = [(each, each.stat()) for each in files[:: max(1, -(-len(files) // STAT_FILES))]]
    # Not the time of change of the inode: links to the file, which a comparison makes, change that.
    return [(str(each), status.st_size, status.st_mtime_ns) for each, status in chosen]
