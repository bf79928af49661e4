"""Names of a package that are imported on first use, so that importing the package takes no time."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    `modules` has the names in each module; those of `package` itself are its modules.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = load_module(f"{package}.{name}") if module == package else getattr(load_module(module), name)
        setattr(sys.modules[package], name, found)
        return found

    return find


def load_module(module: str) -> Any:
    """Import a module while no other thread forks."""
    if module == "etl.strategies.task":  # used where `presave` cannot be imported
        return importlib.import_module(module)
    from presave import forks

    # A child that is forked while another thread imports would wait forever for the lock of that import.
    with forks.held_off():
        return importlib.import_module(module)
