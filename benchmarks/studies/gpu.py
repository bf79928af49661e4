"""Loading for a GPU, as `make gpu` measures it: `python -m benchmarks.studies.gpu [--save]`.

The same network is trained from batches that are decoded in every epoch, read from a store, or finished on the device,
in single and in half precision. The tables say how much of the device's time is used, how long it stalls and waits for
copies, and how much of its memory is taken. Their last row is the upper bound: a batch that stays in host memory.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import etl
import presave
from benchmarks.console import comma_separated, print_table, say, say_failure, wide_console
from benchmarks.datasets import find_photographs

RESULTS = Path(__file__).with_name("results")
PHOTOGRAPHS, SIZE = 2_048, 224
DTYPES = ("float32", "float16", "bfloat16")
STORED_AFTER = "resize"


def write_pixels(task: Any) -> None:
    """Write the store of `device_finished` into its folder."""
    records = etl.records(task.source, task.pipeline.until(STORED_AFTER))
    presave.write(Path(task.folder) / "pixels", records, format="npy", jobs=task.cpus)


def device_finished(task: Any) -> etl.DeviceIterator:
    """Return batches of bytes from a store, which the device makes floats of and normalises."""
    pixels = task.pipeline.until(STORED_AFTER)
    stored = etl.PresavedIterator(
        Path(task.folder) / "pixels",
        pixels.after(STORED_AFTER),
        task.batch_size,
        shuffle=True,
        seed=task.seed,
        dtype=task.dtype,
    )
    return etl.DeviceIterator(etl.AsyncIterator(stored), "auto", finish=task.pipeline.after(STORED_AFTER))


device_finished.prepare = write_pixels  # type: ignore[attr-defined]

STRATEGIES: Mapping[str, Any] = {
    "raw": "raw",
    "async-raw": "async-raw",
    "presaved": "presaved",
    "async-presaved": "async-presaved",
    "device-finished": "benchmarks.studies.gpu:device_finished",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the strategies in each dtype, print tables, and return 2 if the call was wrong or there is no device."""
    options = parse(arguments)
    console, errors = wide_console(), Console(stderr=True)
    try:
        device = find_device(options.allow_cpu)
        reports = {}
        for dtype in options.dtypes:
            with errors.status(f"{dtype} on {device}"):
                reports[dtype] = measure(dtype, options)
            print_table(table(reports[dtype], f"training in {dtype} on {device}"), console)
            for note in reports[dtype].notes:
                say(note, console)
    except (ValueError, RuntimeError) as error:
        say_failure(error, errors)
        return 2
    if options.save:
        file = save(reports, device)
        say(f"Reports: {file}", console)
    return 0


def measure(dtype: str, options: argparse.Namespace) -> etl.Report:
    """Return the comparison of all strategies with features and weights of `dtype`."""
    return etl.compare(
        find_photographs(options.photographs),
        STRATEGIES,
        model="residual",
        dtype=dtype,
        batch_size=options.batch_size,
        size=SIZE,
        budget=options.budget,
        rounds=options.rounds,
    )


def table(report: etl.Report, title: str) -> Table:
    """Return a table of one comparison."""
    made = Table("strategy", title=title)
    for heading in ("images/s", "ratio", "95% interval", "utilisation", "stall, s", "copies, s", "device MB"):
        made.add_column(heading, justify="right")
    for each in report.strategies:
        copies, memory = each.losses.transfer_seconds, each.peak_device_memory_nbytes
        interval = (
            "" if each.ratio is None or each.ratio.low is None else f"{each.ratio.low:.2f} to {each.ratio.high:.2f}"
        )
        made.add_row(
            each.name,
            f"{each.samples_per_second:,.0f}",
            "1" if each.ratio is None else f"{each.ratio.estimate:.2f}",
            interval,
            f"{each.accelerator_utilisation:.0%}",
            f"{each.parts.stall_seconds:.3f}",
            "" if copies is None else f"{copies:.3f}",
            "" if memory is None else f"{memory / 1e6:,.0f}",
            style="dim strike" if each.disqualified else "",
        )
    alone = report.strategies[0].parts.compute_alone_seconds
    made.add_row("(nothing loaded)", f"{report.source_records / alone:,.0f}", "", "", "100%")
    return made


def save(reports: Mapping[str, etl.Report], device: str) -> Path:
    """Write the reports by dtype to a file that is named after the device, and return its path."""
    file = RESULTS / f"gpu-{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    written = {"device": device, "reports": {dtype: report.as_dict() for dtype, report in reports.items()}}
    file.write_text(json.dumps(written, indent=1) + "\n")
    return file


def find_device(allow_cpu: bool) -> str:
    """Return the name of the device that computes; raise `RuntimeError` if it is the CPU, which is not accepted."""
    import torch

    if etl.backend("auto").device.type == "cuda":
        return torch.cuda.get_device_name()
    if not allow_cpu:
        raise RuntimeError("there is no CUDA device, so nothing was measured; --allow-cpu tries the command on the CPU")
    return "CPU"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--dtypes", type=comma_separated(DTYPES, "dtype"), default=DTYPES, metavar="NAME,NAME")
    parser.add_argument("--budget", default="100s", metavar="TIME", help="for each dtype")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds, instead of as many as the time allows")
    parser.add_argument("--photographs", type=int, default=PHOTOGRAPHS, metavar="N")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N")
    parser.add_argument("--allow-cpu", action="store_true", help="compute on the CPU if there is no CUDA device")
    parser.add_argument("--save", action="store_true", help="write results/gpu-DEVICE.json")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
