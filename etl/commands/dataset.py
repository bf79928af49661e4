"""`etl dataset DIR`: make the demonstration data, real photographs or real handwritten digits."""

from __future__ import annotations

import argparse
from pathlib import Path

from etl import demonstration
from etl.commands.output import deliver, output_path, progress_bar, save_json, show_facts
from etl.sources import open_source

KINDS = ("photographs", "digits")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="where to write; reused if it holds the same data")
    parser.add_argument("--kind", choices=KINDS, default="photographs", help="default: photographs, an image folder")
    parser.add_argument("--samples", type=int, help="default: 2000 photographs, or all 1797 digits")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal bytes (default: 0)")
    parser.add_argument("--plain", action="store_true", help="digits: plain IDX files instead of gzip")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="describe the data in FILE, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Make the data and describe it."""
    if arguments.kind == "photographs":
        if arguments.plain:
            raise ValueError("--plain is for --kind digits")
        samples = 2000 if arguments.samples is None else arguments.samples
        with progress_bar("making photographs", "photographs") as bar:
            made = demonstration.photographs(arguments.directory, samples, arguments.seed, bar)
    else:
        made = demonstration.digits(arguments.directory, arguments.samples, arguments.seed, not arguments.plain)
    source = open_source(arguments.directory)
    nbytes = sum(each.stat().st_size for each in arguments.directory.rglob("*") if each.is_file())
    facts = [
        ("kind", arguments.kind),
        ("made", "now" if made else "before, reused"),
        ("training records", f"{len(source):,}"),
        ("classes", ", ".join(source.classes or [])),
        ("bytes", f"{nbytes:,}"),
    ]
    content = {"directory": str(arguments.directory), "kind": arguments.kind, "made": made, "records": len(source)}
    deliver(
        lambda: save_json(arguments.json, {**content, "classes": source.classes, "nbytes": nbytes}),
        show=lambda _: show_facts(str(arguments.directory), facts),
    )
    return 0
