"""Run a function of this folder against the installed packages: `python PATH/isolated_main.py MODULE:FUNCTION`.

The folder becomes the package `benchmarks`, but its parent is not put on the path: the working tree's etl and presave
are there, and the ones to be measured are installed. The folder itself is not on the path either, because its module
names are not meant to be global.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if __name__ == "__main__":
    folder = Path(__file__).parent
    sys.path[:] = [each for each in sys.path if each != str(folder)]  # Python may have been told not to put it there
    spec = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package in {folder}")
    package = sys.modules["benchmarks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    module, _, function = sys.argv[1].partition(":")
    getattr(importlib.import_module(f"benchmarks.{module}"), function)()
