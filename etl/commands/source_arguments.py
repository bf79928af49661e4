"""The arguments that describe a source and its pipeline."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from etl.arguments import whole_number
from etl.images.settings import pillow_settings, take_over
from etl.sources.named import is_source_name

SOURCES = (
    "images in folders, CSV or tar files, sequences in a folder, or the files of MNIST or CIFAR-10; "
    "package.module:function that returns a source or a torch data set; NAME://PATH of another package"
)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pipeline",
        metavar="package.module:function",
        help="function that returns an etl.Pipeline, called with the source if it has a parameter (default: the usual "
        "one of the source)",
    )
    parser.add_argument("--follow-links", action="store_true", help="follow links in the folder, wherever they lead")
    parser.add_argument("--allow-empty", action="store_true", help="accept class folders without anything to read")
    parser.add_argument(
        "--label",
        metavar="COLUMN",
        help="CSV files and sequences: name of the label's column, or its number with --no-header; tar files: the "
        "member that holds the label, such as cls or json:key",
    )
    parser.add_argument("--classes", nargs="+", metavar="NAME", help="class names in the order of their numbers")
    images = parser.add_argument_group("for images")
    images.add_argument(
        "--max-image-pixels",
        type=_max_pixels,
        default=argparse.SUPPRESS,  # None is a value
        metavar="N",
        help="refuse images of more pixels, or none for no limit (default: Pillow's MAX_IMAGE_PIXELS)",
    )
    images.add_argument(
        "--load-truncated-images", action="store_true", help="read what there is of truncated images (default: refuse)"
    )
    tables = parser.add_argument_group("for CSV files and sequences of them")
    tables.add_argument("--features", nargs="+", metavar="COLUMN", help="other columns to take (default: all)")
    tables.add_argument("--no-header", action="store_true", help="the first line is a row; columns are numbered from 0")
    tables.add_argument("--delimiter", metavar="CHARACTER", help="default: a comma, in .tsv files a tab")
    tables.add_argument("--regression", action="store_true", help="labels are targets, not class numbers")
    tables.add_argument("--missing", type=float, metavar="VALUE", help="replaces empty values (default: an error)")


@contextmanager
def image_settings(arguments: argparse.Namespace) -> Iterator[None]:
    """Let Pillow have the settings of the command line in this process, and in those that are started meanwhile."""
    given = []
    if "max_image_pixels" in arguments:
        given.append(("PIL.Image", "MAX_IMAGE_PIXELS", arguments.max_image_pixels))
    if getattr(arguments, "load_truncated_images", False):
        given.append(("PIL.ImageFile", "LOAD_TRUNCATED_IMAGES", True))
    before = pillow_settings()
    take_over(given)
    try:
        yield
    finally:
        take_over(before)


def _max_pixels(text: str) -> int | None:
    try:
        return None if text == "none" else whole_number("it", int(text) if text.isdecimal() else text, least=1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; none is no limit") from None


def parse_source(text: str) -> str | Path:
    """Return a source of the command line: a name as it is, and anything else as a path."""
    return text if is_source_name(text) else Path(text)


def source_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the source that were given on the command line.

    Raises `ValueError` if columns are not numbers although there is no header.
    """
    columns: dict[str, Any] = {"label": arguments.label, "features": arguments.features}
    if arguments.no_header:
        try:
            columns["label"] = None if arguments.label is None else int(arguments.label)
            columns["features"] = None if arguments.features is None else [int(column) for column in arguments.features]
        except ValueError:
            raise ValueError("with --no-header, --label and --features take column numbers, from 0") from None
    others = {"delimiter": arguments.delimiter, "classes": arguments.classes, "missing": arguments.missing}
    flags = {"header": False if arguments.no_header else None, "regression": arguments.regression or None}
    flags["follow_links"] = arguments.follow_links or None
    flags["allow_empty"] = arguments.allow_empty or None
    return {name: value for name, value in {**columns, **others, **flags}.items() if value is not None}
