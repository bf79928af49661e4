"""The work of a comparison: which files an epoch reads, and what all processes know before they are forked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from etl.comparison.settings import Candidate, Settings
from etl.comparison.workload import Workload, all_files
from tests.comparison_workloads import make_workload

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


def test_of_other_sources_all_files_may_be_read(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    workload.select(5)
    assert workload.files(RAW) == [tmp_path / "table.csv"]


def test_of_a_store_all_files_are_read(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    with workload.write("npy", "read", 1) as store:
        nbytes = store.nbytes
    files = workload.files(Candidate("presaved", "npy", "read"))
    assert sum(each.stat().st_size for each in files) >= nbytes


def test_a_pattern_is_the_files_that_match_it(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "c.txt"):
        (tmp_path / name).touch()
    assert all_files(f"{tmp_path}/*.tar") == [tmp_path / "a.tar", tmp_path / "b.tar"]
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
    workload.write("npy", "read", 1).close()
    before = len(list(Path("/proc/self/fd").iterdir()))
    candidate = Candidate("async-presaved", "npy", "read")
    with workload.iterator(candidate, workload.threads(candidate, False)) as iterator:
        labels = np.concatenate([batch.labels for batch in iterator])
    assert len(labels) == 200
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_every_candidate_loads_the_same_batches_in_the_same_order(tmp_path: Path) -> None:
    workload = make_workload(tmp_path)
    workload.write("npy", "read", 1).close()
    workload.select(200)
    loaded = []
    for candidate in workload.candidates():
        with workload.iterator(candidate, workload.threads(candidate, False)) as iterator:
            loaded.append([(batch.features.tolist(), batch.labels.tolist()) for batch in iterator])
    assert len(loaded) == 4
    assert all(each == loaded[0] for each in loaded)
