"""`etl presave SOURCE STORE`: decode once and keep the arrays on disk."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import presave
from etl.commands.output import progress_bar, save_json
from etl.commands.store_facts import describe_store, show_store
from etl.records import records
from etl.sources import open_source, usual_pipeline
from etl.stages import DECODERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a folder of images, or of MNIST's IDX files")
    parser.add_argument("store", type=Path, metavar="STORE", help="where to; must not exist")
    parser.add_argument("--until", metavar="STAGE", help="the last stage before storing (default: resize for images)")
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels (default: 224)")
    parser.add_argument("--decoder", choices=tuple(DECODERS), default="pillow")
    parser.add_argument("--split", choices=("train", "test"), default="train", help="which of MNIST's sets")
    parser.add_argument("--format", choices=presave.formats(), default=presave.formats()[0])
    parser.add_argument("--jobs", type=int, default=2, help="threads that decode (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was stored to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Write the store and describe it."""
    source = open_source(arguments.source, arguments.split)
    pipeline = usual_pipeline(source, arguments.size, arguments.decoder)
    until = arguments.until or ("resize" if "resize" in pipeline.names else pipeline.names[-1])
    started = time.perf_counter()
    with progress_bar(f"writing {arguments.store}", "records") as bar:
        store = presave.write(
            arguments.store,
            records(source, pipeline.until(until)),
            format=arguments.format,
            jobs=arguments.jobs,
            progress=lambda progress: bar(progress.records, progress.total),
        )
    seconds = time.perf_counter() - started
    with store:
        show_store(store, [("written in", f"{seconds:.1f} s, {len(store) / seconds:,.0f} records/s")])
        save_json(arguments.json, {**describe_store(store), "seconds": seconds})
    return 0
