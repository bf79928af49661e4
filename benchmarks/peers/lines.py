"""Lines of code that a user writes for a loader, counted without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping


def count_lines(source: str, loader: str) -> list[int]:
    """Return the lines that a user writes to load and, if anything is prepared, those to prepare it.

    Blank lines, comments, docstrings, imports and decorators of `prepare` do not count.

    Parameters
    ----------
    loader : str
        The function, with `loader.prepare = another_function` beside it, or the class, with a static method `prepare`.
    """
    module = ast.parse(source)
    definitions = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    code = _lines_of_code(definitions[loader])
    prepare = _find_prepare(definitions, module, loader)
    if prepare is None:
        return [_count(source, code)]
    prepared = _lines_of_code(prepare)
    decorators = {number for each in prepare.decorator_list for number in _lines(each)}
    return [_count(source, code - prepared - decorators), _count(source, prepared)]


def _find_prepare(
    definitions: Mapping[str, ast.FunctionDef | ast.ClassDef], module: ast.Module, loader: str
) -> ast.FunctionDef | ast.ClassDef | None:
    for each in definitions[loader].body:
        if isinstance(each, ast.FunctionDef) and each.name == "prepare":
            return each
    for statement in module.body:
        match statement:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id=name), attr="prepare")], value=ast.Name(id=function)
            ) if name == loader:
                return definitions[function]
    return None


def _lines_of_code(definition: ast.stmt) -> set[int]:
    """Return the lines of a definition without its docstrings and imports."""
    found = _lines(definition)
    for node in ast.walk(definition):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found -= _lines(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            found -= _lines(node.body[0])
    return found


def _count(source: str, lines: set[int]) -> int:
    return sum(
        number in lines and bool(line.partition("#")[0].strip()) for number, line in enumerate(source.splitlines(), 1)
    )


def _lines(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
