"""`etl inspect STORE`: show what a store holds, and which pipeline made it."""

from __future__ import annotations

import argparse
from pathlib import Path

import presave
from etl.commands.output import save_json
from etl.commands.store_facts import describe_store, show_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("store", type=Path, metavar="STORE", help="of any format: only its manifest is read")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the same to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Read the manifest and describe the store."""
    manifest = presave.load_manifest(arguments.store)
    show_store(arguments.store, manifest, [])
    save_json(arguments.json, describe_store(arguments.store, manifest))
    return 0
