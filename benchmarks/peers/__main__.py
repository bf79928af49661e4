"""Compare the loaders of other projects with this project's, on the same photographs: `python -m benchmarks.peers`.

Each loader is used as its own documentation says, in an environment of its own below .asv/peers. It is measured only
after a check that it delivers the same images. An interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.console import say_failure, wide_console
from benchmarks.measuring.statistics import MIN_ROUNDS
from benchmarks.peers.comparison import ALL, Comparison, IncompatibleSamples, Samples
from benchmarks.peers.loader import OURS, PEERS, TASKS, Loader, find_loaders
from benchmarks.peers.table import show
from benchmarks.peers.work import make_inputs
from benchmarks.servers import ROOT
from benchmarks.workload import find_photographs

FOLDER = ROOT / ".asv" / "peers"
# The files that affect a metric: a change of any of them begins another run.
CODE_FILES = ("etl", "presave", "benchmarks/peers", "benchmarks/isolated_main.py", "benchmarks/servers.py")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 2 if the call was wrong."""
    options = parse(arguments)
    errors = Console(stderr=True)
    chosen = options.only or PEERS
    interpreters = dict(_interpreter(given) for given in options.python)
    unknown = sorted({*chosen, *interpreters} - {*PEERS, ALL})
    if unknown:
        say_failure(f"no peer is called {', '.join(unknown)}; there are {', '.join(PEERS)}", errors)
        return 2
    loaders = find_loaders(TASKS if options.task == "all" else (options.task,), {OURS, *chosen})
    settings = {
        "photographs": options.photographs,
        "threads": options.threads,
        "batch_size": options.batch_size,
        "python": sorted(options.python),
        "code": digest_of_code(),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        samples = Samples(
            Path(options.json) if options.json else FOLDER / f"samples-{_digest(settings)}.json", settings
        )
    except IncompatibleSamples as error:
        say_failure(error, errors)
        return 2
    errors.print(f"Samples are kept in {samples.path}.", highlight=False)
    try:
        missing = measure(loaders, options, samples, interpreters, errors)
    except KeyboardInterrupt:
        errors.print("Interrupted; the same command continues from here.", highlight=False)
        return 130
    show(loaders, samples, missing, wide_console())
    return 0


def measure(
    loaders: Sequence[Loader],
    options: argparse.Namespace,
    samples: Samples,
    interpreters: Mapping[str, str],
    errors: Console,
) -> dict[str, str]:
    """Measure what `samples` lacks.

    Parameters
    ----------
    loaders : sequence of Loader
        The loaders.
    options : Namespace
        The options of the command line.
    samples : Samples
        The file of samples.
    interpreters : mapping of str to str
        Interpreters by peer, as `Comparison` takes them.
    errors : Console
        Shows the progress.

    Returns
    -------
    The reason for each loader that is left out, by its key.
    """
    with errors.status("making photographs and their pixels") as status:
        inputs = make_inputs(find_photographs(options.photographs), FOLDER / f"photographs-{options.photographs}")
        comparison = Comparison(loaders, inputs, options.batch_size, options.threads, FOLDER, interpreters)

        def show_action(action: str, loader: Loader) -> None:
            status.update(f"{action}: {loader.task}, {loader.name}")
            if not errors.is_terminal:
                errors.print(f"{action}: {loader.task}, {loader.name}", highlight=False)

        return comparison.run(options.rounds, samples, show_action)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rounds",
        type=_above_zero,
        default=MIN_ROUNDS,
        metavar="N",
        help=f"interleaved rounds (default: {MIN_ROUNDS}, the fewest that give a ratio an interval of 95%%)",
    )
    parser.add_argument("--photographs", type=_above_zero, default=2048, metavar="N", help="default: 2048")
    parser.add_argument("--batch-size", type=_above_zero, default=64, metavar="N", help="default: 64")
    parser.add_argument(
        "--threads",
        type=_above_zero,
        default=2,
        metavar="N",
        help="threads or workers, and cores for them (default: 2)",
    )
    parser.add_argument("--task", choices=[*TASKS, "all"], default="all", help="work to compare (default: all)")
    parser.add_argument(
        "--only", type=lambda names: names.split(","), metavar="NAME,NAME", help=f"only some of {', '.join(PEERS)}"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="[NAME=]PYTHON",
        help="use this interpreter for a peer, or for all of them, instead of making an environment",
    )
    parser.add_argument("--json", metavar="FILE", help="the file of samples (default: below .asv/peers)")
    return parser.parse_args(arguments)


def _interpreter(given: str) -> tuple[str, str]:
    name, _, path = given.rpartition("=")
    return name or ALL, path


def digest_of_code() -> str:
    """Return 12 digits that change with the code of the loaders and of the measurement."""
    digest = hashlib.sha256()
    for name in CODE_FILES:
        path = ROOT / name
        for file in sorted(path.rglob("*.*")) if path.is_dir() else [path]:
            if file.suffix in (".py", ".txt"):
                digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _digest(settings: dict[str, Any]) -> str:
    return hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:12]


def _above_zero(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
