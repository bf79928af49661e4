"""Imports point one way: no circles, not even within functions, and no folder imports what is above it."""

from __future__ import annotations

import ast
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


def imports(node: ast.AST, package: list[str]) -> set[str]:
    """Return the modules below `node` that are imported when the program runs, those of functions included."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        return set()
    if isinstance(node, ast.Import):
        return {each.name for each in node.names}
    if isinstance(node, ast.ImportFrom):
        parents = package[: len(package) + 1 - node.level] if node.level else []
        module = ".".join([*parents, *([node.module] if node.module else [])])
        return {f"{module}.{each.name}" if f"{module}.{each.name}" in MODULES else module for each in node.names}
    return {name for each in ast.iter_child_nodes(node) for name in imports(each, package)}


def graph() -> dict[str, set[str]]:
    found = {}
    for name, path in MODULES.items():
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        found[name] = {each for each in imports(ast.parse(path.read_text()), package) if each in MODULES} - {name}
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    TopologicalSorter(graph()).prepare()


def layer_of(name: str) -> str:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["etl", "comparison"] and len(parts) > 3 else ""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_folder_of_the_comparison_imports_only_what_is_below_it(layer: str) -> None:
    own = {name: imported for name, imported in graph().items() if layer_of(name) == layer}
    assert own
    above = {(name, each) for name, imported in own.items() for each in imported if layer_of(each)}
    assert {layer_of(each) for _, each in above} <= {layer, *LAYERS[layer]}, above


def test_nothing_imports_the_measuring_process_and_measuring_imports_nothing_else() -> None:
    everything = graph()
    worker = {name for name in everything if layer_of(name) == "worker"}
    assert not {name for name, imported in everything.items() if imported & worker and name not in worker}
    measuring = {name: imported for name, imported in everything.items() if name.startswith("etl.measuring.")}
    assert all(each.startswith("etl.measuring") for imported in measuring.values() for each in imported)


def test_what_presave_and_etl_share_is_one_file() -> None:
    assert (ROOT / "presave" / "resources.py").samefile(ROOT / "etl" / "runtime" / "resources.py")


def test_a_circle_within_a_function_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in (("one", "from .two import x"), ("two", "def f():\n    from a import one")):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "__init__.py").write_text("")
    paths = {"a": tmp_path / "__init__.py", "a.one": tmp_path / "one.py", "a.two": tmp_path / "two.py"}
    monkeypatch.setitem(globals(), "MODULES", paths)
    assert graph() == {"a": set(), "a.one": {"a.two"}, "a.two": {"a.one"}}
    with pytest.raises(CycleError):
        test_no_modules_import_each_other_in_a_circle()
