"""Docstrings begin with a verb or a noun phrase; those of public names list their parameters, if there are several."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("presave", "etl", "benchmarks") for path in (ROOT / package).rglob("*.py"))
# A question or a fragment, not a sentence that says what is done.
FRAGMENTS = {"What", "Who", "Whose", "Whether", "Of", "Those", "Where", "That", "Which", "Why", "How", "As"}
# More parameters of a public name than this are listed, each with its type and meaning.
MAX_UNLISTED = 2
PUBLIC = {
    name
    for package in ("etl", "presave")
    for path in (ROOT / package).rglob("__init__.py")
    for name in importlib.import_module(".".join(path.parent.relative_to(ROOT).parts)).__dict__.get("__all__", ())
}

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def documented(node: ast.AST, is_public: bool = False) -> Iterator[tuple[Documented, str, bool]]:
    """Yield every node below `node` that has a docstring, with it, and whether users see its name."""
    if isinstance(node, Documented):
        name = getattr(node, "name", "")
        is_public = not name.startswith("_") and (is_public or name in PUBLIC)
        if docstring := ast.get_docstring(node):
            yield node, docstring, is_public
    for each in ast.iter_child_nodes(node):
        yield from documented(each, is_public)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Return the names that a caller passes."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def undocumented(node: Documented, docstring: str) -> list[str]:
    """Return the parameters that a function or class has to list in a section, and does not.

    An implementation may refer to the interface that lists them: "see `Loader`".
    """
    if isinstance(node, ast.Module) or re.search(r"[Ss]ee `", docstring):
        return []
    if isinstance(node, ast.ClassDef):
        made = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        names = parameters(made[0]) if made else []
    else:
        names = parameters(node)
    if len(names) <= MAX_UNLISTED:
        return []
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", docstring, re.S | re.M)
    listed = re.findall(r"^(\*?\w[\w, *]*?)(?: :|$)", section[1], re.M) if section else []
    found = {name.strip(" *") for line in listed for name in line.split(",")}
    return [name for name in names if name not in found]


def test_docstrings_begin_with_a_verb_or_a_noun_and_list_their_parameters() -> None:
    faults = []
    found = ((path, *each) for path in FILES for each in documented(ast.parse(path.read_text())))
    for path, node, docstring, is_public in found:
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}"
        if docstring.split()[0].strip(",.:") in FRAGMENTS:
            faults.append(f"{place} begins with {docstring.split()[0]!r}")
        missing = undocumented(node, docstring) if is_public else []
        if missing:
            faults.append(f"{place} has no Parameters section with {', '.join(missing)}")
    assert not faults, "\n".join(faults)
