"""Loaders of other projects are measured only after a check that they do the same work, and all are in the table."""

from __future__ import annotations

import dataclasses
import importlib
import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from benchmarks.measuring.layout import PADDING_VARIABLE
from benchmarks.measuring.statistics import MIN_ROUNDS
from benchmarks.peers import comparison
from benchmarks.peers.__main__ import main, parse
from benchmarks.peers.comparison import (
    ALL,
    REQUIREMENTS,
    Comparison,
    IncompatibleSamples,
    NotInstalled,
    Samples,
    make_environment,
)
from benchmarks.peers.handlers import LoaderMetrics
from benchmarks.peers.loader import (
    OURS,
    PEERS,
    PIXEL_MEAN,
    PIXEL_SCALE,
    PRESAVED,
    RAW,
    SIZE,
    Loader,
    ReusedBatches,
    SharedBatches,
    find_loaders,
    normalise,
)
from benchmarks.peers.table import count_lines, find_ratios, show
from benchmarks.peers.torch_dataloader import PREFETCH_FACTOR
from benchmarks.peers.work import Inputs, make_inputs

BATCH_SIZE = 8
# A correct loader of pixels, and loaders that have one fault each.
FAKES = """
import atexit
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np

from benchmarks.peers.loader import PIXEL_MEAN, PIXEL_SCALE


def prepare(source, folder):
    shutil.copy2(source, f"{folder}/images.npy")


class good:
    def __init__(self, folder, batch_size, threads):
        self.images = np.load(f"{folder}/images.npy", mmap_mode="r")
        self.batch_size = batch_size
        self.random = np.random.default_rng()

    def order(self):
        return self.random.permutation(len(self.images))

    def normalise(self, pixels):
        return np.ascontiguousarray((pixels.transpose(0, 3, 1, 2) - PIXEL_MEAN) * PIXEL_SCALE)

    def __iter__(self):
        order = self.order()
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            yield self.normalise(self.images[np.array(numbers)]), numbers


class dropping(good):
    def order(self):
        return super().order()[:-1]


class repeating(good):
    def order(self):
        order = super().order()
        return np.append(order, order[0])


class in_order(good):
    def order(self):
        return np.arange(len(self.images))


class shuffled_once(good):
    def order(self):
        return np.random.default_rng(0).permutation(len(self.images))


class without_normalising(good):
    def normalise(self, pixels):
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2) / np.float32(255))


class with_channels_swapped(good):
    def normalise(self, pixels):
        return super().normalise(pixels[..., ::-1])


class mirrored(good):
    def normalise(self, pixels):
        return super().normalise(pixels[:, :, ::-1])


class with_labels_of_others(good):
    def __iter__(self):
        for images, numbers in super().__iter__():
            yield images, np.roll(numbers, 1)


class in_double_precision(good):
    def normalise(self, pixels):
        return super().normalise(pixels).astype(np.float64)


class with_channels_last(good):
    def normalise(self, pixels):
        return np.ascontiguousarray(super().normalise(pixels).transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


class crashing(good):
    def order(self):
        print("out of luck", flush=True)
        os.abort()


class hanging(good):
    def order(self):
        print("waiting for a worker", flush=True)
        time.sleep(600)


class printing(good):
    def order(self):
        print('{"answer": {}}', flush=True)
        return super().order()


class leaving_a_child(good):
    def __init__(self, folder, *arguments):
        super().__init__(folder, *arguments)
        child = subprocess.Popen(["sleep", "600"])
        Path(folder, "child").write_text(str(child.pid))


class cleaning_up(good):
    def __init__(self, folder, *arguments):
        super().__init__(folder, *arguments)
        shared = Path(folder, "shared")
        shared.touch()

        def remove():
            time.sleep(0.5)  # longer than a killed process would live
            shared.unlink()

        atexit.register(remove)


class with_threads_of_opencv(good):
    def __init__(self, *arguments):
        import cv2

        super().__init__(*arguments)
        cv2.setNumThreads(2)


class dropping_later(good):
    epochs = 0

    def order(self):
        self.epochs += 1
        return super().order()[: -1 if self.epochs > 2 else None]
"""

Compare = Callable[..., tuple[Samples, dict[str, str]]]


@pytest.fixture(scope="module")
def inputs(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return make_inputs(photographs, tmp_path_factory.mktemp("peers") / "photographs")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Loader]:
    """Return a function that makes a loader from a class of FAKES."""
    (tmp_path / "fake_loaders.py").write_text(FAKES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    sys.modules.pop("fake_loaders", None)
    module = importlib.import_module("fake_loaders")

    def make(name: str, imports: tuple[str, ...] = ()) -> Loader:
        return Loader(name, PRESAVED, getattr(module, name), imports=imports, prepare=module.prepare)

    return make


@pytest.fixture
def compare(inputs: Inputs, tmp_path: Path) -> Compare:
    """Return a function that measures loaders in this interpreter.

    It returns the samples, and the reason for each loader that is left out.
    """

    def run(
        *loaders: Loader, rounds: int = 1, actions: list[str] | None = None, timeout: float = 120
    ) -> tuple[Samples, dict[str, str]]:
        compared = Comparison(
            loaders, inputs, BATCH_SIZE, 2, tmp_path, {ALL: sys.executable}, min_seconds=0, timeout=timeout
        )
        samples = Samples(tmp_path / "samples.json", {})
        noted = [] if actions is None else actions
        missing = compared.run(rounds, samples, lambda action, loader: noted.append(f"{action}: {loader.name}"))
        return samples, missing

    return run


def test_our_loaders_and_a_plain_dataloader_do_the_same_work_and_are_measured(compare: Compare) -> None:
    pillow = [each for each in find_loaders((RAW,), ("torch_dataloader",)) if each.name == "DataLoader, Pillow"]
    loaders = [*find_loaders((RAW, PRESAVED), (OURS,)), *pillow]
    assert len(loaders) == 3
    samples, missing = compare(*loaders)
    assert missing == {}
    for loader in loaders:
        (found,) = samples.metrics_of(loader.key).values()
        assert all(value > 0 for value in dataclasses.astuple(found))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("dropping", "1 of 40 photographs did not come"),
        ("repeating", "came 2 times in one epoch"),
        ("in_order", "not shuffled"),
        ("shuffled_once", "two epochs came in the same order"),
        ("without_normalising", "mean of cell"),
        ("with_channels_swapped", "mean of cell"),
        ("mirrored", "mean of cell"),
        ("with_labels_of_others", "mean of cell"),
        ("in_double_precision", "a batch is float64"),
        ("with_channels_last", "a batch is not contiguous"),
        ("crashing", "the process of presaved/crashing was killed by signal 6: out of luck"),
    ],
)
def test_a_loader_that_does_other_work_is_left_out_with_the_reason(
    name: str, reason: str, compare: Compare, fake: Callable[..., Loader]
) -> None:
    samples, missing = compare(fake(name))
    assert reason in missing[f"presaved/{name}"]
    assert samples.metrics_of(f"presaved/{name}") == {}


def test_a_loader_in_whose_workers_opencv_starts_threads_is_left_out(
    compare: Compare, fake: Callable[..., Loader]
) -> None:
    _, missing = compare(fake("with_threads_of_opencv", imports=("cv2",)))
    assert "OpenCV may start 2 threads" in missing["presaved/with_threads_of_opencv"]


def test_a_loader_that_drops_photographs_only_when_it_is_measured_is_left_out(
    compare: Compare, fake: Callable[..., Loader]
) -> None:
    samples, missing = compare(fake("dropping_later"))
    assert missing == {
        "presaved/dropping_later": "in round 1: presaved/dropping_later cannot be measured: "
        "DifferentWork: an epoch had 39 photographs, not 40"
    }
    assert samples.metrics_of("presaved/dropping_later") == {}


def test_a_loader_that_hangs_is_left_out_with_the_last_line_that_it_wrote(
    compare: Compare, fake: Callable[..., Loader]
) -> None:
    _, missing = compare(fake("hanging"), timeout=10)
    assert missing == {
        "presaved/hanging": "the process of presaved/hanging gave no answer for 10 s: waiting for a worker"
    }


def test_output_of_a_loader_is_not_taken_for_an_answer(compare: Compare, fake: Callable[..., Loader]) -> None:
    loader = fake("printing")
    samples, missing = compare(loader)
    assert missing == {}
    assert samples.metrics_of(loader.key).keys() == {0}


def test_what_a_loader_has_started_ends_with_its_process(
    compare: Compare, fake: Callable[..., Loader], inputs: Inputs
) -> None:
    _, missing = compare(fake("leaving_a_child"))
    assert missing == {}
    (noted,) = Path(inputs.photographs).parent.glob("*/child")
    until = time.monotonic() + 30
    while is_running(int(noted.read_text())):
        assert time.monotonic() < until
        time.sleep(0.01)
    noted.unlink()


def is_running(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_a_loader_has_time_to_clean_up(compare: Compare, fake: Callable[..., Loader], inputs: Inputs) -> None:
    _, missing = compare(fake("cleaning_up"))
    assert missing == {}
    assert not list(Path(inputs.photographs).parent.glob("*/shared"))


def test_each_sample_is_taken_in_a_process_and_a_memory_layout_of_its_own(
    compare: Compare, fake: Callable[..., Loader], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    start_server = comparison.start_server

    def noting(*given: Any, **options: Any) -> Any:
        server = start_server(*given, **options)
        started.append({"pid": server.pid, "seed": options["hash_seed"], **options["environment"]})
        return server

    monkeypatch.setattr(comparison, "start_server", noting)
    compare(fake("good"), rounds=3)
    assert len(started) >= 4  # to check, for three samples, and to prepare, unless another test did that
    for drawn in ("pid", "seed", PADDING_VARIABLE):
        assert len({each[drawn] for each in started}) == len(started)


def test_a_peer_that_cannot_be_imported_is_in_the_table_with_the_reason(
    compare: Compare, fake: Callable[..., Loader]
) -> None:
    loader = fake("good", imports=("no_such_library",))
    samples, missing = compare(loader)
    shown = io.StringIO()
    show([loader], samples, missing, Console(file=shown, width=250))
    (row,) = [line for line in shown.getvalue().splitlines() if "good" in line]
    assert "n/a" in row
    assert "ModuleNotFoundError: No module named 'no_such_library'" in row


def test_an_interrupted_run_measures_only_what_is_missing(compare: Compare, fake: Callable[..., Loader]) -> None:
    actions: list[str] = []
    loader = fake("good")
    first, _ = compare(loader, rounds=1)
    again, _ = compare(loader, rounds=2, actions=actions)
    assert [action for action in actions if action.startswith("round")] == ["round 2 of 2: good"]
    assert again.metrics_of(loader.key)[0] == first.metrics_of(loader.key)[0]
    assert sorted(again.metrics_of(loader.key)) == [0, 1]


def test_samples_of_another_run_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "samples.json"
    Samples(path, {"threads": 2}).add("raw/one", 0, metrics(1.0))
    assert Samples(path, {"threads": 2}).metrics_of("raw/one") == {0: metrics(1.0)}
    with pytest.raises(IncompatibleSamples, match="samples of threads 2, not 3"):
        Samples(path, {"threads": 3})
    path.write_text("[]")
    with pytest.raises(IncompatibleSamples, match="not a file of samples"):
        Samples(path, {"threads": 2})


def metrics(images_per_second: float) -> LoaderMetrics:
    return LoaderMetrics(1.0, images_per_second, 1.0, 1.0, 1)


def test_ratios_are_taken_within_a_round() -> None:
    theirs = {0: metrics(10.0), 2: metrics(30.0)}
    ours = {number: metrics(speed) for number, speed in enumerate((20.0, 1.0, 40.0))}
    assert find_ratios(theirs, ours) == [0.5, 0.75]


@pytest.mark.parametrize(("rounds", "shown"), [(5, "none: 5 of 6 rounds"), (6, "0.50 to 0.75")])
def test_the_table_says_what_an_interval_lacks(
    rounds: int, shown: str, fake: Callable[..., Loader], tmp_path: Path
) -> None:
    (ours,), other = find_loaders((PRESAVED,), (OURS,)), fake("good")
    samples = Samples(tmp_path / "samples.json", {})
    for number in range(rounds):
        for loader, speed in ((ours, 4.0), (other, 3.0 if number == 0 else 2.0)):
            samples.add(loader.key, number, metrics(speed))
    printed = io.StringIO()
    show([ours, other], samples, {}, Console(file=printed, width=250))
    (row,) = [line for line in printed.getvalue().splitlines() if "good" in line]
    assert shown in row


def test_as_many_rounds_are_measured_as_an_interval_needs() -> None:
    assert parse([]).rounds == MIN_ROUNDS


def test_pixels_are_normalised_into_a_row_of_a_batch() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    batch = np.zeros((2, 3, SIZE, SIZE), np.float32)
    normalise(pixels, batch[1])
    np.testing.assert_allclose(batch[1], (pixels.transpose(2, 0, 1) - PIXEL_MEAN) * PIXEL_SCALE, atol=1e-6)
    assert not batch[0].any()


def test_a_batch_is_used_again_only_once_it_was_given_back() -> None:
    batches = ReusedBatches(4)
    first, second = batches.take(4), batches.take(3)
    assert [len(first), len(second)] == [4, 3]
    assert not np.shares_memory(first, second)
    batches.give_back(second)
    assert np.shares_memory(batches.take(4), second)
    assert not np.shares_memory(batches.take(4), second)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_do_not_write_into_the_batch_that_is_in_use() -> None:
    workers, count = 2, 24
    begun = torch.multiprocessing.get_context("fork").Value("q", 0)

    class Numbered(torch.utils.data.Dataset[Any]):
        batches = SharedBatches(workers, 1, PREFETCH_FACTOR)

        def __getitem__(self, number: int) -> Any:
            batch = self.batches.take(1)
            batch.fill_(number)
            with begun.get_lock():
                begun.value += 1
            return batch

    loader = DataLoader(
        Numbered(), batch_size=None, sampler=range(count), num_workers=workers, multiprocessing_context="fork"
    )
    for number, batch in enumerate(loader):
        # The workers have then written all that they were asked for while this batch is in use.
        ahead = min(count, number + 1 + PREFETCH_FACTOR * workers)
        ends = time.monotonic() + 60
        while begun.value < ahead and time.monotonic() < ends:
            time.sleep(0.001)
        assert begun.value == ahead
        assert (batch == number).all()


def test_lines_of_user_code_are_without_imports_comments_and_docstrings() -> None:
    def load(folder: str) -> list[str]:
        """Several
        lines."""
        import json
        from pathlib import (
            Path,
        )

        # a comment
        names = [
            str(path)  # a line with a comment counts
            for path in Path(folder).iterdir()
        ]

        return json.loads(json.dumps(names))

    assert count_lines(load) == 6


def test_every_peer_has_loaders_and_pinned_requirements() -> None:
    assert sorted(path.stem for path in REQUIREMENTS.iterdir()) == sorted(PEERS)
    for peer in PEERS:
        assert find_loaders((RAW, PRESAVED), (peer,)), f"{peer} has no loaders"
        lines = (REQUIREMENTS / f"{peer}.txt").read_text().split()
        assert all("==" in line for line in lines)
        assert {"numpy", "psutil", "xxhash"} <= {line.partition("==")[0] for line in lines}, (
            f"handlers.py cannot run for {peer}"
        )


def test_an_environment_that_cannot_be_made_gives_the_line_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.txt").write_text(f"{tmp_path / 'no-such-package'}\n")
    monkeypatch.setattr(comparison, "REQUIREMENTS", tmp_path)
    with pytest.raises(NotInstalled, match=r"ERROR: .*no-such-package"):
        make_environment("broken", tmp_path / "environments")


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "spdl,tourch"]) == 2
    assert main(["--python", f"grian={sys.executable}"]) == 2
    refused = capsys.readouterr().err
    assert "no peer is called tourch" in refused
    assert "no peer is called grian" in refused
