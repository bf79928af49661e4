"""`etl.compare`: a comparison from a script or notebook, with the functions that it defines."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import etl
from etl.commands import compare as compare_command
from etl.comparison import compare
from etl.comparison.request.settings import Settings
from etl.comparison.run.carried import carried_settings
from etl.functions import find_function
from tests.comparison_workloads import broken_rules
from tests.programs import output_of

LIMIT_SECONDS = 300

# A script as people write it: without a main guard, and everything in one file.
SCRIPT = """
import threading

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import etl


class Measurements(Dataset):
    def __init__(self):
        generator = np.random.default_rng(0)
        self.values = generator.standard_normal((96, 8))
        self.kinds = generator.integers(3, size=96)

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, index):
        return {"values": self.values[index], "kind": int(self.kinds[index]), "weight": 0.5}


def loader(source, batch_size, workers):
    return DataLoader(source, batch_size, shuffle=True, num_workers=workers)


def generator(source, batch_size, epoch, seed):
    order = np.random.default_rng((seed, epoch)).permutation(len(source)).tolist()
    for start in range(0, len(order), batch_size):
        yield torch.utils.data.default_collate([source[index] for index in order[start : start + batch_size]])


def make_step(task):
    model = torch.nn.Linear(8, 3, dtype=torch.float64)
    optimizer = torch.optim.Adam(model.parameters())

    def step(batch):
        loss = torch.nn.functional.cross_entropy(model(batch["values"]), batch["kind"], reduction="none")
        loss = (loss * batch["weight"]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


report = etl.compare(
    Measurements(), {"raw": "raw", "presaved": "presaved", "torch": loader, "generator": generator},
    make_step=make_step, batch_size=8, rounds=1, budget="20s",
)
print(report)
print(repr(report))
report.save("report.html")
report.save("report.json")
assert report._repr_html_().startswith("<iframe")
"""


@pytest.mark.slow
def test_functions_of_a_script_are_compared_on_its_own_data_with_its_own_step(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    printed = output_of("script.py", cwd=tmp_path, timeout=LIMIT_SECONDS)
    report = json.loads((tmp_path / "report.json").read_text())
    found = {each["name"]: each for each in report["strategies"]}
    assert list(found) == ["raw", "presaved", "torch", "generator"]
    assert found["presaved"]["sameness"]["level"] == "identical"
    # float64 as the data set has it, and mappings as default_collate makes them; only the order differs.
    assert {found[name]["sameness"]["level"] for name in ("torch", "generator")} == {"same records"}
    assert all(found[name]["sameness"]["is_shuffled"] for name in ("torch", "generator"))
    assert all(len(each["rounds"]) == 1 for each in found.values())
    assert next(each for each in report["checks"] if each["rule"] == "compute")["held"], report["checks"]
    assert "same records" in printed
    assert "<Report of Measurements: 96 records" in printed
    assert (tmp_path / "report.html").read_text().startswith("<!DOCTYPE html>")


GUIDE = (Path(__file__).parents[2] / "docs" / "own-loaders.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL))
COMMANDS = re.findall(r"^etl (compare .*)$", GUIDE, re.MULTILINE)


@pytest.mark.slow
def test_the_settings_of_the_guide_can_be_declared_and_chosen(photographs: Path, tmp_path: Path) -> None:
    for name, block in BLOCKS.items():
        (tmp_path / name).write_text(block)
    program = (
        "import sys, my_settings\n"
        "from etl import Task\n"
        "from etl.strategies import declared_settings, open_loader\n"
        "for function in (my_settings.threads, my_settings.doubled):\n"
        "    for place in (0, 1):\n"
        "        chosen = {name: values[place] for name, values in declared_settings(function).items()}\n"
        "        task = Task(16, 'float32', 7, 0, 40, 2, 2, '', settings=chosen, open_path=lambda: sys.argv[1])\n"
        "        print(sum(len(labels) for _, labels in open_loader(function, task)))\n"
    )
    assert output_of("-c", program, photographs, cwd=tmp_path).split() == ["40"] * 4


@pytest.mark.alone
def test_the_examples_of_the_guide_run(photographs: Path, tmp_path: Path) -> None:
    assert len(BLOCKS) == 4
    assert len(COMMANDS) == 2
    for name, block in BLOCKS.items():
        (tmp_path / name).write_text(block.replace('budget="60s"', "records=64, rounds=1"))
    shutil.copytree(photographs, tmp_path / "photos")
    few = ["--records", "64", "--rounds", "1", "--json", "report.json"]
    programs = [["-m", "etl", *command.split(), *few] for command in COMMANDS]
    for program in [*programs, ["my_comparison.py"]]:
        output = output_of(*program, cwd=tmp_path, timeout=LIMIT_SECONDS)
        assert broken_rules(re.findall(r"is disqualified: (.*)", output)) == []


@pytest.mark.parametrize(
    ("function", "given", "meant"),
    [
        (etl.compare, "budgett", "budget"),
        (etl.compare, "budget_seconds", "budget"),
        (etl.compare, "step", "make_step"),
        (etl.compare, "batchsize", "batch_size"),
        (etl.tune, "tune_seconds", "budget"),
        (etl.tune, "pythons", "python"),
    ],
)
def test_an_argument_that_does_not_exist_is_named_with_the_one_that_is_meant(
    function: Any, given: str, meant: str
) -> None:
    with pytest.raises(TypeError, match=f"etl.{function.__name__} has no argument '{given}': did you mean '{meant}'"):
        function("photos", **{given: 1})


@pytest.mark.parametrize("function", [etl.compare, etl.tune])
def test_editors_complete_the_options_of_the_command_line_with_their_defaults(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert "options" not in parameters
    parser = argparse.ArgumentParser()
    compare_command.add_arguments(parser)
    of_command = {name for action in parser._actions for name in action.option_strings}
    settings = Settings("photos")
    for name in compare.Options.__annotations__:
        tunes_only = name in ("max_disk", "max_prepare", "same_pixels", "retune", "seed")
        assert tunes_only or f"--{name.replace('_', '-')}" in of_command, name
        assert parameters[name].default == getattr(settings, compare.FIELDS.get(name, (name,))[0])


def test_sizes_and_times_may_be_texts_and_lists_are_accepted() -> None:
    given = {"memory": "2GB", "max_prepare": "10min", "cpus": 2, "formats": ["npy"], "no_check": ["same samples"]}
    settings = compare._settings(etl.compare, given, compare.INSTEAD)
    assert settings == {
        "memory_nbytes": 2 * 10**9,
        "max_prepare_seconds": 600.0,
        "threads": 2,
        "formats": ("npy",),
        "unchecked": ("same samples",),
    }


def test_a_text_is_read_as_on_the_command_line_and_not_letter_by_letter() -> None:
    given = {"formats": "npy, hdf5", "no_check": "noise", "what_if": "cpus=8,compute=5ms"}
    settings = compare._settings(etl.compare, given, compare.INSTEAD)
    assert settings == {"formats": ("npy", "hdf5"), "unchecked": ("noise",), "what_if": ("cpus=8,compute=5ms",)}
    with carried_settings("photos", "raw,presaved", make_step=None, model=None, pipeline=None, python=None) as carried:
        assert carried.strategies == ("raw", "presaved")


def test_a_table_is_carried_with_the_column_of_its_label(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("width,height,kind\n1,2,0\n3,4,1\n")
    table = etl.Csv(tmp_path / "table.csv", label="kind")
    with carried_settings(table, "raw", make_step=None, model=None, pipeline=None, python=None) as carried:
        found = etl.open_source(carried.source)
    assert [found[index]["label"] for index in range(2)] == [0, 1]


def test_a_partial_function_is_called_for_the_source_and_the_pipeline() -> None:
    given, others = partial(range, 3), {"make_step": None, "model": None, "python": None}
    with carried_settings(given, "raw", pipeline=given, **others) as carried:
        for name in (carried.source, carried.pipeline):
            assert find_function(str(name), "source")() == range(3)
