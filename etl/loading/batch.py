"""A batch, as iterators yield it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from etl.arguments import describe
from etl.sources.record import pair_keys
from etl.stages.fields import unflatten

_REGISTERED: set[str] = set()


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """The records of one training step; `features, labels = batch` unpacks them.

    Iterators yield numpy arrays; `Backend.put` returns tensors. The first axis of every array counts records. A batch
    has no `len`, since it could count records or parts.

    It is a pytree for torch and JAX, if these are imported before an iterator is made: `jax.tree.map` applies a
    function to its arrays.

    Attributes
    ----------
    features : array or tuple of arrays
        The inputs; a tuple if records have several.
    labels : array, tuple of arrays or None
        The labels; None if records have none.
    features_mask, labels_mask : array of shape (batch, steps), tuple of these or None
        1 for a time step of data and 0 for padding. None if nothing is padded; a tuple has None for each array that is
        not padded.
    repeated : bool array of shape (batch,) or None
        True for a record that is repeated only so that all ranks get the same number of batches (see
        `BatchIterator.shard`). None if no record of the batch is repeated.

    Examples
    --------
    >>> batch = etl.Batch(np.zeros((4, 3)), np.arange(4))
    >>> features, labels = batch
    >>> batch.records, batch.nbytes
    (4, 128)
    """

    features: Any
    labels: Any
    features_mask: Any = None
    labels_mask: Any = None
    repeated: Any = None

    def __iter__(self) -> Iterator[Any]:
        yield self.features
        yield self.labels

    def __repr__(self) -> str:
        parts, names = _flatten(self)
        return f"Batch({', '.join(f'{name} {_describe(part)}' for name, part in zip(names, parts, strict=True))})"

    @property
    def records(self) -> int:
        """Number of records."""
        return len(self.features[0] if isinstance(self.features, tuple) else self.features)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[Any]:
        """Yield every array of the batch, in the order of its fields."""
        for part in vars(self).values():
            if isinstance(part, tuple):
                yield from (array for array in part if array is not None)
            elif part is not None:
                yield part


def register_pytree() -> None:
    """Make `Batch` a pytree of the libraries that this process has imported."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and "torch" not in _REGISTERED and hasattr(torch, "utils"):
        from torch.utils import _pytree

        _REGISTERED.add("torch")
        _pytree.register_pytree_node(Batch, _flatten, _unflatten, serialized_type_name="etl.Batch")
    if jax is not None and "jax" not in _REGISTERED and hasattr(jax, "tree_util"):
        _REGISTERED.add("jax")
        jax.tree_util.register_pytree_node(Batch, _flatten, lambda names, parts: _unflatten(parts, names))


def _flatten(batch: Batch) -> tuple[list[Any], tuple[str, ...]]:
    """Return the parts that a batch has, and their names: for torch, None would be a leaf."""
    named = {name: part for name, part in vars(batch).items() if part is not None}
    return list(named.values()), tuple(named)


def _unflatten(parts: Iterable[Any], names: Iterable[str]) -> Batch:
    return Batch(**{"features": None, "labels": None, **dict(zip(names, parts, strict=True))})


def _describe(part: Any) -> str:
    """Return dtypes and shapes, such as "float32 [32, 8]"."""
    if isinstance(part, tuple):
        return f"({', '.join(map(_describe, part))})"
    if not hasattr(part, "shape"):
        return type(part).__name__
    return f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)}"


def make_batch(arrays: Mapping[str, Any], repeated: Any = None) -> Batch:
    """Return a batch of `arrays`, which are named as `etl.stages.fields.flatten` names them.

    `labels` is None if there is no label.
    """
    record = arrays if "features" in arrays and arrays.keys() <= {"features", "label"} else unflatten(arrays)
    return Batch(
        record["features"], record.get("label"), record.get("features_mask"), record.get("labels_mask"), repeated
    )


def as_batch(item: Any) -> Batch:
    """Return `item`, a batch in any form that loaders use, as a `Batch` of the same arrays.

    It is an `etl.Batch`, a pair of features and labels, or a mapping in which their keys can be told (see `pair_keys`).
    Features and labels are arrays or tensors of any library, or a tuple or list of them. Labels may be None. Raises
    `ValueError` if `item` has another form, and warns if a mapping has other entries, which are left out.
    """
    if isinstance(item, Batch):
        return item
    pair = _named_pair(item) if isinstance(item, Mapping) else item
    if not (isinstance(pair, (tuple, list)) and len(pair) == 2):
        raise ValueError(
            f"a batch is an etl.Batch, a pair of features and labels, or a mapping with keys such as 'image' and "
            f"'label', not {describe(item)}"
        )
    return Batch(_arrays("features", pair[0]), None if pair[1] is None else _arrays("labels", pair[1]))


def _named_pair(item: Mapping[Any, Any]) -> tuple[Any, Any] | None:
    """Return the features and labels of `item`, or None if its keys do not tell which entries these are."""
    keys = pair_keys(item)
    if keys is None:
        return None
    if len(item) > 2:
        others = ", ".join(repr(key) for key in item if key not in keys)
        warnings.warn(f"the entries {others} of batches are left out", UserWarning, stacklevel=4)
    return item[keys[0]], item[keys[1]]


def _arrays(name: str, part: Any) -> Any:
    """Return features or labels: an array, or a tuple of arrays."""
    each = part if isinstance(part, (tuple, list)) else (part,)
    if not each or not all(len(getattr(array, "shape", ())) for array in each):
        raise ValueError(
            f"the {name} of a batch are {describe(part)}; needed are arrays or tensors whose first axis counts records"
        )
    return tuple(part) if isinstance(part, list) else part
