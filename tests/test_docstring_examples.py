"""Examples in docstrings of public names print what they say, in a folder with photographs."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etl
import presave

PACKAGES = (etl, presave, *filter(inspect.ismodule, (getattr(etl, name) for name in etl.__all__)))
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def is_code(each: Any) -> bool:
    return inspect.isclass(each) or inspect.isfunction(each)


def public() -> dict[str, Any]:
    """Return every public class and function, by where its code is."""
    found = (getattr(package, name) for package in PACKAGES for name in package.__all__)
    return {f"{each.__module__}.{each.__qualname__}": each for each in found if is_code(each)}


EXAMPLES = {
    test.name: test
    for each in public().values()
    for test in doctest.DocTestFinder(recurse=False).find(each, each.__qualname__)
    if test.examples
}


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    etl.demonstration.photographs(tmp_path / "photos", samples=40)
    monkeypatch.chdir(tmp_path)
    half = etl.records(etl.ImageFolder("photos"), etl.image_pipeline(size=64).until("resize"))
    presave.write("photos.store", half).close()
    test = EXAMPLES[name]
    test.globs = {"etl": etl, "np": np, "Path": Path, "presave": presave, "torch": torch}
    said: list[str] = []
    with etl.runtime.ThreadPolicy(1):
        result = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert result.failed == 0, "".join(said)


def test_every_name_that_people_call_first_has_an_example() -> None:
    first = {name: getattr(etl, name) for name in etl.__all__ if is_code(getattr(etl, name))}
    without = {name for name, each in first.items() if "Examples" not in (inspect.getdoc(each) or "")}
    assert without <= {"Idx", "Cifar10", "Tar", "Report", "DeviceIterator", "digits_pipeline", "cifar10_pipeline"}
