"""A try of a user's loader says which settings it has, and every action runs with those that are chosen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from etl.comparison.request.answers import TriedLoader
from etl.comparison.request.conditions import Conditions
from etl.comparison.request.loader_request import UserLoader
from etl.comparison.request.measuring_request import Action, MeasuringRequest
from etl.measuring.ranks import Rank
from tests.scratch import ROOT

# Answers each request in a fork, which ends the workers that its loader leaves. Arguments: packages that are missing.
SERVER = """
import json, os, signal, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))
if "torch" not in sys.argv:
    import torch
from etl.comparison.request.measuring_request import MeasuringRequest
from etl.comparison.request.loader_request import task_of
from etl.comparison.worker import untimed
from etl.comparison.worker.user_loader import LoaderError, answer

untimed.KNOWN_SECONDS = 60.0  # all batches, however slowly workers start
for line in sys.stdin:
    child = os.fork()
    if not child:
        signal.alarm(60)
        request = MeasuringRequest.from_json(json.loads(line))
        try:
            found = answer(request, request.loader, task_of(request.loader), None).to_json()
        except LoaderError as error:
            found = str(error)
        modules = sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names)
        print(json.dumps([found, modules]), flush=True)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        sys.exit("no answer")
"""
LOADERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index

def plain(batch_size):
    return DataLoader(Numbers(), batch_size, num_workers=1)

def declaring(batch_size, workers, depth=3):
    return DataLoader(Numbers(), batch_size, num_workers=workers)

declaring.settings = {"workers": (0, 1), "depth": (1, None)}

def renaming(batch_size, prefetch_factor=4):
    return DataLoader(Numbers(), batch_size, num_workers=1, prefetch_factor=prefetch_factor)

renaming.settings = {"prefetch_factor": (1, 4)}

def wrapped(batch_size):
    yield from DataLoader(Numbers(), batch_size)

def misspelt(batch_size, depth=3):
    return DataLoader(Numbers(), batch_size)

misspelt.settings = {"dept": (1, 2)}

def reading(path, batch_size):
    return DataLoader(Numbers(), batch_size)

def make_step(path):
    return lambda batch: None
"""
LISTS = """
import numpy as np

def load(batch_size, depth=1):
    return [np.zeros((batch_size, depth))] * 5

load.settings = {"depth": (1, 2)}
"""
READY_MADE = {"num_workers", "prefetch_factor", "persistent_workers", "in_order", "sharing_strategy", "pin_memory"}


class Asked:
    """A process that answers requests for loaders of `folder`, in which some packages are missing."""

    def __init__(self, folder: Path, *missing: str) -> None:
        (folder / "torch_loaders.py").write_text(LOADERS)
        (folder / "lists.py").write_text(LISTS)
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, *missing],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore:This DataLoader will create"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(
        self, function: str, action: Action = "try", step: str | None = None, **settings: Any
    ) -> tuple[Any, list[str]]:
        """Return the answer, and all packages that are imported for it."""
        folder = self._folder / "files"
        folder.mkdir(exist_ok=True)
        compute = "simulated:0ms,sync" if step is None else "training"
        conditions = Conditions(batch_size=4, compute=compute, step=step, heap="default")
        path = str(self._folder)
        loader = UserLoader(function, path, [], str(folder), 20, 2, None, Rank(), conditions, settings)
        arrays_file = str(self._folder / "arrays.npz")
        request = MeasuringRequest(action, 20, [], Rank(), loader=loader, seconds=5.0, arrays_file=arrays_file)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request.to_json()), file=self._process.stdin, flush=True)
        answer, modules = json.loads(self._process.stdout.readline())
        return answer, modules

    def settings_of(self, function: str, **settings: Any) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """Return what may be varied, and the values of the try."""
        tried = TriedLoader.from_json(self.ask(function, **settings)[0])
        assert (tried.batches, tried.samples) == (5, 20)
        return dict(tried.settings), dict(tried.given)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with closing(Asked(tmp_path_factory.mktemp("loaders"))) as asked:
        yield asked


def test_a_data_loader_has_settings_that_nobody_declared(asked: Asked) -> None:
    settings, given = asked.settings_of("torch_loaders:plain")
    assert {"num_workers", "prefetch_factor", "persistent_workers"} <= set(settings) <= READY_MADE
    assert settings["prefetch_factor"] == [2, 4, 8]
    assert set(given) == set(settings)
    assert (given["num_workers"], given["prefetch_factor"], given["persistent_workers"]) == (1, 2, False)


def test_chosen_settings_are_in_force_in_the_try(asked: Asked) -> None:
    chosen = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True, "sharing_strategy": "file_system"}
    given = asked.settings_of("torch_loaders:plain", **chosen)[1]
    assert {name: given[name] for name in chosen} == chosen


def test_declared_settings_come_first_and_replace_the_number_of_workers_of_the_loader(asked: Asked) -> None:
    settings, given = asked.settings_of("torch_loaders:declaring")
    assert list(settings)[:2] == ["workers", "depth"]
    assert (settings["workers"], settings["depth"]) == ([0, 1], [1, None])
    assert "num_workers" not in settings
    assert "prefetch_factor" in settings
    assert (given["workers"], given["depth"]) == (2, 3)
    chosen = asked.settings_of("torch_loaders:declaring", workers=1, depth=None, prefetch_factor=8)[1]
    assert (chosen["workers"], chosen["depth"], chosen["prefetch_factor"]) == (1, None, 8)


def test_a_declared_setting_has_the_values_that_were_declared(asked: Asked) -> None:
    settings, given = asked.settings_of("torch_loaders:renaming", prefetch_factor=1)
    assert (settings["prefetch_factor"], given["prefetch_factor"]) == ([1, 4], 1)
    assert "num_workers" in settings


def test_a_wrapped_data_loader_has_no_settings(asked: Asked) -> None:
    assert asked.settings_of("torch_loaders:wrapped") == ({}, {})


@pytest.mark.parametrize("action", ["check", "measure"])
def test_epochs_are_checked_and_measured_with_chosen_settings(asked: Asked, action: Action) -> None:
    answer, _ = asked.ask("torch_loaders:plain", action, num_workers=2, persistent_workers=True)
    if action == "check":
        assert len(answer["content"]["records"]) == 20
        assert answer["left_behind"] == []
        assert answer["workers"] == 2
    else:
        assert answer["epoch"]["samples"] == 20


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("torch_loaders:misspelt", {}, "misspelt declares the setting 'dept', but has no parameter of that name"),
        ("lists:load", {"num_workers": 1}, "'num_workers' reaches nothing: load has no parameter of that name, and re"),
        ("torch_loaders:plain", {"num_workers": -1}, "the setting 'num_workers' of a DataLoader cannot be -1"),
    ],
)
def test_what_is_wrong_with_a_setting_is_one_sentence(
    asked: Asked, function: str, settings: dict[str, Any], message: str
) -> None:
    assert message in asked.ask(function, **settings)[0]


@pytest.mark.parametrize(("name", "requested"), [("plain", []), ("reading", ["path"])])
def test_what_a_training_step_asks_for_is_not_what_the_loader_reads(
    asked: Asked, name: str, requested: list[str]
) -> None:
    answer, _ = asked.ask(f"torch_loaders:{name}", step="torch_loaders:make_step")
    assert answer["requested"] == requested


def test_a_loader_without_torch_needs_no_more_packages_than_before(tmp_path: Path) -> None:
    with closing(Asked(tmp_path, "torch")) as without_torch:
        answer, modules = without_torch.ask("lists:load", "first_try")
    assert answer["tried"]["settings"] == {"depth": [1, 2]}
    assert answer["tried"]["given"] == {"depth": 1}
    packages = [each for each in modules if not each.startswith("_")]
    assert set(packages) <= {"etl", "lists", "numpy", "cython_runtime", "psutil", "torch", "xxhash"}
