"""`etl presave` and `etl doctor` of sources and pipelines that are found by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import etl
import presave
from etl.commands import main
from tests.every_strategy import bits
from tests.refusals import refusal
from tests.user_modules import user_module

MY_DATA = """
    import numpy as np
    import torch

    import etl

    class Dataset(torch.utils.data.Dataset):
        def __init__(self, is_random=False):
            self.is_random = is_random

        def __len__(self):
            return 24

        def __getitem__(self, index):
            image = torch.full((1, 8, 8), float(index))
            if self.is_random and torch.rand(()) < 0.5:
                image = image + 1
            return image, index % 3

    def dataset():
        return Dataset()

    def augmented():
        return Dataset(is_random=True)

    def half(record):
        return {**record, "features": record["features"] / 2}

    def pipeline(source):
        return etl.Pipeline([half, etl.stages.Cast("float16")])
"""


@pytest.fixture(autouse=True)
def my_data(tmp_path: Path) -> Iterator[None]:
    with user_module(tmp_path, "my_data", MY_DATA):
        yield


def test_a_data_set_is_presaved_with_the_users_pipeline(tmp_path: Path) -> None:
    options = ["--pipeline", "my_data:pipeline", "--until", "half", "--jobs", "2"]
    assert main(["presave", "my_data:dataset", "store", *options]) == 0
    source = etl.open_source("my_data:dataset")
    from my_data import pipeline  # type: ignore[import-not-found]

    stages = pipeline(source)
    with presave.open_store(tmp_path / "store") as store:
        assert store.manifest.stage == "half"
        assert store.manifest.fingerprint == stages.until("half").fingerprint
        assert store.manifest.provenance["source"] == "my_data:dataset"
        saved = etl.PresavedIterator(store, stages.after("half"), 24)
        assert bits(saved) == bits(etl.RawIterator(source, stages, 24))


@pytest.mark.parametrize("jobs", [[], ["--jobs", "4"]], ids=str)
def test_items_that_share_a_file_are_presaved_as_they_are(jobs: list[str], tmp_path: Path) -> None:
    code = f"""
        from pathlib import Path
        from tests.shared_handles import Position
        def dataset():
            return Position(Path({str(tmp_path)!r}))
    """
    with user_module(tmp_path, "my_files", code):
        assert main(["presave", "my_files:dataset", "store", "--shard-mb", "0.001", *jobs]) == 0
    with presave.open_store(tmp_path / "store") as store:
        assert [store[index]["features"].max() for index in range(len(store))] == list(range(60))
        assert len(store.manifest.shards) > 4


def test_random_transforms_are_not_frozen_by_accident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presave", "my_data:augmented", "store"]) == 2
    error = capsys.readouterr().err
    assert "of my_data:augmented differs from one reading to the next, in 'features', so presaving would" in error
    assert "--pipeline" in error
    assert "--allow-random" in error
    assert not (tmp_path / "store").exists()
    assert main(["presave", "my_data:augmented", "store", "--allow-random"]) == 0
    with presave.open_store(tmp_path / "store") as store:
        assert len(store) == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["my_data:absent"], "source my_data:absent: AttributeError"),
        (["my_data:dataset", "--pipeline", "my_data:dataset"], "--pipeline my_data:dataset"),
        (["my_data:dataset", "--split", "test"], "my_data:dataset has no option split"),
        (["my_data:dataset", "--until", "resize"], "no stage 'resize'; it has none"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    source, *options = arguments
    assert message in refusal(capsys, "presave", source, "store", *options)


@pytest.mark.usefixtures("quick_doctor")
def test_the_doctor_trains_on_a_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--pipeline my_data:pipeline --model mlp --batch-size 8 --batches 2 --json report.json"
    main(["doctor", "my_data:dataset", *options.split()])
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["batches_per_epoch"] == 3
    assert [each["name"] for each in content["stages"]["stages"]][:3] == ["read", "half", "cast"]
    assert content["stages"]["disk_bytes_per_second"] is None
    assert "the files of my_data:dataset are unknown" in " ".join(capsys.readouterr().out.split())
