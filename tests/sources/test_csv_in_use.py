"""Csv in use: batches, stores, threads and the command line."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import etl
import presave
from etl.commands import main
from etl.sources import RecordError
from etl.sources.csv import LINES_PER_BLOCK
from tests.csv_files import table, write
from tests.readers import assert_threads_and_a_fork_read, descriptors_below
from tests.refusals import refusal


def test_the_index_keeps_half_a_byte_a_record(tmp_path: Path) -> None:
    small, large = (len(pickle.dumps(etl.Csv(table(tmp_path, rows), label="label"))) for rows in (16, 16 + 16_000))
    assert LINES_PER_BLOCK == 16
    assert large - small < 16_000 * 0.5 + 100


@pytest.mark.parametrize(
    "options", [{"missing": 0}, {"features": ["d", "c", "b", "a"]}, {"regression": True}, {"dtype": "float64"}], ids=str
)
def test_a_store_that_was_begun_with_other_options_is_not_gone_on_with(options: dict[str, Any], tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_text(path.read_text() + "1,2,3,x,4\n")
    interrupted, changed = (etl.Csv(path, label="label", **more) for more in ({}, options))
    with pytest.raises(RecordError, match="'x' is not a number"):
        presave.write(tmp_path / "s", etl.records(interrupted, etl.Pipeline([])), shard_nbytes=1000)
    with pytest.raises(presave.StoreError, match="holds the beginning of another store"):
        presave.write(tmp_path / "s", etl.records(changed, etl.Pipeline([])), shard_nbytes=1000)


def test_a_pickled_source_reads_the_same_and_holds_no_file_until_then(tmp_path: Path) -> None:
    source = etl.Csv(table(tmp_path), label="label")
    source[0]
    copy = pickle.loads(pickle.dumps(source))
    source.close()
    assert descriptors_below(tmp_path) == []
    assert copy[311]["features"].tobytes() == source[311]["features"].tobytes()


def test_a_source_that_is_gone_leaves_no_file_open(tmp_path: Path) -> None:
    source = etl.Csv(table(tmp_path), label="label")
    source[0]
    assert len(descriptors_below(tmp_path)) == 1
    del source
    assert descriptors_below(tmp_path) == []


def test_threads_and_a_forked_process_read_their_own_records(tmp_path: Path) -> None:
    source = etl.Csv(table(tmp_path), label="label")

    def read(number: int) -> object:
        return source[number]["features"].tobytes()

    assert_threads_and_a_fork_read(read, [read(number) for number in range(len(source))])


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = table(tmp_path)
    source = etl.Csv(path, label="label")
    os.truncate(path, 100)
    with pytest.raises(ValueError, match=r"table\.csv is shorter than when it was opened: it has changed"):
        source[400]


def test_the_command_stores_a_table(tmp_path: Path) -> None:
    path = write(tmp_path, "1;2;a\n;4;b\n".replace(";", "\t"), "table.tsv")
    facts = ["--json", str(tmp_path / "facts.json")]
    call = ["presave", str(path), str(tmp_path / "s"), "--no-header", "--label", "2", "--missing", "-5"]
    assert main([*call, "--classes", "b", "a", *facts]) == 0
    with presave.open_store(tmp_path / "s") as store:
        assert store.gather([0, 1])["features"].tolist() == [[1, 2], [-5, 4]]
        assert store.gather([0, 1])["label"].tolist() == [1, 0]
        assert store.manifest.provenance["classes"] == ["b", "a"]
    assert json.loads((tmp_path / "facts.json").read_text())["records"] == 2


def test_the_command_stores_targets_and_chosen_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "a;b;price\n1;2;3\n4;5;6.5\n")
    call = ["presave", str(path), str(tmp_path / "s"), "--label", "price", "--features", "b", "--delimiter", ";"]
    assert main([*call, "--regression", "--format", "hdf5"]) == 0
    with presave.open_store(tmp_path / "s") as store:
        assert store.gather([0, 1])["features"].tolist() == [[2], [5]]
        assert store.gather([0, 1])["label"].tolist() == [3, 6.5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--label", "weight"], "has no column 'weight'; it has width, height, kind"),
        (["--no-header", "--label", "kind"], "with --no-header, --label and --features take column numbers"),
        (["--split", "test"], "table.csv is read as Csv, which has no option split"),
        (["--until", "resize"], "the pipeline has no stage 'resize'; it has none"),
        ([], "line 2, column 'kind': 'cat' is not a number"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "width,height,kind\n1.5,2,cat\n")
    assert said in refusal(capsys, "presave", str(path), str(tmp_path / "s"), *options)
