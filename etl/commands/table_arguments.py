"""The arguments of commands that read any source: folders, tar and CSV files."""

from __future__ import annotations

import argparse
from typing import Any


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument(
        "--follow-links", action="store_true", help="read what links in the folder lead to, wherever that is"
    )
    parser.add_argument(
        "--allow-empty", action="store_true", help="accept class folders in which there is nothing to read"
    )
    parser.add_argument(
        "--label",
        metavar="COLUMN",
        help="of CSV files and sequences: name of the label's column, with --no-header its number; of tar files: the "
        "member with the label, such as cls or json:key",
    )
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="names of classes in the order of their numbers")
    tables = parser.add_argument_group("for CSV files and sequences of them")
    tables.add_argument("--features", nargs="+", metavar="COLUMN", help="other columns to take (default: all)")
    tables.add_argument("--no-header", action="store_true", help="the first line is a row; columns are numbered from 0")
    tables.add_argument("--delimiter", metavar="CHARACTER", help="default: a comma, in .tsv files a tab")
    tables.add_argument("--regression", action="store_true", help="labels are targets, not numbers of classes")
    tables.add_argument("--missing", type=float, metavar="VALUE", help="stands for empty values (default: an error)")


def table_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the source that were given. Raises `ValueError` for columns that are no numbers where
    they must be.
    """
    columns: dict[str, Any] = {"label": arguments.label, "features": arguments.features}
    if arguments.no_header:
        try:
            columns["label"] = None if arguments.label is None else int(arguments.label)
            columns["features"] = None if arguments.features is None else [int(column) for column in arguments.features]
        except ValueError:
            raise ValueError("with --no-header, --label and --features take numbers of columns, from 0") from None
    others = {"delimiter": arguments.delimiter, "classes": arguments.classes, "missing": arguments.missing}
    flags = {"header": False if arguments.no_header else None, "regression": arguments.regression or None}
    flags["follow_links"] = arguments.follow_links or None
    flags["allow_empty"] = arguments.allow_empty or None
    return {name: value for name, value in {**columns, **others, **flags}.items() if value is not None}
