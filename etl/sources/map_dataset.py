"""A map-style PyTorch data set as a source: anything with `len` and `[i]`, whatever the structure of its items."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from etl.arguments import describe, refuse_string
from etl.sources.identity import listed_sample, source_digests, source_identity, source_origin
from etl.sources.randomness import random_states_kept
from etl.sources.record import LABELS_KEYS, Record, check_index, check_source, chosen_item, pair_keys, source_name
from etl.sources.structure import PAIR, TEXT, Structure
from presave.thread_safety import is_thread_safe, unopened

if TYPE_CHECKING:
    from etl.loading.batch import Batch

KEYS_SHOWN = 10


def usual_keys(item: Any) -> tuple[Any, Any] | None:
    """Return the keys of features and label if `item` is a mapping of these two alone, such as "image" and "label".

    A text is not a label under an unknown key, because records cannot hold texts.
    """
    keys = pair_keys(item) if isinstance(item, Mapping) and len(item) == len(PAIR) else None
    is_caption = keys is not None and isinstance(item[keys[1]], TEXT) and str(keys[1]).lower() not in LABELS_KEYS
    return None if is_caption else keys


class MapStyle(Protocol):
    """A map-style `torch.utils.data.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class MapDataset:
    """The records of a map-style data set, whose items are pairs `(features, label)`, mappings, or anything else.

    An item may have any structure that `torch.utils.data.default_collate` takes, and may be a dataclass. The features
    of a record are a tuple if several arrays belong to them:

    - a pair, or a mapping with `features`: `features` and, if there is one, `label`;
    - a mapping of two, such as `image` and `label`: `features` and `label`, as `etl.fit` reads batches;
    - anything else, such as `(x, y, weight)` or `{"a": ...}`: every array as `features`, in the item's order.

    Tensors are taken without a copy. Numbers are int64, float64 or bool, and a list of them is one array. If an image
    of Pillow is the features, it becomes uint8 pixels of shape `(height, width, 3)`; its EXIF orientation is not
    applied. Any other image, such as a segmentation mask, keeps its mode.

    Parameters
    ----------
    dataset : map-style data set
        Anything with `len(dataset)` and `dataset[index]`.
    features : str or None
        Key of the features, if items are mappings. In a mapping of two, "image", "x" and other usual keys take its
        place. None takes every array of an item, pairs and labels included, as features.
    label : str or None
        Key of the label, if items are mappings, or a usual key as for the features. None leaves labels out.
    ragged : sequence of str
        Names of the fields whose size varies between records, for presaving.
    name : str, optional
        Name in messages. By default, that of the data set or of its class.
    thread_safe : bool, optional
        True if several threads may read items at once, and an item outlasts the next reading. By default the data set's
        own attribute `thread_safe`; without one, only lists, tuples, arrays and a torch `Subset` of these are.

    Raises
    ------
    ValueError
        If `dataset` is not a map-style data set, or `ragged` is a string.

    Warns
    -----
    UserWarning
        Once, if items have keys that are left out, or texts, which records cannot hold.

    Notes
    -----
    The first item decides on the structure, and another one is an error. Transforms inside the data set stay as they
    are. Their random numbers do not depend on the iterator's seed, and presaving would repeat the same ones in every
    epoch. A data set may share an open file, a connection or a buffer between its items. So unless it is
    `thread_safe`, one thread of `AsyncIterator` reads it in all epochs. The source can be pickled if the data set can.

    Examples
    --------
    >>> dataset = torch.utils.data.TensorDataset(torch.eye(4), torch.arange(4))
    >>> features, labels = next(iter(etl.RawIterator(etl.MapDataset(dataset))))
    >>> features.shape, labels
    ((4, 4), array([0, 1, 2, 3]))
    """

    def __init__(
        self,
        dataset: MapStyle,
        *,
        features: str | None = "features",
        label: str | None = "label",
        ragged: Sequence[str] = (),
        name: str | None = None,
        thread_safe: bool | None = None,
    ) -> None:
        check_source(dataset, "a map-style data set")
        refuse_string("ragged", ragged)
        self.name = name or source_name(dataset)
        self.dataset = dataset
        self.ragged = tuple(ragged)
        self.thread_safe = is_thread_safe(dataset) if thread_safe is None else thread_safe
        self._features = features
        self._label = label
        # Known when an item was read.
        self._structure: Structure | None = None
        classes = getattr(dataset, "classes", None)
        if isinstance(classes, list) and all(isinstance(each, str) for each in classes):
            self.classes = classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Record:
        """Read record `index`; raise `ValueError` for an item of another form, and any error of the data set."""
        check_index(self, index)
        try:
            item = self.dataset[index]
        except IndexError as error:  # not the record's index, which exists
            raise LookupError(f"IndexError: {error}") from error
        structure = self._structure
        if structure is None:
            first = item
            if index > 0 and Structure(item, self._keys(item)).depends_on_item:
                item = copy.deepcopy(item)  # or reading another may overwrite it
                first = self._first_item(index, item)
            structure = self._find_structure(first)
        has_label = structure.keys is None or PAIR[1] in structure.keys.values() or self._label is None
        if not has_label and isinstance(item, Mapping) and self._label in item:
            raise ValueError(f"its item is {describe(item)}; the first item has no {self._label!r}")
        record = structure.record(item)
        self._structure = structure  # only that of an item which is valid
        return record

    def collated(self, batch: Batch) -> Any:
        """Return `batch` as a `DataLoader` over the data set would have yielded it.

        These are the containers and tensors that `torch.utils.data.default_collate` makes of its items. The tensors
        share the memory of the batch. None takes the place of everything that records leave out. The dtypes are those
        of the batch, and so equal to those of a `DataLoader` if the iterator has `dtype=None`.

        Raises
        ------
        ValueError
            If stages have put arrays together or taken them apart.
        """
        if self._structure is None:
            reader = unopened(self)  # this one may still have to be sent to other processes
            with random_states_kept():
                reader[0]
            self._structure = reader._structure
        assert self._structure is not None  # noqa: S101 - known since the first record was read
        return self._structure.collated(batch)

    @property
    def identity(self) -> Any:
        """The identity of the data set, if it has one."""
        return source_identity(self.dataset)

    def origin(self, index: int) -> str:
        """Return what identifies item `index`; "" if nothing does."""
        return source_origin(self.dataset, index)

    def record_digests(self) -> dict[str, str]:
        """Return digests that identify the items of the data set, if anything does."""
        return source_digests(self.dataset)

    def _first_item(self, index: int, item: Any) -> Any:
        """Return the first item that can be read, at the latest `item`, which is at `index`.

        Processes that begin with different items, and a run that is resumed, then have the same fields.
        """
        with random_states_kept():
            for earlier in range(index):
                try:
                    first = self.dataset[earlier]
                    Structure(first, self._keys(first)).record(first)
                except Exception:  # noqa: BLE001, S112 - the error is raised when the record is loaded
                    continue
                return first
        return item

    def _find_structure(self, item: Any) -> Structure:
        keys = self._keys(item)
        structure = Structure(item, keys)
        others = [key for key in item if key not in keys] if keys is not None and isinstance(item, Mapping) else []
        if others:
            advice = f"; there is no {self._label!r}: pass label=KEY, or label=None"
            said = "" if self._label is None or self._label in item else advice
            warn = f"MapDataset leaves out the keys {_shown(list(map(repr, others)))} of {self.name}{said}"
            warnings.warn(warn, UserWarning, stacklevel=3)
        if structure.left_out:
            warn = f"MapDataset leaves out {_shown(structure.left_out)} of {self.name}, since records cannot hold text"
            warnings.warn(warn, UserWarning, stacklevel=3)
        return structure

    def _keys(self, item: Any) -> dict[Any, str] | None:
        """Return the keys or places of `item` that are features and label; None if all of it is features."""
        if self._features is None:
            return None
        if isinstance(item, Mapping):
            features, label = self._features, self._label
            usual = usual_keys(item)
            if usual is not None:
                features = usual[0] if features == PAIR[0] and features not in item else features
                label = usual[1] if label == PAIR[1] and label not in item and features == usual[0] else label
            if features in item:
                return {key: group for key, group in ((features, PAIR[0]), (label, PAIR[1])) if key in item}
            if self._features != PAIR[0]:
                raise ValueError(
                    f"its item is {describe(item)}, without {self._features!r}; pass the key of the features, or "
                    "features=None for all"
                )
        elif isinstance(item, (tuple, list)) and len(item) == len(PAIR):
            return {0: PAIR[0]} if self._label is None else dict(enumerate(PAIR))
        return None

    def describe(self, index: int) -> str:
        """Return the file of record `index` if the data set lists its `samples`, as in torchvision; for messages."""
        sample = listed_sample(*chosen_item(self.dataset, index))
        return "" if sample is None else str(sample[0])

    def __repr__(self) -> str:
        return f"MapDataset({self.name!r}, {len(self):,} records)"


def _shown(names: list[str]) -> str:
    return ", ".join(names[:KEYS_SHOWN]) + (", ..." if len(names) > KEYS_SHOWN else "")
