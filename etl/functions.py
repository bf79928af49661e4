"""A user's functions: found by name as `package.module:function`, and carried to other processes."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from typing import Any

PICKLED = "pickled:"


def is_function_name(text: str) -> bool:
    """Return True if `text` is "package.module:function", or comes from `pickle_function`."""
    module, _, function = text.partition(":")
    return is_carried(text) or all(part.isidentifier() for part in (*module.split("."), *function.split(".")))


def is_carried(name: str) -> bool:
    """Return True if `name` comes from `pickle_function`."""
    return name.startswith(PICKLED)


def find_function(name: str, option: str) -> Callable[..., Any]:
    """Return the function that `name` refers to.

    Modules are found as in the user's own program: on the path, and in the working folder.

    Parameters
    ----------
    name : str
        "package.module:function", or what `pickle_function` returned.
    option : str
        The option that gives the name, such as "--model"; quoted in errors.

    Raises
    ------
    ValueError
        If there is no such function, or it is not callable. The message quotes whatever the module raised.
    """
    called, hint = name, "; give package.module:function, found from this folder"
    if is_carried(name):
        called, hint = Path(name.removeprefix(PICKLED)).stem, ""
    try:
        if is_carried(name):
            found = pickle.loads(Path(name.removeprefix(PICKLED)).read_bytes())  # noqa: S301 - written by this user
        else:
            search_working_folder()
            module, _, function = name.partition(":")
            found = functools.reduce(getattr, function.split("."), importlib.import_module(module))
    except (Exception, SystemExit) as error:  # importing may raise anything
        raise ValueError(f"{option} {called}: {type(error).__name__}: {error}{hint}") from error
    if not callable(found):
        raise ValueError(f"{option} {called}: it is a {type(found).__name__}, which is not callable")
    function_found: Callable[..., Any] = found
    return function_found


def search_working_folder() -> None:
    """Let this process import modules of the working folder."""
    if os.getcwd() not in sys.path:  # noqa: PTH109 - as spelled in sys.path
        sys.path.insert(0, os.getcwd())  # noqa: PTH109


def search_folders(folders: Iterable[str]) -> None:
    """Let this process import modules of `folders` that are nowhere else."""
    sys.path.extend(each for each in folders if each not in sys.path)


def name_of_function(function: Callable[..., Any]) -> str:
    """Return the name of `function` for messages; that of its class if it has none."""
    return str(getattr(function, "__qualname__", type(function).__name__))


def pickle_function(function: Callable[..., Any], path: Path) -> str:
    """Write `function` to a new file at `path`, with everything of its script or notebook that it uses.

    Return a name for `find_function`, in this process or another one, whose errors call the function by the name of the
    file, without the suffix. Raises `ValueError` if something that it uses cannot be pickled.
    """
    from presave.carrying import dumps  # not in environments that only load

    try:
        content = dumps(function)
    except Exception as error:  # pickling runs the user's code
        name = name_of_function(function)
        raise ValueError(f"{name} cannot be carried to another process: {type(error).__name__}: {error}") from error
    path.write_bytes(content)
    return f"{PICKLED}{path}"


def call_by_name(
    function: Callable[..., Any],
    arguments: Mapping[str, Callable[[], Any]],
    whole: Any,
    chosen: Mapping[str, Any] | None = None,
) -> Any:
    """Call `function` with those of `arguments` that its parameters name.

    Parameters
    ----------
    function : callable
        The function. A parameter that is not called like one of the arguments must have a default. An argument that a
        `functools.partial` has fixed stays.
    arguments : dict of str to callable
        A function for each argument, which returns it. Only those that are asked for are called.
    whole : object
        The value of a single parameter that is not called like one of the arguments.
    chosen : dict of str to object, optional
        More arguments, as values. Unlike the others they are passed beside `whole`, too.

    Raises
    ------
    ValueError
        If a parameter without a default has another name.
    """
    more = {name: functools.partial(_same, value) for name, value in (chosen or {}).items()}
    if isinstance(function, functools.partial):
        arguments = {name: get for name, get in arguments.items() if name not in function.keywords}
    available: Mapping[str, Callable[[], Any]] = {**arguments, **more}
    parameters = parameters_of(function)
    positional: list[Any] = []
    if takes_whole(function, available):
        positional, available = [whole], more
        parameters.remove(next(each for each in parameters if each.default is each.empty))
    for each in parameters:
        if each.name not in available and each.default is each.empty:
            raise ValueError(
                f"{name_of_function(function)} has a parameter {each.name!r}; it can ask for {', '.join(available)}"
            )
    values: dict[str, Any] = {}
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY:
            positional.append(available[each.name]() if each.name in available else each.default)
        elif each.name in available:
            values[each.name] = available[each.name]()
    return function(*positional, **values)


def takes_whole(function: Callable[..., Any], names: Container[str]) -> bool:
    """Return True if the only parameter of `function` without a default is not one of `names`."""
    required = [each.name for each in parameters_of(function) if each.default is each.empty]
    return len(required) == 1 and required[0] not in names


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of `function`, without `*` and `**`; none if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled functions may have no signature
        return []
    return [each for each in parameters if each.kind not in VARIADIC]


def _same(value: Any) -> Any:
    return value
