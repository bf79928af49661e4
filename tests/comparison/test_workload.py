"""The work of a comparison: files of an epoch, state that forked processes share, and subsets of a source."""

from __future__ import annotations

import gc
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
from etl.comparison.request.candidates import Candidate, StoreKind
from etl.comparison.request.settings import Settings
from etl.comparison.request.subset import Subset
from etl.comparison.request.work import all_files
from etl.comparison.run import workload as workload_module
from etl.comparison.run.workload import Workload
from etl.comparison.worker.builtin import write_store
from etl.loading import Padding
from etl.loading.lengths import source_lengths
from etl.sources import Record
from etl.sources.record import record_error
from tests.comparison_workloads import TRIED, make_workload, write_table
from tests.sequences import NOTHING, Sequences, sequences
from tests.user_modules import user_module
from tests.worker_processes import descriptors

RAW = Candidate("raw")


def write_sequences(folder: Path, count: int) -> Path:
    """CSV files of 1, 2, 3, ... steps, and their labels."""
    for number in range(count):
        (folder / f"{number}.csv").write_text("a,b\n" + "0.5,1.5\n" * (number + 1))
    (folder / "labels.csv").write_text("name,label\n" + "".join(f"{number},{number % 2}\n" for number in range(count)))
    return folder


def test_of_images_only_the_chosen_ones_are_read(photographs: Path, tmp_path: Path) -> None:
    workload = Workload(Settings(str(photographs), size=32), tmp_path, 1)
    assert len(workload.files(RAW)) == 40
    workload.select(7)
    chosen = workload.files(RAW)
    assert len(set(chosen)) == 7
    assert all(each.is_file() and each.suffix == ".jpg" for each in chosen)


@pytest.mark.parametrize(
    ("settings", "are_linked"),
    [
        ({}, False),
        ({"strategies": ("raw", "mine=my_loaders:load")}, True),
        ({"step": "my_steps:make_step"}, True),
    ],
    ids=["built-in strategies", "loader", "step"],
)
def test_photographs_are_linked_and_so_changed_only_for_code_of_the_user(
    settings: dict[str, Any], are_linked: bool, photographs: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(photographs, tmp_path / "photos")
    workload = Workload(Settings(str(folder), size=32, **settings), tmp_path, 1)
    workload.select(7)
    before = [each.stat().st_ctime_ns for each in workload.source_files()]
    workload.link_records()
    assert workload.link_folder.exists() is are_linked
    assert are_linked or [each.stat().st_ctime_ns for each in workload.source_files()] == before


def test_the_files_of_a_relative_source_are_found_though_code_of_the_user_changes_the_working_folder(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(photographs, tmp_path / "photos")
    write_table(tmp_path, 200)
    monkeypatch.chdir(tmp_path)
    table = Workload(Settings("table.csv", table_options={"label": "kind"}), tmp_path, 1)
    photos = Workload(Settings("photos", size=32, step="my_steps:make_step"), tmp_path, 1)
    photos.select(7)
    files = [*photos.source_files(), *table.source_files()]
    photos.link_records()
    assert len(list(photos.link_folder.rglob("*.jpg"))) == 7
    monkeypatch.chdir("/")
    assert len(files) == 8
    assert all(each.is_file() for each in files)


def test_of_other_sources_all_files_may_be_read(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    workload.select(5)
    assert workload.files(RAW) == [tmp_path / "table.csv"]


@pytest.mark.parametrize(
    ("requested", "of_folder", "of_table"),
    [({"path"}, True, False), ({"source"}, True, True), (set(), False, False)],
)
def test_a_loader_gets_the_selected_records_if_it_asked_for_what_has_them(
    requested: set[str], of_folder: bool, of_table: bool, photographs: Path, tmp_path: Path
) -> None:
    strategies = ("raw", "mine=my_loaders:load")
    folder = Workload(Settings(str(photographs), strategies=strategies, size=32), tmp_path, 1)
    table = make_workload(tmp_path, strategies=strategies)
    for workload, gets_selected in ((folder, of_folder), (table, of_table)):
        mine = workload.candidates()[1]
        workload.tried[mine] = replace(TRIED, has_selected_records=False)
        workload.requested[mine] = requested
        assert workload.gets_selected(mine)
        workload.select(7)
        assert workload.gets_selected(mine) is gets_selected


@pytest.mark.parametrize(("requested", "count"), [({"path"}, 7), ({"source"}, 7), (set(), 40)])
@pytest.mark.parametrize("has_selected_records", [False, True])
def test_a_loader_that_asks_for_no_records_may_read_all_files_of_a_folder(
    requested: set[str], count: int, has_selected_records: bool, photographs: Path, tmp_path: Path
) -> None:
    workload, mine = asked_for(requested, has_selected_records, photographs, tmp_path)
    assert len(set(workload.user_loader(mine).files)) == count
    assert workload.prepared().unknown_files == set()


@pytest.mark.parametrize(("limit", "value"), [("MAX_WHOLE_FILES", 39), ("MAX_WHOLE_NBYTES", 10)])
def test_the_files_of_a_large_folder_are_not_all_looked_at_in_each_sample(
    limit: str, value: int, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload_module, limit, value)
    workload, mine = asked_for(set(), False, photographs, tmp_path)
    assert len(workload.user_loader(mine).files) == 7
    assert workload.prepared().unknown_files == {mine}
    workload, mine = asked_for({"path"}, False, photographs, tmp_path)
    assert workload.prepared().unknown_files == set()


def test_files_of_a_source_that_is_no_path_are_unknown_but_not_those_of_its_store(tmp_path: Path) -> None:
    code = """
    import numpy as np

    def dataset():
        return [{"features": np.zeros(4, np.float32), "label": number % 2} for number in range(20)]
    """
    strategies = ("raw", "async-presaved")
    settings = Settings("my_records:dataset", strategies=strategies, batch_size=8, compute="simulated:1ms")
    with user_module(tmp_path, "my_records", code):
        workload = Workload(settings, tmp_path / "stores", 1)
    raw, _ = workload.candidates()
    assert workload.prepared().unknown_files == {raw}


def asked_for(
    requested: set[str], has_selected_records: bool, photographs: Path, folder: Path
) -> tuple[Workload, Candidate]:
    """Return a workload of 7 of 40 photographs, and a user's loader that asked for `requested` when it was tried."""
    workload = Workload(Settings(str(photographs), strategies=("raw", "mine=my_loaders:load"), size=32), folder, 1)
    mine = workload.candidates()[1]
    workload.tried[mine] = replace(TRIED, has_selected_records=has_selected_records)
    workload.requested[mine] = requested
    workload.select(7)
    return workload, mine


def test_of_a_store_all_files_are_read(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    nbytes = write_store(workload, StoreKind("npy", "read"), 1).nbytes
    files = workload.files(Candidate("presaved", "npy", "read"))
    assert sum(each.stat().st_size for each in files) >= nbytes


def test_a_pattern_is_the_files_that_match_it(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("b.tar", "a.tar", "c.txt", "d/e.tar"):
        (tmp_path / name).touch()
    assert all_files(f"{tmp_path}/*.tar") == [tmp_path / "a.tar", tmp_path / "b.tar"]
    for pattern in ("**/*.tar", "**/**/*.tar"):
        assert all_files(tmp_path / pattern) == [tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "d" / "e.tar"]
    assert all_files(tmp_path / "missing.csv") == []


@pytest.mark.parametrize("count", [6, 4])
def test_lengths_of_sequences_are_counted_before_processes_are_forked(tmp_path: Path, count: int) -> None:
    folder = write_sequences(tmp_path, 6)
    workload = Workload(Settings(str(folder)), tmp_path / "stores", 1)
    workload.select(count)
    for file in folder.glob("?.csv"):
        file.unlink()
    assert workload.records.lengths.tolist() == (workload.records.indices + 1).tolist()


def test_a_store_that_is_opened_for_an_iterator_is_closed_with_it(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    write_store(workload, StoreKind("npy", "read"), 1)
    gc.collect()  # what earlier tests left
    before = descriptors()
    candidate = Candidate("async-presaved", "npy", "read")
    with workload.iterator(candidate, workload.threads(candidate)) as iterator:
        labels = np.concatenate([batch.labels for batch in iterator])
    assert len(labels) == 200
    assert descriptors() <= before


def test_every_candidate_loads_the_same_batches_in_the_same_order(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    write_store(workload, StoreKind("npy", "read"), 1)
    workload.select(200)
    loaded = []
    for candidate in workload.candidates():
        with workload.iterator(candidate, workload.threads(candidate)) as iterator:
            loaded.append([(batch.features.tolist(), batch.labels.tolist()) for batch in iterator])
    assert len(loaded) == 4
    assert all(each == loaded[0] for each in loaded)


class Named:
    """Ten records that have a name and describe themselves."""

    name = "letters"
    classes = ("even", "odd")

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Record:
        return {"features": np.full(3, index, np.float32), "label": index % 2}

    def describe(self, index: int) -> str:
        return f"letter {'abcdefghij'[index]}"


def test_records_are_chosen_at_random_once_each_and_stay_in_order() -> None:
    subset = Subset(Named(), 9, seed=0)
    numbers = [int(subset[index]["features"][0]) for index in range(len(subset))]
    assert len(numbers) == len(set(numbers)) == 9
    assert numbers == sorted(numbers)
    assert numbers == subset.indices.tolist()


def test_the_seed_alone_decides_which_records() -> None:
    chosen = [Subset(Named(), 5, seed).indices.tolist() for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]


@pytest.mark.parametrize("count", [10, 11, 1000])
def test_of_a_source_with_no_more_all_records_are_taken(count: int) -> None:
    assert Subset(Named(), count, seed=3).indices.tolist() == list(range(10))


def test_name_and_classes_are_those_of_the_source() -> None:
    subset = Subset(Named(), 5, seed=0)
    assert (subset.name, subset.classes) == ("letters", ("even", "odd"))


def test_messages_name_a_record_by_its_number_in_the_source() -> None:
    subset = Subset(Named(), 5, seed=0)
    number = int(subset.indices[3])
    assert subset.describe(3) == f"record {number}, letter {'abcdefghij'[number]}"
    assert f"record {number}, letter" in str(record_error(subset, 3, "read", ValueError("bad")))
    assert Subset([{"features": np.zeros(2)}] * 4, 2, seed=0).describe(0).startswith("record ")


def test_ragged_fields_and_lengths_are_those_of_the_chosen_records() -> None:
    whole = Sequences(sequences(30))
    subset = Subset(whole, 12, seed=1)
    assert subset.ragged == whole.ragged
    assert subset.lengths.tolist() == [len(subset[index]["features"]) for index in range(12)]
    found = source_lengths(subset, NOTHING)
    assert found is not None
    assert found.of("features").tolist() == subset.lengths.tolist()  # type: ignore[union-attr]


def test_lengths_of_each_field_are_chosen_for_each() -> None:
    class Two(Sequences):
        @property
        def lengths(self) -> dict[str, list[int]]:  # type: ignore[override]
            return {"features": [len(each["features"]) for each in self], "label": [1] * len(self)}

    subset = Subset(Two(sequences(20)), 5, seed=0)
    assert subset.lengths["features"].tolist() == [len(subset[index]["features"]) for index in range(5)]
    assert subset.lengths["label"].tolist() == [1] * 5


def test_a_source_without_lengths_classes_or_ragged_fields_does_not_seem_to_have_them() -> None:
    subset = Subset(sequences(8), 4, seed=0)
    for name in ("lengths", "classes", "ragged", "options"):
        assert not hasattr(subset, name)
    assert source_lengths(subset, NOTHING) is None


def test_batches_of_a_subset_are_padded_as_those_of_the_whole() -> None:
    whole = Sequences(sequences(30))
    with etl.RawIterator(Subset(whole, 7, seed=0), NOTHING, 7, padding=Padding()) as iterator:
        (batch,) = list(iterator)
    assert batch.features_mask.sum(axis=1).tolist() == Subset(whole, 7, seed=0).lengths.tolist()


def test_a_subset_goes_to_worker_processes_as_it_is() -> None:
    subset = Subset(Named(), 4, seed=2)
    copy = pickle.loads(pickle.dumps(subset))
    assert copy.indices.tolist() == subset.indices.tolist()
    assert [copy[index]["label"] for index in range(4)] == [subset[index]["label"] for index in range(4)]


class Batched:
    """A data set that can return all items of a batch at once."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        raise AssertionError("asked for one item")

    def __getitems__(self, indices: list[int]) -> list[int]:
        assert all(type(each) is int for each in indices)
        return [100 * each for each in indices]


def test_a_subset_returns_a_batch_at_once_if_the_data_set_can() -> None:
    torch = pytest.importorskip("torch")
    subset = Subset(range(10), 4, 0)
    chosen = pickle.loads(pickle.dumps(subset.of(Batched())))
    batches = torch.utils.data.DataLoader(chosen, batch_size=3)
    assert [item for batch in batches for item in batch.tolist()] == (100 * subset.indices).tolist()
    assert not hasattr(subset.of(range(10)), "__getitems__")
