"""Imports point one way: no circles, not even within functions, and no folder imports what is above it."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# `benchmarks/measuring` is a link to `etl/measuring`.
FILES = [
    path
    for package in ("presave", "etl", "benchmarks")
    for path in (ROOT / package).rglob("*.py")
    if not path.is_relative_to(ROOT / "benchmarks" / "measuring")
]

# Folders of `etl/comparison`, and those of them that each may import.
LAYERS: dict[str, set[str]] = {
    "request": set(),
    "worker": {"request"},
    "judge": {"request"},
    "show": {"judge", "request"},
    "run": {"judge", "request"},
    "tuning": {"run", "judge", "show", "request"},
}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def imports(node: ast.AST, package: list[str], modules: Collection[str]) -> set[str]:
    """Return the modules below `node` that are imported when the program runs, those of functions included."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return set()
    if isinstance(node, ast.Import):
        return {each.name for each in node.names}
    if isinstance(node, ast.ImportFrom):
        parents = package[: len(package) + 1 - node.level] if node.level else []
        module = ".".join([*parents, *([node.module] if node.module else [])])
        return {f"{module}.{each.name}" if f"{module}.{each.name}" in modules else module for each in node.names}
    return {name for each in ast.iter_child_nodes(node) for name in imports(each, package, modules)}


def graph(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    found = {}
    for name, path in modules.items():
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        found[name] = {each for each in imports(ast.parse(path.read_text()), package, modules) if each in modules} - {
            name
        }
    return found


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return graph(MODULES)


def test_no_modules_import_each_other_in_a_circle(imported: dict[str, set[str]]) -> None:
    TopologicalSorter(imported).prepare()


def layer_of(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["etl", "comparison"] and len(parts) > 3 else ""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_folder_of_the_comparison_imports_only_what_is_below_it(layer: str, imported: dict[str, set[str]]) -> None:
    own = {name: names for name, names in imported.items() if layer_of(name) == layer}
    assert own
    found = {(name, each) for name, names in own.items() for each in names if layer_of(each)}
    assert {layer_of(each) for _, each in found} <= {layer, *LAYERS[layer]}, found


def test_nothing_imports_the_measuring_process_and_measuring_imports_nothing_else(
    imported: dict[str, set[str]],
) -> None:
    worker = {name for name in imported if layer_of(name) == "worker"}
    assert worker
    assert not {name for name, names in imported.items() if names & worker and name not in worker}
    measuring = {name: names for name, names in imported.items() if name.startswith("etl.measuring.")}
    assert measuring
    assert all(each.startswith("etl.measuring") for names in measuring.values() for each in names)


def test_what_presave_and_etl_share_is_one_file() -> None:
    assert (ROOT / "presave" / "resources.py").samefile(ROOT / "etl" / "runtime" / "resources.py")


def test_a_circle_within_a_function_is_found(tmp_path: Path) -> None:
    for name, text in (("one", "from .two import x"), ("two", "def f():\n    from a import one")):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "__init__.py").write_text("")
    paths = {"a": tmp_path / "__init__.py", "a.one": tmp_path / "one.py", "a.two": tmp_path / "two.py"}
    assert graph(paths) == {"a": set(), "a.one": {"a.two"}, "a.two": {"a.one"}}
    with pytest.raises(CycleError):
        TopologicalSorter(graph(paths)).prepare()
