"""Write the tables of peers in docs/results.md and the README from the committed results.

`python -m benchmarks.peers.documents`. All numbers are computed here from the raw rounds, so anyone can compute them
again, or in another way.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.console import say, say_failure
from benchmarks.measuring.statistics import Interval
from benchmarks.peers.peer_results import RESULTS, PeerResults, RawRow, find_latest
from benchmarks.peers.peer_table import describe_settings
from benchmarks.peers.rows import OURS, PRESAVED, RAW, ROWS, TASKS
from benchmarks.servers import ROOT

BEGIN = "<!-- Tables of peers: written by python -m benchmarks.peers.documents -->"
END = "<!-- End of the tables of peers -->"
HEADINGS = {RAW: "decoded in every epoch", PRESAVED: "kept as pixels, normalised"}
WIDTH = 120


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the tables; return 1 if the documents are to be checked and have others, 2 if there are no results."""
    options = parse(arguments)
    console, errors = Console(), Console(stderr=True)
    latest = [found for task in TASKS if (found := find_latest(task, options.results)) is not None]
    if not latest:
        say_failure(
            f"there are no results in {options.results}; `python -m benchmarks.peers --save` writes them", errors
        )
        return 2
    exit_code = 0
    for name, make in DOCUMENTS.items():
        document = options.root / name
        text = document.read_text()
        try:
            written = replace_tables(text, make(latest))
        except ValueError as error:
            say_failure(f"{name} {error}", errors)
            return 2
        if not options.check:
            document.write_text(written)
            say(f"{name}: tables of {', '.join(each.task for each in latest)}", console)
        elif written != text:
            say_failure(f"{name} has other tables than the results", errors)
            exit_code = 1
    return exit_code


def render(latest: Iterable[PeerResults]) -> str:
    """Return the tables of each task, with what is to be known about its run, as Markdown."""
    return "\n\n".join(part for results in latest for part in _parts(results))


def summarise(latest: Sequence[PeerResults]) -> str:
    """Return one table of all tasks, with the fastest row of each peer, as Markdown."""
    headings = [part for results in latest for part in (HEADINGS[results.task], "of ours")]
    lines = [["loader", *headings], ["---"] * (1 + len(headings))]
    best = [_best_rows(results) for results in latest]
    peers = dict.fromkeys(peer for found in best for peer in found)
    for peer in peers:
        names = {found[peer].name for found in best if peer in found}
        cells = []
        for results, found in zip(latest, best, strict=True):
            row = found.get(peer)
            if row is None:
                cells += ["", ""]
            else:
                ratio = "1" if row.name == OURS else _ratio(results.ratio(row))
                cells += [f"{row.images_per_second:,.0f}", ratio]
        lines.append([min((name.partition(",")[0] for name in names), key=len), *cells])
    measured = _wrapped(
        f"{_describe_run(latest[0])} Images a second of loading alone; of each loader the fastest of its rows in "
        "[all results](docs/results.md#against-other-loaders), divided by this project's with its 95% interval."
    )
    return f"{measured}\n\n{_as_table(lines)}"


def _best_rows(results: PeerResults) -> dict[str, RawRow]:
    """Return the fastest row of each peer that broke no rule, the fastest peer first."""
    peers = {row.name: row.peer for row in ROWS}
    found: dict[str, RawRow] = {}
    allowed = [each for each in results.rows if not each.disqualified]
    for row in sorted(allowed, key=lambda each: -each.images_per_second):
        found.setdefault(peers.get(row.name, row.name), row)
    return found


# What is written into each document.
DOCUMENTS: dict[str, Callable[[Sequence[PeerResults]], str]] = {"docs/results.md": render, "README.md": summarise}


def replace_tables(text: str, tables: str) -> str:
    """Return `text` with `tables` between the two marks.

    Raises
    ------
    ValueError
        If it does not have both marks, once each and in this order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"needs the lines {BEGIN!r} and {END!r}, once each")
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{after}"


def _parts(results: PeerResults) -> list[str]:
    """Return the paragraphs of one task: where it was measured, the table, tuned settings, and what is missing."""
    rows = [each for each in results.rows if not each.disqualified]
    tuned = [each for each in rows if each.is_tuned]
    parts = [_wrapped(_describe_run(results)), _table(results, rows)]
    if tuned:
        chosen = "; ".join(f"{each.name}: {_in_backticks(each)}" for each in tuned)
        parts.append(_wrapped(f"Tuned settings: {chosen}."))
    parts.append(_wrapped(f"Images, against this project's: {_describe_images(rows)}."))
    broken = [f"{_full_name(each)} ({'; '.join(each.disqualified)})" for each in results.rows if each.disqualified]
    absent = [*broken, *(f"{name} ({reason})" for name, reason in results.missing.items())]
    if absent:
        parts.append(_wrapped(f"Not in the table: {'; '.join(absent)}."))
    return parts


def _describe_run(results: PeerResults) -> str:
    machine = results.machine
    processor = f" ({machine['processor']})" if machine.get("processor") else ""
    rounds = max(len(each.rounds) for each in results.rows)
    tuned = "" if results.tune_seconds is None else f", each loader tuned for {results.tune_seconds:g} s"
    return (
        f"Measured on {results.started_at[:10]} with `{results.command}` at commit {results.commit} on "
        f"{results.threads} CPUs{processor}: {results.records:,} photographs, batch {results.batch_size}, "
        f"means of {rounds} rounds{tuned}."
    )


def _table(results: PeerResults, rows: Sequence[RawRow]) -> str:
    """Return the table: the fastest loader first, and its two rows one below the other."""
    is_tuned = any(each.is_tuned for each in rows)
    columns = ["images/s", "of ours", "waiting", "CPU s per 1,000", "peak MB"]
    heading = [HEADINGS[results.task], *(["settings"] if is_tuned else []), *columns]
    lines = [heading, ["---"] * len(heading)]
    fastest = {
        name: max(each.images_per_second for each in rows if each.name == name) for name in {r.name for r in rows}
    }
    shown = ""
    for row in sorted(rows, key=lambda each: (-fastest[each.name], each.name, each.is_tuned)):
        settings = ["tuned" if row.is_tuned else "as documented"] if is_tuned else []
        name, shown = "" if row.name == shown else row.name, row.name
        cells = [
            f"{row.images_per_second:,.0f}",
            "1" if row.name == OURS else _ratio(results.ratio(row)),
            f"{row.waiting_per_second:,.0f}",
            f"{row.cpu_seconds_per_1000:.2f}",
            f"{row.peak_memory_nbytes / 1e6:,.0f}",
        ]
        lines.append([name, *settings, *cells])
    return _as_table(lines)


def _as_table(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratio(ratio: Interval | None) -> str:
    """Return a ratio with its interval; in bold if the loader is faster than this project's."""
    if ratio is None:
        return "n/a"
    if ratio.low is None:
        return f"{ratio.estimate:.2f}"
    shown = f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    return f"**{shown}**" if ratio.low > 1 else shown


def _describe_images(rows: Sequence[RawRow]) -> str:
    """Return how far the images are those of the reference, with the loaders for which that is true."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row.images, {})[row.name] = None
    return "; ".join(f"{images}: {', '.join(names)}" for images, names in found.items())


def _full_name(row: RawRow) -> str:
    return f"{row.name}, {'tuned' if row.is_tuned else 'as documented'}"


def _in_backticks(row: RawRow) -> str:
    return f"`{describe_settings(row)}`" if row.settings else "as documented"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.documents", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="only say whether the documents have these tables")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="the folder of the results")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the folder of README.md")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
