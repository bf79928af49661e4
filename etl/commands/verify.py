"""`etl verify STORE`: compare every byte of a store with its manifest; exit code 1 if something has changed."""

from __future__ import annotations

import argparse
from pathlib import Path

import presave
from etl.arguments import printable
from etl.commands.output import deliver, output_path, progress_bar, save_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="STORE")
    parser.add_argument("--trusted", action="store_true", help="read files that are links, wherever they lead")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="write the faults to FILE, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Verify the store and list the faults."""
    with progress_bar(f"reading {arguments.store}", "bytes") as bar:
        faults = presave.verify(arguments.store, bar, trusted=arguments.trusted)

    def show(_: object) -> None:
        for fault in faults:
            print(printable(fault))
        found = f"{len(faults)} faults" if faults else "whole, every byte as written"
        print(f"{printable(str(arguments.store))}: {found}")

    deliver(lambda: save_json(arguments.json, {"store": str(arguments.store), "faults": faults}), show=show)
    return 1 if faults else 0
