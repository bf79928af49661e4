"""The structure of a data set's items: taken apart into the arrays of a record, and put together again for a batch."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from PIL import Image

from etl.arguments import describe
from etl.images import pillow
from presave import Record
from presave.schema import MASKED, is_masked

if TYPE_CHECKING:
    from etl.loading.batch import Batch

TEXT = (str, bytes)
NUMBERS = (int, float, complex, np.number, np.bool_)
PAIR = ("features", "label")


class Structure:
    """The containers of an item, and the place of each of its arrays in a record.

    Parameters
    ----------
    groups : mapping of key to {"features", "label"}, optional
        The keys or places of the item that are features and label. Its other keys are left out. By default the whole
        item is features.

    Attributes
    ----------
    keys : mapping of key to str, or None
        The `groups`.
    left_out : list of str
        Places of texts, which records cannot hold.
    depends_on_item : bool
        True if an item with its keys in another order, or other types of numbers in a list, would have other fields.

    Raises
    ------
    ValueError
        If the item has no array, or something that is none.
    """

    def __init__(self, item: Any, groups: Mapping[Any, str] | None = None) -> None:
        self.keys = groups
        if groups is None:
            self._root: _Node = _find_node(item, "features", "item")
        else:
            parts = _parts(item)
            children: dict[Any, _Node] = {key: _LeftOut("") for key in parts}
            for key, group in groups.items():
                value = parts[key]
                children[key] = _Leaf(group, group, 0) if isinstance(value, TEXT) else _find_node(value, group, group)
            self._root = _Container(_emptied(item), "item", describe(item), _kind(item), children)
        leaves = [node for node in _walk(self._root) if isinstance(node, _Leaf)]
        self.left_out = [node.path for node in _walk(self._root) if isinstance(node, _LeftOut) and node.path]
        self.depends_on_item = groups is None or any(leaf.depth or leaf.path != leaf.group for leaf in leaves)
        self._counts = {group: sum(leaf.group == group for leaf in leaves) for group in PAIR}
        if not self._counts["features"]:
            raise ValueError(f"its item is {describe(item)}, and no array is in it")

    def record(self, item: Any) -> Record:
        """Return the arrays of `item`; a field with several is a tuple.

        Raises `ValueError` if `item` has another structure, or holds something that is not an array.
        """
        values: dict[str, list[np.ndarray]] = {group: [] for group, count in self._counts.items() if count}
        self._root.collect(item, values)
        return {group: arrays[0] if len(arrays) == 1 else tuple(arrays) for group, arrays in values.items()}

    def collated(self, batch: Batch) -> Any:
        """Return the arrays of `batch` in the containers of an item, as tensors that share their memory.

        Raises `ValueError` if the batch has more or fewer arrays than an item.
        """
        values = {}
        for group, part in zip(PAIR, batch, strict=True):
            arrays = part if isinstance(part, tuple) else () if part is None else (part,)
            if self._counts[group] and len(arrays) != self._counts[group]:
                raise ValueError(
                    f"the batch has {len(arrays)} arrays of {group}, an item of the data set has "
                    f"{self._counts[group]}; a stage has put them together, taken them apart or left them out"
                )
            values[group] = iter(arrays)
        return self._root.collated(values)


@dataclass(frozen=True)
class _Leaf:
    """An array of a record; if `depth` is not 0, lists of numbers that are nested so deep."""

    group: str
    path: str
    depth: int

    def collect(self, value: Any, values: Mapping[str, list[np.ndarray]]) -> None:
        values[self.group].append(_as_array(self.path, value))

    def collated(self, values: Mapping[str, Iterator[Any]]) -> Any:
        from etl.training.backends.tensors import as_tensor

        tensor = as_tensor(next(values[self.group]))
        if tensor.ndim <= self.depth:
            raise ValueError(
                f"{self.path} of a batch has shape {tuple(tensor.shape)}, without the axes of the item's lists"
            )
        return _unbind(tensor, self.depth)


@dataclass(frozen=True)
class _LeftOut:
    """A place that records leave out; `path` is empty if the caller chose so. It is None in a batch."""

    path: str

    def collect(self, value: Any, values: Mapping[str, list[np.ndarray]]) -> None:
        """Take nothing."""

    def collated(self, values: Mapping[str, Iterator[Any]]) -> None:
        """Return None."""


@dataclass(frozen=True)
class _Container:
    """A container, by key, place or field; `_filled` makes one from `empty`, a copy or its class."""

    empty: Any
    path: str
    described: str
    kind: Any
    children: Mapping[Any, _Node]

    @cached_property
    def _needed(self) -> list[tuple[Any, _Node]]:
        return [(key, child) for key, child in self.children.items() if not isinstance(child, _LeftOut)]

    def collect(self, value: Any, values: Mapping[str, list[np.ndarray]]) -> None:
        kind = _kind(value)
        parts = _parts(value) if kind is object else value
        is_alike = kind is self.kind and (kind is Mapping or len(parts) == len(self.children))
        for key, child in self._needed:
            if not is_alike or (kind is not Sequence and key not in parts):
                raise ValueError(f"its {self.path} is {describe(value)}; the first one is {self.described}")
            child.collect(parts[key], values)

    def collated(self, values: Mapping[str, Iterator[Any]]) -> Any:
        return _filled(self.empty, {key: child.collated(values) for key, child in self.children.items()})


_Node: TypeAlias = _Leaf | _LeftOut | _Container


def _find_node(value: Any, group: str, path: str) -> _Node:
    if isinstance(value, TEXT):
        return _LeftOut(path)
    row = _numbers(value)
    depth = 0 if row is None else len(row[1])
    if depth or _kind(value) is None:
        return _Leaf(group, path, depth)
    if type(value) in (list, tuple) and not value:  # of numbers: those of other items may be longer
        return _Leaf(group, path, 1)
    children = {key: _find_node(part, group, _path(path, value, key)) for key, part in _parts(value).items()}
    return _Container(_emptied(value), path, describe(value), _kind(value), children)


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    if isinstance(node, _Container):
        for child in node.children.values():
            yield from _walk(child)


def _path(path: str, value: Any, key: Any) -> str:
    return f"{path}.{key}" if _is_record_class(value) else f"{path}[{key!r}]"


def _kind(value: Any) -> Any:
    """Return Mapping or Sequence if `value` is one, object if it is a dataclass, and None if it is not a container."""
    if isinstance(value, (Mapping, Sequence)):
        return Mapping if isinstance(value, Mapping) else Sequence
    return object if _is_record_class(value) else None


def _is_record_class(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _parts(container: Any) -> dict[Any, Any]:
    """Return the values of a container by key, place or field."""
    if isinstance(container, Mapping):
        return {key: container[key] for key in container}
    if isinstance(container, Sequence):
        return dict(enumerate(container))
    return {field.name: getattr(container, field.name) for field in dataclasses.fields(container)}


def _numbers(value: Any) -> tuple[type, tuple[int, ...]] | None:
    """Return the one type of the numbers in nested lists of equal lengths, and the lengths; None for anything else."""
    if type(value) not in (list, tuple) or not value:
        return None
    kinds = set(map(type, value))
    if kinds <= {list, tuple}:
        rows = set(map(_numbers, value))
        row = rows.pop()
        return None if rows or row is None else (row[0], (len(value), *row[1]))
    kind = kinds.pop()
    return (kind, (len(value),)) if not kinds and issubclass(kind, NUMBERS) else None


def _unbind(tensor: Any, depth: int) -> Any:
    """Return lists of tensors, one for each place in the lists of an item."""
    if not depth:
        return tensor
    return [_unbind(tensor[:, place], depth - 1) for place in range(tensor.shape[1])]


# The containers of a batch are those that `torch.utils.data.default_collate` makes. A mutable one is a copy of the
# item's, since it may have further attributes. A tuple becomes a list, and so does what cannot be copied or made.


def _emptied(value: Any) -> Any:
    """Return a copy of the container `value` with None in every place; its class if it is immutable."""
    is_mutable = isinstance(value, (MutableMapping, MutableSequence)) or _is_record_class(value)
    if not is_mutable:
        return type(value)
    nothing = dict.fromkeys(_parts(value))
    try:
        return _filled(value, nothing)
    except TypeError:
        return {} if isinstance(value, Mapping) else list(nothing.values())


def _filled(empty: Any, values: Mapping[Any, Any]) -> Any:
    """Return a container like `empty` with `values` by key, place or field."""
    if isinstance(empty, type):
        return _made(empty, values)
    filled = copy.copy(empty)
    if isinstance(filled, MutableMapping):
        filled.update(values)
        return filled
    for key, value in values.items():
        if isinstance(filled, MutableSequence):
            filled[key] = value
        else:
            object.__setattr__(filled, key, value)  # a dataclass may be frozen
    return filled


def _made(made: Any, values: Mapping[Any, Any]) -> Any:
    if issubclass(made, tuple):
        return made(*values.values()) if hasattr(made, "_fields") else list(values.values())
    parts: Any = dict(values) if issubclass(made, Mapping) else list(values.values())
    try:
        return made(parts)
    except TypeError:
        return parts


def _as_array(path: str, value: Any) -> np.ndarray:
    torch = sys.modules.get("torch")  # a data set of tensors has loaded it
    if torch is not None and isinstance(value, torch.Tensor):
        from etl.training.backends.tensors import as_array

        return as_array(value)
    if isinstance(value, Image.Image):
        return np.asarray(pillow.to_rgb(value) if path == "features" else value)
    array = np.asarray(value)
    if array is not value and is_masked(value):
        raise ValueError(f"its {path} have {MASKED}")
    if array.dtype.kind in "OUS":
        raise ValueError(f"its {path} are {describe(value)}, not numbers; give a tensor, an array or an image")
    return array
