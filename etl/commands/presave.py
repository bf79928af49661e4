"""`etl presave SOURCE STORE`: decode once and keep the arrays on disk."""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import presave
from etl.commands.inspect import describe_store, show_store
from etl.commands.output import check_file_path, progress_bar, save_json
from etl.commands.scheduler import cluster
from etl.commands.source_arguments import add_source_arguments, source_options
from etl.loading.records import Records, records
from etl.sources import default_pipeline, open_source
from etl.stages import DECODERS
from etl.stages.presets import default_split

THREADS = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="images in folders, CSV or tar files, sequences in a folder, or the files of MNIST or CIFAR-10",
    )
    parser.add_argument("store", type=Path, metavar="STORE", help="the store to write; must not exist")
    parser.add_argument(
        "--until",
        metavar="STAGE",
        help="the last stage before storing (default: resize for images); `read` stores the encoded bytes as they are",
    )
    parser.add_argument("--size", type=int, default=224, help="side of the images in pixels (default: 224)")
    parser.add_argument("--decoder", choices=tuple(DECODERS), default="pillow")
    parser.add_argument("--split", choices=("train", "test"), help="which set of MNIST or CIFAR-10 (default: train)")
    parser.add_argument("--format", choices=presave.formats(), default=presave.formats()[0])
    parser.add_argument("--compression", metavar="NAME", help="hdf5: gzip, lzf, zstd, blosc, blosc2 or lz4")
    parser.add_argument(
        "--shard-mb", type=float, metavar="N", help="size of a shard in MB (default: chosen for the records)"
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="skip: leave out records that fail, and list them in the manifest (default: raise)",
    )
    parser.add_argument("--jobs", type=int, help=f"threads that decode (default: {THREADS})")
    parser.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="write on the workers of this Dask scheduler; they must see SOURCE and STORE at the same paths",
    )
    parser.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help="with --scheduler: save Dask's profile of each worker that is still running at the end to FILE, as JSON: "
        "by worker address, a tree of calls with sample counts (one sample every 10 ms by default)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="describe the new store in FILE, as JSON")
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the store and describe it."""
    _check(arguments)
    on_cluster = arguments.scheduler is not None
    if on_cluster:  # workers have other working folders
        arguments.source, arguments.store = arguments.source.absolute(), arguments.store.absolute()
    chosen = _records(arguments)
    options: dict[str, Any] = {} if arguments.compression is None else {"compression": arguments.compression}
    location = cluster(arguments.scheduler, arguments.profile) if on_cluster else nullcontext()
    with location, progress_bar(f"writing {arguments.store}", "records") as bar:
        started = time.perf_counter()
        last: list[presave.Progress] = []

        def show(progress: presave.Progress) -> None:
            last[:] = [progress]
            bar(progress.records + progress.skipped, progress.total)

        store = presave.write(
            arguments.store,
            chosen,
            format=arguments.format,
            jobs=-1 if on_cluster else THREADS if arguments.jobs is None else arguments.jobs,
            shard_nbytes=None if arguments.shard_mb is None else round(arguments.shard_mb * 1e6),
            on_error=arguments.on_error,
            options=options,
            progress=show,
        )
        seconds = time.perf_counter() - started
    resumed = last[0].resumed if last else len(store)
    rate = f"{(len(store) - resumed) / seconds:,.0f} records/s"
    more_rows = [("written in", f"{seconds:.1f} s, {rate}")]
    if resumed:
        more_rows.append(("of these from an interrupted write", f"{resumed:,} records"))
    with store:
        show_store(store.path, store.manifest, more_rows)
        save_json(
            arguments.json, {**describe_store(store.path, store.manifest), "seconds": seconds, "resumed": resumed}
        )
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.profile is not None and arguments.scheduler is None:
        raise ValueError("--profile needs --scheduler: it profiles the workers of a Dask cluster")
    if arguments.jobs is not None and arguments.scheduler is not None:
        raise ValueError("--jobs sets the threads on this machine; with --scheduler every worker of the cluster writes")
    if arguments.compression is not None and arguments.format != "hdf5":
        raise ValueError(f"--compression is for --format hdf5, not {arguments.format}")
    if arguments.shard_mb is not None and not 1e-6 <= arguments.shard_mb < float("inf"):
        raise ValueError(f"--shard-mb must be above 0, not {arguments.shard_mb:g}")
    check_file_path(arguments.profile, "--profile")


def _records(arguments: argparse.Namespace) -> Records:
    source = open_source(arguments.source, arguments.split, **source_options(arguments))
    pipeline = default_pipeline(source, arguments.size, arguments.decoder)
    done, _ = pipeline.split(arguments.until or default_split(pipeline))
    return records(source, done)
