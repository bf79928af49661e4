"""The instruments are independent: they measure any commit, in any environment that has three packages."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import benchmarks
import benchmarks.measuring
import etl.measuring
from tests.programs import output_of

NEEDED = ("numpy", "psutil", "xxhash")
FOLDER = Path(etl.measuring.__file__).parent

# Imports every module of the folder as a package of another name, and prints what was imported with it.
IMPORT_ALL = """
import importlib, importlib.util, json, pkgutil, sys
packages, folder = sys.argv[1:]
sys.path.append(packages)
spec = importlib.util.spec_from_file_location("clock", folder + "/__init__.py", submodule_search_locations=[folder])
package = sys.modules["clock"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
names = [each.name for each in pkgutil.walk_packages(package.__path__, "clock.")]
for name in names:
    importlib.import_module(name)
print(json.dumps([names, sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names))]))
"""


def test_all_modules_import_if_only_three_packages_are_installed(tmp_path: Path) -> None:
    for package in NEEDED:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        site = Path(spec.origin).parents[1]
        for found in (site / package, site / f"{package}.libs"):  # the libraries that its wheel brought
            if found.exists():
                (tmp_path / found.name).symlink_to(found)
    # Isolated, and without site-packages.
    imported, packages = json.loads(output_of("-I", "-S", "-c", IMPORT_ALL, tmp_path, FOLDER))
    assert len(imported) == len(list(FOLDER.glob("[!_]*.py")))
    assert set(packages) <= {"clock", "__main__", *NEEDED}


def test_benchmarks_measure_with_the_copy_of_the_working_tree() -> None:
    assert Path(benchmarks.measuring.__file__).resolve() == FOLDER.resolve() / "__init__.py"
    assert Path(benchmarks.measuring.__file__).parent == Path(benchmarks.__path__[0]) / "measuring"
