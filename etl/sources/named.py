"""Sources found by name: what a user's function returns, or what another package has registered."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from etl import entry_points
from etl.functions import find_function, is_carried, is_function_name, name_of_function
from etl.sources.map_dataset import MapDataset, usual_keys
from etl.sources.randomness import FILE_SOURCES, random_states_kept
from etl.sources.record import RecordSequence
from presave.thread_safety import chosen_from, unopened

RECORD_FIELDS = {"features", "label", "features_mask", "labels_mask"}
REGISTERED = re.compile(r"([A-Za-z][\w.+-]*)://(.*)", re.DOTALL)


def is_source_name(text: str) -> bool:
    """Return True if `text` is "module:function", "NAME://PATH" or from `pickle_function`, and not a path on disk."""
    return not os.path.lexists(text) and (is_function_name(text) or REGISTERED.fullmatch(text) is not None)


def open_named(name: str, options: Mapping[str, Any]) -> RecordSequence:
    """Open the source called `name`, for which `is_source_name` is true. A data set is put into a `MapDataset`.

    Raises `ValueError` if there is no such function, it raises an error, or it returns something else.
    """
    registered = REGISTERED.fullmatch(name)
    if registered is None:
        function = find_function(name, "source")
        shown = name_of_function(function) if is_carried(name) else name
        return _as_source(_call(function, shown, (), options), shown)
    function = entry_points.load(entry_points.SOURCES, registered[1])
    if not callable(function):
        raise ValueError(f"source {registered[1]!r} is registered as a {type(function).__name__}, not a function")
    return _as_source(_call(function, name, (registered[2],) if registered[2] else (), options), name)


def _call(function: Callable[..., Any], name: str, path: tuple[str, ...], options: Mapping[str, Any]) -> Any:
    """Call `function` with the path, if there is one, and with `options`, which it must have."""
    arguments = dict(options)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # compiled functions may have no signature
        signature = None
    if signature is not None:
        parameters = signature.parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        unknown = [] if takes_any else sorted(arguments.keys() - parameters.keys())
        if unknown:
            raise ValueError(f"{name} has no option {', '.join(unknown)}; its function takes {_shown(signature)}")
        if "split" in parameters and parameters["split"].default is inspect.Parameter.empty:
            arguments.setdefault("split", "train")
        try:
            signature.bind(*path, **arguments)
        except TypeError as error:
            raise ValueError(
                f"{name}: {error}; its function takes {_shown(signature)}, and is called with "
                f"{', '.join([*map(repr, path), *arguments]) or 'nothing'}"
            ) from error
    try:
        return function(*path, **arguments)
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        raise ValueError(f"{name} raised {type(error).__name__}: {error}") from error


def _shown(signature: inspect.Signature) -> str:
    return ", ".join(signature.parameters) or "no arguments"


def _as_source(found: Any, name: str) -> RecordSequence:
    """Return `found` if it is a source or a `Subset` of one, and in a `MapDataset` if it is a data set."""
    source: RecordSequence = found
    if isinstance(chosen_from(found), (*FILE_SOURCES, MapDataset)):
        return source
    advice = _advice(found)
    if advice:
        raise ValueError(f"{name} returned a {type(found).__name__}; {advice}")
    try:
        with random_states_kept():
            records = len(found)
            first = unopened(found)[0] if records else None
    except Exception as error:  # of the user's data set
        raise ValueError(
            f"{name} returned a {type(found).__name__} whose record 0 cannot be read: {type(error).__name__}: {error}"
        ) from error
    if not records:
        raise ValueError(f"{name} returned a {type(found).__name__} that holds no records")
    if _is_record(first) and not _is_torch_dataset(found):
        return source
    # Nothing is left out of a mapping: the user's own training step may ask for any of its keys.
    has_more = isinstance(first, Mapping) and not first.keys() <= {"features", "label"} and usual_keys(first) is None
    return MapDataset(
        found,
        features=None if has_more else "features",
        ragged=getattr(chosen_from(found), "ragged", ()),
        name=name,
    )


def _advice(found: Any) -> str:
    """Return what to return instead of `found`; empty if it may be a source."""
    if isinstance(found, type):
        return f"return an object of that class, {found.__name__}(...)"
    if isinstance(found, (str, bytes)):
        return "return a source or a data set; a path is opened by its own name"
    if isinstance(found, Mapping):
        return f"return one of its values, of {', '.join(map(str, list(found)[:5]))}"
    if hasattr(found, "dataset") and not hasattr(found, "__getitem__"):
        return "return its data set, and compare the loader itself as a strategy"
    if isinstance(found, Iterator) or _is_stream(found):
        return (
            "records are read by index, in any order: return a map-style data set, with len and [i], or compare the "
            "stream's own loader as a strategy"
        )
    if not (hasattr(found, "__len__") and hasattr(found, "__getitem__")):
        return "return a source or a map-style data set: an object with len and [i]"
    return ""


def _is_stream(found: Any) -> bool:
    return _is_torch_dataset(found) and any(each.__name__ == "IterableDataset" for each in type(found).__mro__)


def _is_torch_dataset(found: Any) -> bool:
    return any(each.__module__.startswith("torch.utils.data") for each in type(found).__mro__)


def _is_record(item: Any) -> bool:
    """Return True if `item` is a record as stages take it: `features`, perhaps a label, of arrays and numbers."""
    if not isinstance(item, Mapping) or "features" not in item or not item.keys() <= RECORD_FIELDS:
        return False
    arrays = (np.ndarray, np.generic, int, float)
    return all(
        all(isinstance(each, np.ndarray) for each in value) if isinstance(value, tuple) else isinstance(value, arrays)
        for value in item.values()
    )
