"""Batches of any structure: the arrays in them, and the part of them that belongs to each record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from .libraries import SCALARS, library_of

MAX_SHOWN = 3


def leaves_in(batch: Any) -> list[Any]:
    """Return the arrays, numbers and texts of `batch`, in order, without None.

    Parameters
    ----------
    batch : any structure
        Tuples, lists and other sequences, mappings, dataclasses, objects with a method `arrays`, and numpy arrays of
        Python objects, nested in any way.

    Raises
    ------
    TypeError
        If it holds an object that is not one of these.
    """
    found: list[Any] = []
    _collect(batch, found)
    return found


def _collect(value: Any, found: list[Any]) -> None:
    children = children_of(value)
    if children is not None:
        for child in children:
            _collect(child, found)
    elif value is not None:
        found.append(value)


def children_of(value: Any) -> Sequence[Any] | None:
    """Return the parts of a structure in order; None if `value` is an array, a number, a text or None."""
    kind = type(value)
    try:
        opener = _OPENERS[kind]
    except KeyError:
        opener = _OPENERS[kind] = _find_opener(value)
    return None if opener is None else opener(value)


Opener = Callable[[Any], "Sequence[Any] | None"]
# By type, because the clock opens every batch.
_OPENERS: dict[type, Opener | None] = {}


def has_arrays_method(batch: Any) -> bool:
    """Return whether `batch` yields its own arrays, as `etl.Batch` does; then it also has `len()`."""
    return callable(getattr(type(batch), "arrays", None))


def _find_opener(value: Any) -> Opener | None:
    if value is None or isinstance(value, SCALARS):
        return None
    if isinstance(value, (tuple, list)):
        return lambda sequence: sequence
    if has_arrays_method(value):
        return lambda batch: list(batch.arrays())
    if isinstance(value, Mapping):
        return lambda mapping: list(mapping.values())
    library = library_of(value)
    if library is not None:
        return library.objects_in
    if is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in fields(value)]
        return lambda instance: [getattr(instance, name) for name in names]
    if isinstance(value, Sequence):
        return tuple
    kind = type(value)
    raise TypeError(
        f"a batch holds a {kind.__module__}.{kind.__qualname__}, in which no arrays can be found; yield arrays or "
        "tensors, numbers or text, in tuples, lists, mappings or dataclasses, or give the class a method arrays() that "
        "yields its arrays"
    )


def count_batches(loader: Any) -> int | None:
    """Return the number of batches that a loader says an epoch has; None if it does not say."""
    try:
        return len(loader)
    except (TypeError, AttributeError, NotImplementedError):
        return None


def record_count(batch: Any) -> int:
    """Return the number of records in `batch`.

    If it has a method `arrays`, this is its attribute `records`, or else its length. Otherwise it is the length of the
    first axis that all arrays share, or the number of items in lists with one item for each record.

    Raises
    ------
    ValueError
        If neither is the case.
    """
    if has_arrays_method(batch):
        return batch.records if hasattr(batch, "records") else len(batch)
    return _count_and_lists(batch)[0]


def fields_of(batch: Any) -> list[Sequence[Any]]:
    """Return arrays, and lists of anything, with one row or item for each record of `batch`.

    Raises
    ------
    ValueError
        If the number of records is unknown.
    """
    if has_arrays_method(batch):
        return [_unboxed(array) for array in batch.arrays()]
    count, lists = _count_and_lists(batch)
    if lists is not None:
        return lists
    found: list[Sequence[Any]] = []
    _collect_columns(batch, count, found)
    return found


def _count_and_lists(batch: Any) -> tuple[int, list[Sequence[Any]] | None]:
    """Return the number of records, and the lists that `batch` is made of; None if its arrays tell the number."""
    shared, has_numbers = _shared_axis(batch)
    lists = None if shared is not None and not has_numbers else _lists_of_records(batch)
    if lists is not None:
        return len(lists[0]), lists
    if shared is not None:
        return shared, None
    raise ValueError(
        f"the number of records in a batch is unknown: {describe(batch)}; its arrays have different first axes, and it "
        "is not made of lists of equal length. Return arrays whose first axis counts records, or lists with one item "
        "for each record"
    )


def _collect_columns(value: Any, count: int, found: list[Sequence[Any]]) -> None:
    children = children_of(value)
    if children is None:
        library = library_of(value)
        if library is not None and library.shape_of(value):
            found.append(_unboxed(value))
    elif len(children) == count and all(each is None or isinstance(each, SCALARS) for each in children):
        found.append(children)  # such as the name of each record
    else:
        for child in children:
            _collect_columns(child, count, found)


def _shared_axis(batch: Any) -> tuple[int | None, bool]:
    """Return the length of the first axis of all arrays, None if they differ, and whether there are single numbers."""
    shared: int | None = None
    has_numbers = False
    for leaf in leaves_in(batch):
        library = library_of(leaf)
        shape = () if library is None else library.shape_of(leaf)
        if not shape:
            has_numbers = has_numbers or not isinstance(leaf, (str, bytes))
        elif shared is not None and shape[0] != shared:
            return None, has_numbers
        else:
            shared = shape[0]
    return shared, has_numbers


def _lists_of_records(batch: Any) -> list[Sequence[Any]] | None:
    """Return sequences with one item for each record; None if `batch` is not made of such.

    Either every item of the batch is such a list, or the array of a field; or the batch itself is a list of records.
    """
    items = [_unboxed(each) for each in children_of(batch) or ()]
    if not items:
        return None
    lists = [each for each in items if isinstance(each, (list, tuple))]
    lengths = {_length_of(each) for each in items}
    by_field = bool(lists) and len(lengths) == 1 and not lengths & {None, 0}
    by_record = isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields") and _are_alike(items)
    if by_field and by_record:
        # Both are possible, such as in [[a, b], [c, d]]: the items of a field are of one kind.
        by_record = not all(_are_alike(each) for each in lists) or (
            isinstance(batch, list) and isinstance(batch[0], tuple)
        )
        by_field = not by_record
    if by_field:
        return items
    return [items] if by_record else None


def _unboxed(item: Any) -> Any:
    """Return the list of the Python objects or texts in an array, or else `item` itself.

    The dtype of texts has the width of the longest in the array, so that a text would differ from batch to batch.
    """
    if isinstance(item, np.ndarray) and item.dtype.kind in "SU":
        return item.tolist()
    library = library_of(item)
    objects = None if library is None else library.objects_in(item)
    return item if objects is None else objects


def _length_of(item: Any) -> int | None:
    if isinstance(item, (list, tuple)):
        return len(item)
    library = library_of(item)
    shape = () if library is None else library.shape_of(item)
    return shape[0] if shape else None


def _are_alike(items: Sequence[Any]) -> bool:
    first = _kind_of(items[0])
    return all(_kind_of(each) == first for each in items[1:])


def _kind_of(value: Any) -> Any:
    """Return what two records have in common: the structure, and the dtypes and numbers of axes of their arrays."""
    children = children_of(value)
    if children is None:
        library = library_of(value)
        if library is not None and library.shape_of(value):
            return library.dtype_of(value), len(library.shape_of(value))
        return "text" if isinstance(value, (str, bytes)) else "none" if value is None else "number"
    kinds = [_kind_of(each) for each in children]
    if isinstance(value, Mapping):
        return type(value), tuple(zip(value, kinds, strict=True))
    return type(value), frozenset(kinds) if isinstance(value, list) else tuple(kinds)


def describe(value: Any) -> str:
    """Return how a batch looks, such as `(float32 (8, 3, 224, 224), [int64 (4,), int64 (7,), ... 8 items])`."""
    library = library_of(value)
    if isinstance(value, Mapping):
        return f"{{{_describe_items([f'{name!r}: {describe(each)}' for name, each in value.items()])}}}"
    if isinstance(value, list):
        return f"[{_describe_items([describe(each) for each in value])}]"
    if isinstance(value, tuple):
        return f"({_describe_items([describe(each) for each in value])})"
    if library is not None:
        return f"{library.dtype_of(value)} {tuple(library.shape_of(value))}"
    return type(value).__name__


def _describe_items(items: Sequence[str]) -> str:
    few = ", ".join(items[:MAX_SHOWN])
    return few if len(items) <= MAX_SHOWN else f"{few}, ... {len(items)} items"
