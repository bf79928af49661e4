"""Every table that a command prints, from made-up metrics, by the code that prints them.

`python tests/every_table.py COLUMNS...` gives the terminal on its standard output as many columns, one number after the
other, and prints each table below a line `== COLUMNS NAME`. On a pipe, without a number, it prints each once.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

import presave
from benchmarks import decode, gather, overlap, store_table, write
from benchmarks.cells import FORMATS, STAGES, chosen_profile
from benchmarks.compare_commits import commits, commits_table
from benchmarks.console import wide_console
from benchmarks.measuring.statistics import Interval, Outcome
from benchmarks.peers import peer_table
from benchmarks.publish import history_table as publish_table
from benchmarks.settings import settings_table
from benchmarks.settings.settings_turns import SettingPairs
from benchmarks.studies import gc_pauses, power, scale, what_if
from benchmarks.studies.study import print_lines
from benchmarks.verdict import Verdict
from benchmarks.write_sample import Photographs
from etl.commands import main
from etl.commands.output import output_console
from etl.comparison.show.report_table import show_report
from etl.comparison.tuning.tuning_results import Tuning
from etl.comparison.tuning.tuning_table import show_tuning
from etl.doctor import Examination, examine
from etl.doctor.heap import GenerationPauses, Growth, Heap, Pauses, TypeOnHeap
from etl.doctor.show import show_examination, show_heap, show_pauses, show_stages
from etl.doctor.stage_times import StageTime, StageTimes
from tests import comparison_reports, tuning_results
from tests.peer_journals import write_journal
from tests.terminal import set_columns

STRATEGIES = ("raw", "async-raw", "presaved", "async-presaved")


def show_doctor() -> None:
    console = output_console()
    show_examination(_examine(), console)
    stages = [("read", 0.021, 0.143), ("decode", 1.234, 1.301), ("resize", 0.301, 0.299), ("copy to cuda:1", 0.1, None)]
    show_stages(StageTimes([StageTime(*each) for each in stages], 1.2e8, 3.4e9, 78_300_000, "not permitted"), console)
    generations = [GenerationPauses(number, 1234 * number, 0.12, 0.034, 56_789) for number in range(3)]
    show_pauses(Pauses(20, 3.14, generations, []), console)
    types = [TypeOnHeap("dict", 123_456, 78_900_000), TypeOnHeap("torch.nn.parameter.Parameter", 12, 45_600_000)]
    show_heap(Heap(234_567, types, [Growth("my_project.records.CachedRecord", [120, 120, 121])]), console)


def show_stores() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "s"
        presave.write(store, [{"features": np.zeros((3, 8, 8), np.uint8), "label": 1}]).close()
        main(["inspect", str(store)])


def show_commits() -> None:
    verdict = Verdict(0.01234, 0.01357, Interval(1.1, 1.08, 1.12, 15), Outcome.SLOWER)
    found = {(name, metric): verdict for name in STRATEGIES for metric in ("etl", "wall")}
    one = commits.Commit("HEAD~1", "0123456789abcdef", Path())
    commits_table.show(one, one, found, 0.01, 83.0, wide_console())


def show_study() -> None:
    logs = [0.03 + 0.001 * number for number in range(20)]
    found = [power.MetricRatios(name, metric, logs) for name in STRATEGIES for metric in ("etl", "wall")]
    made = {key: power.Comparison(found, 60.0) for key in power.wanted_comparisons(same=1, slowed=1)}
    power.show(power.Study(made), wide_console())


def show_settings() -> None:
    measured = {
        ("garbage_collection", "small_objects", "freeze"): SettingPairs([[(1.0, 0.9)]] * 12, [(10**8, 2 * 10**8)] * 12),
        ("heap", "image_decoding", "jemalloc, background thread"): SettingPairs(
            [[(1.0, 1.0)]] * 12, [(10**8, 10**8)] * 12
        ),
        ("heap", "image_decoding", "tcmalloc"): SettingPairs(missing="libtcmalloc.so is not installed on this machine"),
    }
    settings_table.show(measured, wide_console())


def show_peers() -> None:
    with tempfile.TemporaryDirectory() as folder:
        peer_table.show(write_journal(Path(folder) / "peers.jsonl"), wide_console())


def show_history() -> None:
    metrics = {"etl": [0.2696] * 6, "compute": [0.1001] * 6, "wall": [0.3773] * 6, "stall": [0.2771] * 6}
    measured = publish_table.StrategySamples(dict.fromkeys(STRATEGIES, metrics), (0.5, 1.6e6))
    publish_table.show(measured, "0123456789abcdef", chosen_profile(), wide_console())


def show_gather() -> None:
    names = ("memcpy", "fill", "take, in memory", "npy shuffled", "hdf5 shuffled", "numba", "numba, two threads")
    gather.show({name: [0.001 * (1 + number) for number in range(3)] for name in names}, 1024, wide_console())


def show_decode() -> None:
    names = [name for decoder in ("pillow", "turbo") for name in (decode.decoder_alone(decoder), decoder)]
    decode.find_photographs = lambda count: Path()
    decode.make_operations = lambda photographs, threads: dict.fromkeys(names, lambda: None)
    decode.in_rounds = lambda operations, rounds: {name: [0.3, 0.31, 0.35] for name in names}
    decode.main([])


def show_overlap() -> None:
    overlap.find_photographs = lambda count: Path()
    overlap.measure_overlap = lambda *given: {
        overlap.loading_beside(given[-1], ratio): [0.9876, 0.99] for ratio in overlap.RATIOS
    }
    overlap.measure_machinery = lambda rounds: {"empty batch": [3e-5, 4e-5], "first batch": [1.01, 1.02]}
    overlap.measure_example = lambda: [(0.05, 0.001)]
    overlap.measure_beside_compute = lambda *given: {"wall over limit": [1.01, 1.02], "overlap": [0.8, 0.9]}
    overlap.main([])


def show_scale() -> None:
    names = ("open_seconds", "gather_seconds", "open_private_nbytes", "open_traced_nbytes", "order_nbytes_a_record")
    scale.in_fresh_process = lambda *given, **more: dict.fromkeys(names, 0.0123)
    write_store = scale._write
    scale._write = lambda *given: (write_store(*given)[0], 12.3)
    scale.main(["--records", "100", "1000"])
    scale._write = write_store


def show_writers() -> None:
    metrics = {"seconds": 0.456, "durable_seconds": 0.567, "nbytes": 77_070_336.0}
    write.find_photographs = lambda count: Path()
    write._in_fresh_process = lambda *given: metrics
    write.main([])


def show_formats() -> None:
    samples = [{"write": 1.234, "nbytes": 77_070_336.0, "cold": 0.5, "warm": 0.123}] * 3
    raw = [{"write": 0.0, "nbytes": 0.0, "cold": 0.9, "warm": 0.8}] * 3
    results = {(store_table.RAW, ""): raw, **{(name, stage): samples for name in FORMATS for stage in STAGES}}
    missing = {("ffcv", "decode"): "ModuleNotFoundError: No module named 'ffcv', which is needed for its stores"}
    store_table._print(results, missing, Photographs("nowhere", 224, 512), 3, wide_console())


def show_collections() -> None:
    pauses = gc_pauses.Pauses([0.0123], [1e-5], 10_000)
    found = {(count, shape): pauses for count in gc_pauses.COUNTS for shape in gc_pauses.SHAPES}
    print_lines("A full collection, ms", gc_pauses.lines_of(found), wide_console())


def show_what_if() -> None:
    names = ("training on 2 CPUs", "device 0.25", "async-presaved")
    found = [what_if.Predicted(group, *names, 12.3456, 12.5, 12.7) for group in ("compute", "CPUs")]
    what_if.show(found, wide_console())


@cache
def _examine() -> Examination:
    return examine()


def _showing(make: Callable[[], comparison_reports.Report]) -> Callable[[], None]:
    return lambda: show_report(make(), output_console())


def _showing_tuning(make: Callable[[], Tuning]) -> Callable[[], None]:
    return lambda: show_tuning(make(), output_console())


TABLES: dict[str, Callable[[], None]] = {
    **{f"compare {name}": _showing(make) for name, make in comparison_reports.REPORTS.items()},
    **{f"tune {name}": _showing_tuning(make) for name, make in tuning_results.TUNINGS.items()},
    "doctor": show_doctor,
    "stores": show_stores,
    "commits": show_commits,
    "study": show_study,
    "settings": show_settings,
    "peers": show_peers,
    "history": show_history,
    "gather": show_gather,
    "decode": show_decode,
    "overlap": show_overlap,
    "scale": show_scale,
    "writers": show_writers,
    "formats": show_formats,
    "collections": show_collections,
    "what if": show_what_if,
}

if __name__ == "__main__":
    for columns in sys.argv[1:] or ("a pipe",):
        if columns.isdigit():
            set_columns(sys.stdout.fileno(), int(columns))
        for name, show in TABLES.items():
            print(f"== {columns} {name}", flush=True)
            show()
