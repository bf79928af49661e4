"""Arguments of `etl compare` and `etl tune`: the data, compute, and the conditions of measurements."""

from __future__ import annotations

import argparse
from dataclasses import fields
from typing import Any

from etl.arguments import parse_nbytes, parse_seconds
from etl.commands.source_arguments import source_options
from etl.comparison.request.settings import BACKENDS, CACHES, Settings
from etl.configuration import SIZE
from etl.runtime.gc_policy import KINDS as COLLECTORS
from etl.runtime.heap_policy import KINDS as HEAPS
from etl.stages.dtypes import DTYPES
from etl.stages.presets import PRESET_DECODERS

# Values of arguments that are left out, unless a configuration has others.
DEFAULTS = {"batch_size": 32, "dtype": "float32", "size": SIZE, "decoder": "pillow"}

# Fields of `Settings` whose arguments have shorter names.
FIELDS = {"memory": "memory_nbytes", "max_disk": "max_disk_nbytes", "max_prepare": "max_prepare_seconds"}
# How long tuning takes by default, all strategies together.
TUNE_SECONDS = 300.0


def add_data_arguments(data: Any) -> None:
    """Declare arguments on loading in a group of a parser."""
    data.add_argument("--until", metavar="STAGE", help="presave after this stage (default: resize for images)")
    data.add_argument("--batch-size", type=int, metavar="N", help="records per batch (default: 32)")
    data.add_argument("--prefetch-size", type=int, default=2, metavar="N", help="batches loaded ahead (default: 2)")
    data.add_argument("--dtype", choices=tuple(DTYPES), help="dtype of features and weights (default: float32)")
    data.add_argument("--size", type=int, help="side of the images in pixels (default: 224)")
    data.add_argument("--decoder", choices=PRESET_DECODERS, help="default: pillow")
    data.add_argument("--split", choices=("train", "test"), help="which set of MNIST or CIFAR-10 (default: train)")
    data.add_argument(
        "--python",
        type=assignment,
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="run this strategy in another environment: the path of its interpreter",
    )


def add_compute_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments on compute, in a group of their own."""
    compute = parser.add_argument_group("compute")
    compute.add_argument(
        "--model",
        metavar="NAME",
        help="mlp, lenet, residual, lstm (default: by the shape of a record), or package.module:function, which is "
        "called with that shape and the number of outputs",
    )
    compute.add_argument(
        "--step",
        metavar="FUNCTION",
        help="package.module:function that returns your own training step, step(batch), instead of a model",
    )
    compute.add_argument(
        "--compute",
        default="training",
        metavar="HOW",
        help="training (default); inference: a forward pass of the model, which needs no labels; or simulated:20ms: a "
        "simulated device that takes 20 ms for a batch, and no CPU",
    )
    compute.add_argument(
        "--sync-every-step",
        action="store_true",
        help="wait for the device after every step; by default one step is in flight while the next batch is loaded",
    )
    compute.add_argument("--backend", choices=BACKENDS, default="auto", help="device of compute (default: auto)")


def add_condition_arguments(how: Any) -> None:
    """Declare arguments on the conditions of measurements in a group of a parser."""
    how.add_argument(
        "--cache", choices=CACHES, default="warm", help="warm: files are in memory; cold: every epoch reads the disk"
    )
    how.add_argument(
        "--cpus", dest="threads", type=int, metavar="N", help="CPUs for loading and compute together (default: all)"
    )
    how.add_argument(
        "--heap",
        metavar="POLICY",
        default="retain",
        help=f"{', '.join(HEAPS)} (default: retain, which keeps freed pages; default lets glibc give them back, and "
        "the speed of a process then depends on where its heap happens to end)",
    )
    how.add_argument(
        "--gc",
        metavar="POLICY",
        default="default",
        help=f"the garbage collector: {', '.join(COLLECTORS)} (default: default)",
    )
    how.add_argument(
        "--device-memory",
        metavar="POLICY",
        default="default",
        help="torch's allocators on a CUDA device, such as expandable_segments:True,per_process_memory_fraction:0.8 "
        "(default: default)",
    )
    how.add_argument(
        "--epoch-batches", type=int, metavar="N", help="an epoch is N batches, for loaders that do not end"
    )


def add_tuning_arguments(tuning: Any) -> None:
    """Declare arguments on tuning in a group of a parser."""
    tuning.add_argument("--max-disk", type=size_in_bytes, metavar="SIZE", help="most space of a store, such as 2GB")
    tuning.add_argument(
        "--max-prepare", type=duration, metavar="TIME", help="most time to write a store, such as 10min"
    )
    tuning.add_argument("--same-pixels", action="store_true", help="try no other decoder: pixels could be others")
    tuning.add_argument("--retune", action="store_true", help="tune again what an earlier run has found")


def settings_of(arguments: argparse.Namespace, **others: Any) -> Settings:
    """Return settings with the arguments that are called like their fields, the options of the source, and `others`."""
    given = {FIELDS.get(name, name): value for name, value in vars(arguments).items()}
    own = {each.name: given[each.name] for each in fields(Settings) if each.name in given}
    if "python" in given:
        own["pythons"] = dict(arguments.python)
    return Settings(**{**own, "table_options": source_options(arguments), **others})


def assignment(text: str) -> tuple[str, str]:
    """Return the two sides of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"give the name of a strategy and an interpreter, mine=PYTHON, not {text!r}")
    return name, value


def duration(text: str) -> float:
    """Return the seconds of a time."""
    try:
        return parse_seconds(text, "it")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size_in_bytes(text: str) -> int:
    """Return the bytes of a size such as "2GB"."""
    try:
        return parse_nbytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
