"""`etl convert STORE STORE`: rewrite a store in another format."""

from __future__ import annotations

import argparse
from pathlib import Path

import presave
from etl.commands.inspect import describe_store, show_store
from etl.commands.output import deliver, output_path, progress_bar, save_json

# Said after Ctrl-C.
INTERRUPTED = "no incomplete file was left, and the same command continues after the last whole shard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, metavar="STORE", help="the store to read")
    parser.add_argument("target", type=Path, metavar="STORE", help="the store to write; must not exist")
    parser.add_argument("--format", choices=presave.formats(), required=True, help="of the new store")
    parser.add_argument("--jobs", type=int, default=2, help="threads (default: 2)")
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="read files that are links, and pickle stores, which run the code that they contain",
    )
    parser.add_argument("--json", type=output_path, metavar="FILE", help="describe the new store in FILE, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Convert the store and describe the new one."""
    with progress_bar(f"writing {arguments.target}", "records") as bar:
        store = presave.convert(
            arguments.source,
            arguments.target,
            format=arguments.format,
            jobs=arguments.jobs,
            trusted=arguments.trusted,
            progress=lambda progress: bar(progress.records, progress.total),
        )
    with store:
        deliver(
            lambda: save_json(arguments.json, describe_store(store.path, store.manifest)),
            show=lambda _: show_store(store.path, store.manifest, []),
        )
    return 0
