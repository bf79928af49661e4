"""`etl presave SOURCE STORE`: decode once and keep the arrays on disk."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import joblib

import presave
from etl.commands.config_argument import add_config_argument, fill, fill_from
from etl.commands.inspect import describe_store, show_store
from etl.commands.output import deliver, output_path, progress_bar, save_json, show_facts
from etl.commands.source_arguments import SOURCES, add_source_arguments, parse_source, source_options
from etl.configuration import SIZE, Configuration
from etl.loading.records import Records, records
from etl.sources import open_source
from etl.sources.randomness import is_random
from etl.stages.presets import PRESET_DECODERS, default_split, open_pipeline
from presave.thread_safety import unopened

THREADS = 2
# Values of arguments that are left out, unless a configuration has others.
DEFAULTS = {"size": SIZE, "decoder": "pillow", "format": presave.formats()[0], "on_error": "raise"}
CONNECT_SECONDS = 5


# Said after Ctrl-C.
INTERRUPTED = "no incomplete file was left, and the same command continues a store after its last whole shard"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_argument("source", type=parse_source, metavar="SOURCE", help=SOURCES)
    store = parser.add_argument("store", type=Path, metavar="STORE", help="the store to write; must not exist")
    add_config_argument(parser, "SOURCE and its options, STORE, stage, format and compression", source, store)
    parser.add_argument(
        "--until",
        metavar="STAGE",
        help="the last stage before storing (default: resize for images); `read` stores the encoded bytes as they are",
    )
    parser.add_argument("--size", type=int, help="side of the images in pixels (default: 224)")
    parser.add_argument("--decoder", choices=PRESET_DECODERS, help="default: pillow")
    parser.add_argument("--split", choices=("train", "test"), help="which set of MNIST or CIFAR-10 (default: train)")
    parser.add_argument("--format", choices=presave.formats(), help=f"default: {presave.formats()[0]}")
    parser.add_argument("--compression", metavar="NAME", help="hdf5: gzip, lzf, zstd, blosc, blosc2 or lz4")
    parser.add_argument(
        "--shard-mb", type=float, metavar="N", help="size of a shard in MB (default: chosen for the records)"
    )
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        help="skip: leave out records that fail, and list them in the manifest (default: raise)",
    )
    parser.add_argument(
        "--allow-random",
        action="store_true",
        help="presave records that differ from one reading to the next, with the random transforms of one reading",
    )
    parser.add_argument(
        "--jobs", type=int, help=f"threads that decode (default: {THREADS}; 1 for a data set that is not thread-safe)"
    )
    parser.add_argument(
        "--scheduler",
        metavar="tcp://HOST:PORT",
        help="write on the workers of this Dask scheduler; they must see SOURCE and STORE at the same paths",
    )
    parser.add_argument(
        "--cluster-profile",
        type=output_path,
        metavar="FILE",
        help="with --scheduler: save Dask's profile of each worker that is still running at the end to FILE, as JSON: "
        "by worker address, a tree of calls with sample counts (one sample every 10 ms by default)",
    )
    parser.add_argument("--json", type=output_path, metavar="FILE", help="describe the new store in FILE, as JSON")
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the store and describe it."""
    configuration = _take_configuration(arguments)
    if configuration is not None and configuration.strategy_kind.is_foreign:
        return _prepare(configuration, arguments)
    fill(arguments, DEFAULTS)
    _check(arguments)
    on_cluster = arguments.scheduler is not None
    if on_cluster:  # workers have other working folders
        arguments.store = arguments.store.absolute()
        if isinstance(arguments.source, Path):
            arguments.source = arguments.source.absolute()
    chosen = _records(arguments, source_options(arguments) if configuration is None else configuration.table_options)
    options: dict[str, Any] = {} if arguments.compression is None else {"compression": arguments.compression}
    location = _cluster(arguments.scheduler, arguments.cluster_profile) if on_cluster else nullcontext()
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
        content = {**describe_store(store.path, store.manifest), "seconds": seconds, "resumed": resumed}
        deliver(
            lambda: save_json(arguments.json, content),
            show=lambda _: show_store(store.path, store.manifest, more_rows),
        )
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.cluster_profile is not None and arguments.scheduler is None:
        raise ValueError("--cluster-profile needs --scheduler: it profiles the workers of a Dask cluster")
    if arguments.jobs is not None and arguments.scheduler is not None:
        raise ValueError("--jobs sets the threads on this machine; with --scheduler every worker of the cluster writes")
    if arguments.compression is not None and arguments.format != "hdf5":
        raise ValueError(f"--compression is for --format hdf5, not {arguments.format}")
    if arguments.shard_mb is not None and not 1e-6 <= arguments.shard_mb < float("inf"):
        raise ValueError(f"--shard-mb must be above 0, not {arguments.shard_mb:g}")


def _take_configuration(arguments: argparse.Namespace) -> Configuration | None:
    """Let the configuration of `--config`, if there is one, be the values of arguments that are left out.

    Raises `ValueError` if an argument contradicts the configuration.
    """
    configuration = None if arguments.config is None else Configuration.read(arguments.config)
    if configuration is not None:
        if arguments.store is None and arguments.source is not None:  # the only one, which is STORE
            arguments.source, arguments.store = None, Path(arguments.source)
        # Those of a user's loader may have any name.
        settings = {} if configuration.strategy_kind.is_foreign else configuration.settings
        values = {
            "store": configuration.needed_store(),
            "decoder": configuration.decoder_used,
            "until": settings.get("stage"),
            "format": settings.get("format"),
            "compression": settings.get("compression"),
        }
        fill_from(configuration, arguments, values)
        arguments.source, arguments.store = parse_source(str(arguments.source)), Path(arguments.store)
    return configuration


def _prepare(configuration: Configuration, arguments: argparse.Namespace) -> int:
    """Let a user's loader prepare its files, and say what that took."""
    stores = ("until", "format", "compression", "shard_mb", "on_error", "allow_random", "jobs", "scheduler")
    for name in (*stores, "cluster_profile"):
        value = getattr(arguments, name)
        if value is not None and value is not False:
            raise ValueError(
                f"--{name.replace('_', '-')} is for stores; {configuration.strategy} prepares its own files"
            )
    seconds = configuration.prepare()
    nbytes = sum(each.stat().st_size for each in arguments.store.rglob("*") if each.is_file())
    facts = [("prepared by", configuration.strategy), ("size", f"{nbytes:,} bytes"), ("written in", f"{seconds:.1f} s")]
    content = {"path": str(arguments.store), "nbytes": nbytes, "seconds": seconds}
    deliver(lambda: save_json(arguments.json, content), show=lambda _: show_facts(str(arguments.store), facts))
    return 0


def _records(arguments: argparse.Namespace, options: Mapping[str, Any]) -> Records:
    source = open_source(arguments.source, arguments.split, **options)
    reason = None if arguments.allow_random else is_random(unopened(source))
    if reason is not None:
        raise ValueError(
            f"{reason}. Move them into the pipeline (--pipeline), after the stage of --until, or freeze them on "
            "purpose with --allow-random"
        )
    pipeline = open_pipeline(arguments.pipeline, source, arguments.size, arguments.decoder)
    done, _ = pipeline.split(arguments.until or default_split(pipeline))
    return records(source, done)


@contextmanager
def _cluster(address: str, profile: Path | None) -> Iterator[None]:
    """Run joblib's work inside the block on the workers of the Dask scheduler at `address`.

    At the end, even after an error, the statistical profile of each worker is saved to `profile`, unless that is None.
    Raises `ValueError` if Dask is not installed, and `OSError` if no scheduler or no worker answers at `address`, or
    the scheduler disappears.
    """
    client = _connect(address)
    started = time.time()
    try:
        with joblib.parallel_config(backend="dask", n_jobs=-1):
            yield
    except CancelledError as error:
        raise OSError(
            f"--scheduler {address}: the scheduler has disappeared; start it and its workers again"
        ) from error
    finally:
        try:
            if profile is not None and client.status == "running":
                # Of each worker a tree: a call has a `description`, `count` samples, and the `children` it made.
                trees = client.profile(start=started, merge_workers=False)
                save_json(profile, {"seconds": time.time() - started, "workers": trees})
        finally:
            client.close()


def _connect(address: str) -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ValueError(f"--scheduler needs Dask ({error}): pip install 'fair-etl[cluster]'") from error
    # Dask replaces lost workers; its warnings about them would be mixed with the output of this command.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:
        raise OSError(
            f"--scheduler {address}: no Dask scheduler answers there ({error}); start one with `dask scheduler` and "
            "give the address that it prints, tcp://HOST:PORT"
        ) from error
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except distributed.TimeoutError as error:
        client.close()
        raise OSError(f"--scheduler {address} has no workers; start some with `dask worker {address}`") from error
    return client
