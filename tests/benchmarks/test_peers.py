"""Loaders of other projects alternate with this project's, and what is close is tuned."""

from __future__ import annotations

import ast
import importlib
import json
import random
import re
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import etl
from benchmarks.measuring.processes import MeasurementError
from benchmarks.peers import environments
from benchmarks.peers.environments import REQUIREMENTS, NotInstalled, find_versions, make_environment
from benchmarks.peers.loader import (
    PIXEL_MEAN,
    PIXEL_SCALE,
    SIZE,
    ReusedBatches,
    SharedBatches,
    decode,
    draw_crop,
    list_photographs,
    normalise,
)
from benchmarks.peers.pairs import DOCUMENTED, TUNED, Key, Loader, PairResult, Work, tuned_arguments
from benchmarks.peers.peer_table import PeerStudy
from benchmarks.peers.rows import AGAIN, CROPS, OURS, PEERS, PRESAVED, RAW, ROWS, SLOWED, Row
from benchmarks.peers.worker import LoadedEpochs, LoaderRequest, check_epoch, measure
from benchmarks.servers import ROOT
from etl.stages.cursor import ThreadCursor
from tests.peer_journals import write_journal
from tests.programs import output_of

BATCH_SIZE, PREFETCH_FACTOR, PHOTOGRAPHS = 8, 2, 40
MODULE = "benchmarks.peers.__main__"
# Peers whose libraries the tests have.
HERE = ("fair_etl", "torch_dataloader", "threads", "hdf5")
PEER_FILES = Path(environments.__file__).parent


def refuse(peer: str, folder: Path) -> str:
    raise NotInstalled(f"no wheel of {peer}")


@pytest.fixture
def peers(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the command's module, which finds the photographs of the tests and works in a folder of its own."""
    module = importlib.import_module(MODULE)
    monkeypatch.setattr(module, "find_photographs", lambda count: photographs)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "peers")
    return module


@pytest.fixture(scope="module")
def compared(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Return the exit code and the journal of a pair of all loaders that can run here, as documented.

    There are two more: one cannot be installed, and the other is in no module.
    """
    for library in ("cv2", "simplejpeg"):
        pytest.importorskip(library, reason="the fast extra is not installed")
    folder = tmp_path_factory.mktemp("peers")
    # An earlier study was interrupted while it wrote these files.
    (folder / f"prepared-{PHOTOGRAPHS}" / "threads-load_memmap.unfinished").mkdir(parents=True)

    with pytest.MonkeyPatch.context() as patch:
        module = importlib.import_module(MODULE)
        patch.setattr(module, "find_photographs", lambda count: photographs)
        patch.setattr(module, "FOLDER", folder)
        patch.setattr(module, "make_environment", refuse)
        patch.setattr(module, "CLOSE", 0.0)
        rows = [row for row in ROWS if row.peer in HERE]
        every = (*rows, Row("no wheel", RAW, "dali", "Load"), Row("no class", RAW, "threads", "No"))
        for owner in (module, importlib.import_module("benchmarks.peers.peer_table")):
            patch.setattr(owner, "ROWS", every)
        given = [f"--python={peer}={sys.executable}" for peer in HERE]
        counts = ["--pairs", "1", "--photographs", str(PHOTOGRAPHS), "--batch-size", str(BATCH_SIZE)]
        journal = folder / "peers.jsonl"
        return module.main([*counts, *given, "--samples", str(journal)]), journal


@pytest.mark.slow
def test_every_loader_has_a_pair_with_the_same_images_as_ours(compared: tuple[int, Path]) -> None:
    code, journal = compared
    assert code == 0
    results = PeerStudy(journal).results
    measured = {key: each for key, each in results.items() if not each.failure}
    names = {(key[0], key[1]) for key in measured}
    expected = {(row.task, row.name) for row in ROWS if row.peer in HERE}
    assert expected - names == (set() if find_spec("torchvision") else {(CROPS, "DataLoader, torchvision")})
    for (task, name, arm, number), each in measured.items():
        assert (arm, number) == (DOCUMENTED, 0)
        assert each.ratio > 0
        assert each.other is not None
        assert each.other.peak_nbytes > 0
        if task == PRESAVED:  # the same pixels, normalised by another loop
            assert each.distance is not None
            assert each.distance < 1e-3
        elif task == RAW and "Pillow" not in name:
            assert each.distance is not None
            assert each.distance < 0.2


@pytest.mark.slow
def test_peers_that_cannot_be_installed_or_imported_are_named_with_the_reason(compared: tuple[int, Path]) -> None:
    results = PeerStudy(compared[1])
    assert results.header["missing"]["dali"] == "no wheel of dali"
    assert "No" in results.results[RAW, "no class", DOCUMENTED, 0].failure


def epochs(*seconds: float, watched: dict[str, list[float]] | None = None) -> LoadedEpochs:
    """Return epochs of these seconds."""
    return LoadedEpochs(list(seconds), sum(seconds), 10**8, watched or {})


def pair(ours: float, theirs: float, **more: Any) -> PairResult:
    """Return a pair whose epochs took these seconds."""
    return PairResult(epochs(ours), epochs(theirs), **more)


def rows_of(task: str, *names: str) -> list[Row]:
    return [row for row in ROWS if row.task == task and row.name in (OURS, *names)]


def take_all(peers: Any, rows: Sequence[Row], measured: Callable[[Key], PairResult], count: int = 2) -> list[Key]:
    """Return the keys in the order in which a study with these results takes them."""
    results: dict[Key, PairResult] = {}
    while missing := [key for key in peers.wanted_pairs(results, rows, count) if key not in results]:
        results[missing[0]] = measured(missing[0])
    return list(results)


def test_settings_are_tried_where_the_row_is_close_and_pairs_are_added_until_the_interval_is_narrow(
    peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, far = "SPDL, simplejpeg", "DALI on the CPU"
    monkeypatch.setattr(peers, "MAX_COUNT", 9)

    def measured(key: Key) -> PairResult:
        _, name, arm, number = key
        if name == far:
            return pair(1.0, 2.0, alternatives={"workers": [1]})
        if "=" in arm:
            return pair(1.0, 0.8 if arm == "workers=3" else 1.1, arguments={"workers": 3})
        noise = 0.2 if arm == DOCUMENTED else 0.0
        return pair(1.0, 1.0 + noise * (number % 2), alternatives={"workers": [1, 3]})

    keys = take_all(peers, rows_of(RAW, close, far, AGAIN, SLOWED), measured)
    documented = [(name, number) for _, name, arm, number in keys if arm == DOCUMENTED]
    assert sum(name == far for name, _ in documented) == 2
    assert sum(name == close for name, _ in documented) == 9  # its interval stays wide
    tried = {(name, arm) for _, name, arm, _ in keys if "=" in arm}
    assert tried == {(name, f"workers={count}") for name in (OURS, close) for count in (1, 3)}
    # Six pairs make an interval, and here it has no width.
    assert [key[3] for key in keys if key[2] == TUNED] == list(range(6))
    assert {key[1] for key in keys if key[2] == TUNED} == {close}


def test_settings_that_fail_beside_those_of_ours_are_not_tried_further(peers: Any) -> None:
    def measured(key: Key) -> PairResult:
        if key[2] == TUNED:
            return PairResult(None, None, failure="it was killed")
        if "=" in key[2]:
            return pair(1.0, 0.8, arguments={"workers": 3})
        return pair(1.0, 1.0, alternatives={"workers": [3]})

    keys = take_all(peers, rows_of(RAW, "SPDL, simplejpeg"), measured)
    assert [key[3] for key in keys if key[2] == TUNED] == [0, 1]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("fails", ["open", "turn"])
def test_a_failure_of_ours_ends_the_study_and_that_of_another_is_its_result(
    fails: str, number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours, other = (Loader(Row(name, RAW, "threads", "load_raw"), "", {}) for name in ("ours", "other"))

    @contextmanager
    def open_loader(_: Work, loader: Loader) -> Iterator[Any]:
        def fail() -> NoReturn:
            raise MeasurementError("it failed", reason=f"{fails} failed")

        if loader is failing and fails == "open":
            fail()
        yield {"alternatives": {}}, lambda request: fail() if loader is failing else epochs(1.0).to_json()
        if loader is failing:  # its process cannot end the session, either
            raise MeasurementError("it has ended")

    monkeypatch.setattr(Work, "_open", open_loader)
    work = Work(tmp_path, tmp_path, 1, 1, 1)
    failing = other
    assert work.take(ours, other, number) == PairResult(None, None, failure=f"{fails} failed")
    failing = ours
    with pytest.raises(MeasurementError, match="it failed"):
        work.take(ours, other, number)


def test_the_fastest_setting_counts_if_it_is_faster_by_more_than_noise() -> None:
    def trials(faster: float) -> dict[Key, PairResult]:
        made = {(RAW, OURS, "workers=3", n): pair(faster, 1.0, arguments={"workers": 3}) for n in range(2)}
        return {**made, **{(RAW, OURS, "workers=1", n): pair(0.5, 1.0, arguments={"workers": 1}) for n in range(2)}}

    assert tuned_arguments(trials(1.2), RAW, OURS) == {"workers": 3}
    assert tuned_arguments(trials(1.01), RAW, OURS) == {}
    assert tuned_arguments({}, RAW, OURS) == {}


def test_a_row_that_failed_is_asked_once(peers: Any) -> None:
    failed = PairResult(None, None, failure="ModuleNotFoundError: no module named 'grain'")
    keys = take_all(peers, rows_of(RAW, "Grain, simplejpeg"), lambda key: pair(1, 1) if key[1] == OURS else failed)
    assert [key[1] for key in keys] == [OURS, "Grain, simplejpeg"]


class Loads:
    """A loader that yields what it is given, and knows how often it was begun."""

    def __init__(self, *batches: Any) -> None:
        self.batches, self.begun = batches, 0

    def __iter__(self) -> Any:
        self.begun += 1
        return iter(self.batches)


def batch_of(*labels: int) -> tuple[np.ndarray, np.ndarray]:
    return np.full((len(labels), 3, SIZE, SIZE), 0.5, np.float32), np.array(labels, np.int64)


def test_a_loader_is_warmed_then_timed_and_looked_at_once() -> None:
    loader = Loads(batch_of(0, 2), batch_of(1))
    taken = measure(loader, LoaderRequest({}, 3, 1e-9, is_checked=True))
    assert (loader.begun, len(taken.epochs)) == (3, 1)
    assert sorted(taken.watched) == ["0", "1", "2"]
    assert measure(loader, LoaderRequest({}, 3, 1e-9, is_checked=False)).watched == {}
    assert loader.begun == 5


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([batch_of(0, 1)], "an epoch has 2 records, 2 of 3 different ones"),
        ([batch_of(0, 1, 1)], "an epoch has 3 records, 2 of 3"),
        ([(np.zeros((3, 3, 8, 8), np.float32), np.arange(3))], "its images are float32 of shape"),
        ([(np.zeros((3, 3, SIZE, SIZE)), np.arange(3))], "its images are float64"),
    ],
)
def test_an_epoch_without_all_records_is_refused(batches: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_epoch(Loads(*batches), 3)


def test_the_slowed_copy_is_slower_by_two_percent_of_the_same_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path, tmp_path, PHOTOGRAPHS, BATCH_SIZE, 1)
    given: list[str] = []

    @contextmanager
    def open_loader(_: Work, loader: Loader) -> Iterator[Any]:
        def ask(request: Any) -> Any:
            given.append(loader.row.name)
            return epochs(1.0, watched={"0": [0.0]}).to_json()

        yield {"alternatives": {}}, ask

    monkeypatch.setattr(Work, "_open", open_loader)
    ours, again, slowed = (Loader(row, "python", {}) for row in rows_of(RAW, AGAIN, SLOWED))
    assert work.take(ours, again, 0).ratio == 1
    assert work.take(ours, slowed, 1).ratio == pytest.approx(1 / 1.02)
    assert given == [OURS, AGAIN, SLOWED, OURS]  # the other one begins in every second pair


def test_crops_have_the_areas_and_aspects_of_torchvision() -> None:
    random.seed(0)
    drawn = np.array([draw_crop(400, 500) for _ in range(2000)])
    top, left, height, width = drawn.T
    assert (top >= 0).all()
    assert (top + height <= 400).all()
    assert (left + width <= 500).all()
    area, aspect = height * width / (400 * 500), width / height
    assert area.min() == pytest.approx(0.08, abs=0.01)
    assert 0.45 < area.mean() < 0.6
    assert aspect.min() > 0.74
    assert aspect.max() < 1.35


def test_an_interrupted_study_goes_on(peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def take(self: Work, base: Loader, other: Loader, number: int) -> PairResult:
        asked.append(other.row.name)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return pair(1.0, 3.0)

    monkeypatch.setattr(Work, "take", take)
    options = ["--pairs=1", f"--photographs={PHOTOGRAPHS}", "--task=raw", f"--python={sys.executable}"]
    options += ["--only=spdl,dali,grain", f"--samples={tmp_path / 'peers.jsonl'}"]
    assert peers.main(options) == 130
    assert peers.main(options) == 0
    assert len(asked) == 1 + len(set(asked))


def test_what_is_kept_of_another_number_of_photographs_is_not_loaded(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: set[Path] = set()

    def take(self: Work, base: Loader, other: Loader, number: int) -> PairResult:
        kept.add(self.prepared)
        return pair(1.0, 3.0)

    monkeypatch.setattr(Work, "take", take)
    options = ["--pairs=1", "--task=raw", "--only=threads", f"--python={sys.executable}"]
    for count in (PHOTOGRAPHS, 2 * PHOTOGRAPHS):
        assert peers.main([*options, f"--photographs={count}", f"--samples={tmp_path / f'{count}.jsonl'}"]) == 0
    assert len(kept) == 2


def test_the_committed_journal_of_another_machine_is_refused_before_environments_are_made(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "find_interpreters", pytest.fail)
    journal = write_journal(tmp_path / "peers.jsonl")
    before = journal.read_text()
    assert peers.main(["--photographs=1000"]) == 2
    assert "was measured on 2 CPUs (a processor)" in capsys.readouterr().err
    assert journal.read_text() == before


def test_committed_results_are_printed_on_any_machine_without_environments(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "RESULTS", tmp_path)
    monkeypatch.setattr(peers, "find_interpreters", pytest.fail)
    journal = write_journal(tmp_path / "peers.jsonl")
    results = PeerStudy(journal).results
    ours, again = (RAW, OURS, DOCUMENTED, 0), results[RAW, AGAIN, DOCUMENTED, 0]
    with journal.open("a") as file:
        file.write(json.dumps({"key": ours, "result": again.to_json()}) + "\n")
    before = journal.read_text()
    options = ["--pairs=6", "--task=raw", "--only=spdl"]
    assert peers.main([*options, "--photographs=1000"]) == 0
    said = capsys.readouterr()
    assert "SPDL, simplejpeg" in said.out
    assert f"Nothing was measured: {journal} had all results" in said.err
    assert peers.main(options) == 2
    assert "was measured with photographs 1000" in capsys.readouterr().err
    assert journal.read_text() == before


def test_each_photograph_has_a_label_of_its_own(peers: Any, photographs: Path, tmp_path: Path) -> None:
    folder = peers.make_inputs(photographs, tmp_path / "inputs")
    files, labels = list_photographs(str(folder))
    assert labels.tolist() == list(range(PHOTOGRAPHS))
    assert labels.dtype == np.int64
    assert [each.read_bytes() for each in files] == [
        (photographs / each).read_bytes() for each in etl.ImageFolder(photographs).files
    ]


def test_pixels_that_are_kept_are_those_of_our_pipeline(photographs: Path) -> None:
    source = etl.ImageFolder(photographs)
    records = etl.records(source, etl.image_pipeline(size=SIZE).until("resize"))
    files, labels = list_photographs(str(photographs))
    for number in (0, len(files) - 1):
        assert (decode(files[number]) == records[number]["features"]).all()
        assert labels[number] == records[number]["label"]


def test_pixels_are_normalised_into_a_row_of_a_batch() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    batch = np.zeros((2, 3, SIZE, SIZE), np.float32)
    normalise(pixels, batch[1])
    np.testing.assert_allclose(batch[1], (pixels.transpose(2, 0, 1) - PIXEL_MEAN) * PIXEL_SCALE, atol=1e-6)
    assert not batch[0].any()


def test_ffcv_normalises_in_one_pass_with_the_arithmetic_of_the_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba", reason="the fast extra is not installed")
    file = PEER_FILES / "ffcv.py"
    for node in ast.parse(file.read_text()).body:  # the tests lack the library
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("ffcv."):
            stand_in: Any = ModuleType(node.module)
            for each in node.names:
                setattr(stand_in, each.name, type(each.name, (), {"get_iterator": lambda: range}))
            monkeypatch.setitem(sys.modules, node.module, stand_in)
    operation = runpy.run_path(str(file))["NormaliseChannelsFirst"]().generate_code()
    assert not any(isinstance(each.cell_contents, np.ndarray) for each in operation.__closure__)  # no table
    images = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), np.uint8)
    batch = np.zeros((3, 3, SIZE, SIZE), np.float32)
    written = numba.njit(operation)(images, batch)
    assert len(written) == 2
    expected = np.empty_like(written)
    for pixels, image in zip(images, expected, strict=True):
        normalise(pixels, image)
    np.testing.assert_allclose(written, expected, atol=1e-6)
    assert not batch[2].any()


def test_the_loop_of_the_other_rows_writes_straight_into_a_batch_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba", reason="the fast extra is not installed")
    fair_etl = importlib.import_module("benchmarks.peers.fair_etl")
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)
    record = {"features": pixels, "label": np.int64(7)}
    expected = fair_etl.normalised(record)["features"]
    monkeypatch.setattr(fair_etl, "normalised", pytest.fail)
    batch = {"features": np.zeros((2, 3, SIZE, SIZE), np.float32), "label": np.zeros(2, np.int64)}
    etl.Pipeline([fair_etl.NormalisedInPlace()]).write_into(record, batch, 1, None, ThreadCursor())
    np.testing.assert_array_equal(batch["features"][1], expected)
    assert (batch["features"][0].any(), batch["label"].tolist()) == (False, [0, 7])


def test_a_batch_is_used_again_only_once_it_was_given_back() -> None:
    batches = ReusedBatches(4)
    first, second = batches.take(4), batches.take(3)
    assert [len(first), len(second)] == [4, 3]
    assert not np.shares_memory(first, second)
    batches.give_back(second)
    assert np.shares_memory(batches.take(4), second)
    assert not np.shares_memory(batches.take(4), second)


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_workers_do_not_write_into_the_batch_that_is_in_use(in_order: bool) -> None:
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
        Numbered(),
        batch_size=None,
        sampler=range(count),
        num_workers=workers,
        prefetch_factor=PREFETCH_FACTOR,
        multiprocessing_context="fork",
        in_order=in_order,
    )
    seen = []
    for number, batch in enumerate(loader):
        first = int(batch[0, 0, 0, 0])
        # The workers have then written all that they were asked for while this batch is in use.
        ahead = min(count, number + 1 + PREFETCH_FACTOR * workers)
        ends = time.monotonic() + 60
        while begun.value < ahead and time.monotonic() < ends:
            time.sleep(0.001)
        assert begun.value == ahead
        assert (batch == first).all()
        seen.append(first)
    assert (seen if in_order else sorted(seen)) == list(range(count))


def test_a_torchvision_that_is_built_for_cuda_loads_beside_a_torch_without_it(
    photographs: Path, tmp_path: Path
) -> None:
    for library in ("cv2", "simplejpeg"):
        pytest.importorskip(library, reason="the fast extra is not installed")
    transforms = tmp_path / "torchvision" / "transforms"
    transforms.mkdir(parents=True)
    names = ("Compose", "Normalize", "PILToTensor", "RandomHorizontalFlip", "RandomResizedCrop", "ToDtype")
    (transforms / "v2.py").write_text(f"def make(*_, **__): pass\n{' = '.join(names)} = make\n")
    (tmp_path / "torchvision" / "__init__.py").write_text(
        "from torch.library import register_fake\n"
        "for operator in ('nms', 'qnms'):\n"
        "    register_fake(f'torchvision::{operator}')(lambda dets, scores, iou_threshold: dets)\n"
    )
    program = (
        "from benchmarks.peers.torch_dataloader import load_with_torchvision\n"
        f"for _ in range(2): print(len(load_with_torchvision({str(photographs)!r}, {BATCH_SIZE}, 1)))"
    )
    batches = str(PHOTOGRAPHS // BATCH_SIZE)
    assert output_of("-c", program, cwd=ROOT, PYTHONPATH=str(tmp_path)).split() == [batches, batches]


def test_every_row_has_a_loader_and_what_is_kept_is_prepared() -> None:
    for row in ROWS:
        source = (PEER_FILES / f"{row.peer}.py").read_text()
        assert re.search(rf"^(def|class) {row.loader}\b", source, re.MULTILINE), row
        assert "prepare" in source or row.task == RAW, row
    assert len({(row.task, row.name) for row in ROWS}) == len(ROWS)


def declared_settings(tree: ast.Module, loader: str) -> dict[str, tuple[Any, ...]]:
    """Return what `loader.settings = ...` declares in a file, without running it: its library may not be installed."""
    named = {
        target.id: each.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    (value,) = [
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if ast.unparse(target) == f"{loader}.settings"
    ]
    found: dict[str, tuple[Any, ...]] = ast.literal_eval(named[value.id] if isinstance(value, ast.Name) else value)
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.task} {row.name}")
def test_every_loader_declares_settings_whose_defaults_are_among_the_values(row: Row) -> None:
    tree = ast.parse((PEER_FILES / f"{row.peer}.py").read_text())
    loader = {"LoadCrops": "LoadRaw"}.get(row.loader, row.loader)  # inherits them
    made = next(each for each in tree.body if getattr(each, "name", None) == loader)
    if isinstance(made, ast.ClassDef):
        made = next(each for each in made.body if getattr(each, "name", None) == "__init__")
    assert isinstance(made, ast.FunctionDef)
    parameters, defaults = made.args.args, made.args.defaults
    by_name = {
        each.arg: ast.literal_eval(value)
        for each, value in zip(parameters[len(parameters) - len(defaults) :], defaults, strict=True)
    }
    settings = declared_settings(tree, loader)
    assert "workers" in settings
    assert {name for name in settings if name != "workers"} == set(by_name)
    for name, value in by_name.items():
        assert value in settings[name]
    for values in settings.values():
        assert isinstance(values, tuple)
        assert len(set(values)) == len(values) > 1


@pytest.mark.parametrize("peer", [peer for peer in PEERS if peer != "fair_etl"])
def test_every_peer_links_to_advice_of_its_authors(peer: str) -> None:
    docstring = ast.get_docstring(ast.parse((PEER_FILES / f"{peer}.py").read_text())) or ""
    assert re.search(r"[\w.-]+\.(com|org|io|co|ai)/[\w./-]+", docstring)
    assert "advise" in docstring or "says" in docstring or "gives" in docstring


def test_versions_of_an_environment_are_those_that_it_has() -> None:
    found = find_versions(sys.executable, "threads")
    assert found["numpy"] == np.__version__
    assert {"python", "psutil", "xxhash"} <= set(found)


def test_every_peer_has_pinned_requirements() -> None:
    assert sorted(path.stem for path in REQUIREMENTS.iterdir()) == sorted(PEERS)
    for peer in PEERS:
        lines = (REQUIREMENTS / f"{peer}.txt").read_text().split()
        assert all("==" in line for line in lines)
        # What measuring and `loader.py` need.
        assert {"numpy", "pillow", "psutil", "xxhash"} <= {line.partition("==")[0] for line in lines}, peer


def test_an_environment_that_cannot_be_made_gives_the_line_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.txt").write_text(f"{tmp_path / 'no-such-package'}\n")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    with pytest.raises(NotInstalled, match=r"ERROR: .*no-such-package"):
        make_environment("broken", tmp_path / "environments")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "spdl,tourch"], "no peer is called tourch"),
        (["--python", f"tourch={sys.executable}"], "no peer is called tourch"),
        (["--python", "spdl=/no/such/python"], "'/no/such/python' is not a program"),
    ],
)
def test_an_unknown_peer_or_program_is_refused(
    arguments: list[str], said: str, peers: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        peers.main(arguments)
    assert said in capsys.readouterr().err


def test_without_our_own_loader_nothing_is_measured(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "make_environment", refuse)
    samples = f"--samples={tmp_path / 'peers.jsonl'}"
    assert peers.main(["--only=threads", f"--python=threads={sys.executable}", samples]) == 2
    said = capsys.readouterr().err
    assert "fair_etl is left out: no wheel of fair_etl" in said
    assert "nothing was measured: all others are compared with fair_etl" in said
