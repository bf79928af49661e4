"""Sources found by name: a user's functions, and entry points of other packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import etl
from etl.functions import pickle_function
from tests.programs import output_of
from tests.user_modules import user_module, write_package

NOTHING = etl.Pipeline([])
MY_DATA = """
    import numpy as np
    import torch

    import etl

    class Dataset(torch.utils.data.Dataset):
        def __init__(self, count=6):
            self.count = count

        def __len__(self):
            return self.count

        def __getitem__(self, index):
            return {"image": torch.full((2,), float(index)), "label": index, "weight": 0.5}

    class Broken(Dataset):
        def __getitem__(self, index):
            raise OSError("the disk is gone")

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

        def __len__(self):
            return 3

    class Source:
        lengths = np.array([3, 3])
        classes = ["a", "b"]

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"features": np.full(3, index), "label": index}

    class Items:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return {"features": np.full(3, index), "label": index, "id": index}

    def dataset():
        return Dataset()

    def by_split(split):
        return Dataset(3 if split == "test" else 9)

    def with_default(split="all", count=1):
        return Dataset({"all": 1, "test": 2, "train": 3}[split] * count)

    def pictures():
        return etl.ImageFolder("pictures")

    def loader():
        return torch.utils.data.DataLoader(Dataset())

    def fails():
        raise KeyError("no such table")

    def leaves():
        raise SystemExit(3)

    def generator():
        yield 1

    def needs_more(root):
        return Dataset()

    def a_class():
        return Dataset

    def empty():
        return []

    def nothing():
        return None

    def a_path():
        return "photos"

    def splits():
        return {"train": Dataset(), "test": Dataset()}

    number = 3
"""


@pytest.fixture
def my_data(tmp_path: Path) -> Iterator[None]:
    with user_module(tmp_path, "my_data", MY_DATA):
        yield


@pytest.mark.usefixtures("my_data")
def test_a_data_set_becomes_a_source_with_its_name() -> None:
    source = etl.open_source("my_data:dataset")
    assert isinstance(source, etl.MapDataset)
    assert (source.name, len(source)) == ("my_data:dataset", 6)
    (batch,) = etl.RawIterator(source, NOTHING, 6, dtype=None)
    expected = default_collate([source.dataset[index] for index in range(6)])
    collated = source.collated(batch)
    assert list(collated) == list(expected)
    assert all(torch.equal(collated[key], expected[key]) for key in expected)


@pytest.mark.usefixtures("my_data")
def test_a_class_is_a_function_too_and_nothing_of_a_mapping_is_left_out() -> None:
    assert len(etl.open_source("my_data:Dataset")) == 6
    source = etl.open_source("my_data:Items")
    (batch,) = etl.RawIterator(source, NOTHING, 2)
    assert source.collated(batch)["id"].tolist() == [0, 1]


@pytest.mark.usefixtures("my_data")
def test_a_source_stays_as_it_is(photographs: Path, tmp_path: Path) -> None:
    source = etl.open_source("my_data:Source")
    assert type(source).__name__ == "Source"
    assert source.classes == ["a", "b"]
    (tmp_path / "pictures").symlink_to(photographs)
    assert isinstance(etl.open_source("my_data:pictures"), etl.ImageFolder)


def test_a_part_of_a_source_has_the_pipeline_of_the_whole(photographs: Path, tmp_path: Path) -> None:
    code = f"""
        import etl, torch
        def part():
            return torch.utils.data.Subset(etl.ImageFolder({str(photographs)!r}), [5, 3])
    """
    with user_module(tmp_path, "my_part", code):
        part = etl.open_source("my_part:part")
        (batch,) = etl.RawIterator(part)
        assert batch.features.shape == (2, 3, 224, 224)


@pytest.mark.usefixtures("my_data")
def test_a_function_gets_the_split_and_options_that_it_has() -> None:
    for name, split, options, records in [
        ("by_split", None, {}, 9),
        ("by_split", "test", {}, 3),
        ("with_default", None, {}, 1),
        ("with_default", "train", {}, 3),
        ("with_default", "test", {"count": 5}, 10),
    ]:
        source = etl.open_source(f"my_data:{name}", split, **options)
        assert len(source) == records


@pytest.mark.usefixtures("my_data")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dataset", {"split": "test"}, "my_data:dataset has no option split; its function takes no arguments"),
        ("with_default", {"label": "x"}, "my_data:with_default has no option label; its function takes split, count"),
        ("needs_more", {}, "my_data:needs_more: missing a required argument: 'root'; its function takes root"),
        ("fails", {}, "my_data:fails raised KeyError: 'no such table'"),
        ("leaves", {}, "my_data:leaves raised SystemExit: 3"),
        ("generator", {}, "my_data:generator returned a generator; records are read by index.*map-style data set"),
        ("Stream", {}, "my_data:Stream returned a Stream; records are read by index.*map-style data set"),
        ("loader", {}, "my_data:loader returned a DataLoader; return its data set, and compare the loader itself"),
        ("a_class", {}, r"my_data:a_class returned a type; return an object of that class, Dataset\(...\)"),
        ("empty", {}, "my_data:empty returned a list that holds no records"),
        ("nothing", {}, "my_data:nothing returned a NoneType; return a source or a map-style data set"),
        (
            "a_path",
            {},
            "my_data:a_path returned a str; return a source or a data set; a path is opened by its own name",
        ),
        ("splits", {}, "my_data:splits returned a dict; return one of its values, of train, test"),
        ("Broken", {}, "my_data:Broken returned a Broken whose record 0 cannot be read: OSError: the disk is gone"),
        ("number", {}, "source my_data:number: it is a int, which is not callable"),
        ("absent", {}, "source my_data:absent: AttributeError: .*'absent'; give package.module:function"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        etl.open_source(f"my_data:{name}", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("my_data")
def test_a_path_on_disk_wins(tmp_path: Path) -> None:
    for name in ("my_data:dataset", "lmdb:"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="my_data:dataset holds no images"):
        etl.open_source("my_data:dataset")
    with pytest.raises(ValueError, match="lmdb:/ holds no images"):
        etl.open_source("lmdb:/")


@pytest.mark.usefixtures("my_data")
def test_opening_it_draws_no_random_numbers(tmp_path: Path) -> None:
    code = """
        import random, numpy, torch

        class Drawing:
            def __len__(self):
                return 3

            def __getitem__(self, index):
                return random.random() + numpy.random.rand() + torch.rand(3)
    """
    with user_module(tmp_path, "drawing", code):
        torch.manual_seed(3)
        expected = torch.rand(2).tolist()
        torch.manual_seed(3)
        etl.open_source("drawing:Drawing")
        assert torch.rand(2).tolist() == expected


def test_a_pickled_function_is_one_too(tmp_path: Path) -> None:
    values = [(np.zeros(2), 1), (np.ones(2), 0)]
    source = etl.open_source(pickle_function(lambda: values, tmp_path / "function"))
    assert source.name == "test_a_pickled_function_is_one_too.<locals>.<lambda>"
    assert [record["label"].tolist() for record in source] == [1, 0]


PLUGIN = """
    import numpy as np

    class Numbers:
        def __init__(self, path, split="train"):
            self.path = path
            self.values = np.load(path) + (split == "test")

        def __len__(self):
            return len(self.values)

        def __getitem__(self, index):
            return {"features": self.values[index : index + 1]}

    def random(count=4):
        return [(np.ones(2), number) for number in range(count)]

    value = 3
"""
REGISTERED = {
    "etl.sources": {
        "numbers": "number_files:Numbers",
        "random-pairs": "number_files:random",
        "value": "number_files:value",
        "gone": "number_files:gone",
    }
}


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_package(tmp_path / "site", "number_files", PLUGIN, REGISTERED)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    np.save(tmp_path / "numbers.npy", np.arange(5.0))
    yield tmp_path / "numbers.npy"
    sys.modules.pop("number_files", None)


def test_a_registered_source_is_opened_by_its_name_and_path(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = etl.open_source(f"numbers://{plugin}")
    assert type(source).__name__ == "Numbers"
    assert source.path == str(plugin)
    monkeypatch.chdir(plugin.parent)
    assert etl.open_source("numbers://numbers.npy", "test")[0]["features"] == [1]
    assert len(etl.open_source("random-pairs://")) == 4


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent://x", "no source is registered as 'absent'; registered are: .*numbers.*Install the package"),
        ("numbers://", "numbers://: missing a required argument: 'path'; its function takes path, split"),
        ("numbers://absent.npy", "numbers://absent.npy raised FileNotFoundError"),
        ("value://", "source 'value' is registered as a int, not a function"),
        ("gone://x", "source 'gone', which is number_files:gone, cannot be imported: AttributeError"),
    ],
)
def test_what_is_wrong_with_a_registered_source_is_said(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        etl.open_source(name)


def test_two_packages_with_one_name_are_an_error(plugin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(plugin.parent / "other", "other_files", PLUGIN, {"etl.sources": {"numbers": "other_files:Numbers"}})
    monkeypatch.syspath_prepend(str(plugin.parent / "other"))
    message = "two packages register a source as 'numbers': number_files:Numbers and other_files:Numbers"
    with pytest.raises(ValueError, match=message):
        etl.open_source(f"numbers://{plugin}")
    assert len(etl.open_source("random-pairs://")) == 4


def test_a_package_that_pip_installed_is_found(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pair_files.py").write_text("def pairs(path):\n    return [([1.0, 2.0], len(path))] * 3\n")
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "pair-files"\nversion = "1.0"\n'
        '[project.entry-points."etl.sources"]\npairs = "pair_files:pairs"\n'
        '[tool.setuptools]\npy-modules = ["pair_files"]\n'
    )
    site = tmp_path / "site"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    output_of(*pip, "--target", site, project)
    program = (
        f"import sys; sys.path.append({str(site)!r})\n"
        "import etl; source = etl.open_source('pairs://four')\n"
        "print(source.name, len(source), source[2]['label'])"
    )
    assert output_of("-c", program).split() == ["pairs://four", "3", "4"]


def test_a_data_set_of_the_usual_keys_has_labels(tmp_path: Path) -> None:
    code = (
        "import numpy as np\n\ndef dataset():\n    return [{'image': np.full(2, n), 'target': n} for n in range(3)]\n"
    )
    with user_module(tmp_path, "usual_data", code):
        (batch,) = etl.RawIterator(etl.open_source("usual_data:dataset"), NOTHING, 3)
    assert batch.labels.tolist() == [0, 1, 2]
    assert batch.features.shape == (3, 2)
