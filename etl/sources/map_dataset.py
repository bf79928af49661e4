"""A map-style PyTorch data set as a source: anything with `len` and `[i]` whose items are pairs or mappings."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from PIL import Image

from etl.arguments import describe
from etl.images import pillow
from etl.sources.record import Record, source_name

PAIR = ("features", "label")
KEYS_SHOWN = 10


class MapStyle(Protocol):
    """A map-style `torch.utils.data.Dataset`."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class MapDataset:
    """The records of a map-style data set, whose items are pairs `(features, label)` or mappings.

    Tensors are taken without a copy. Pillow images become uint8 pixels of shape `(height, width, 3)`; their EXIF
    orientation is not applied. A label that is an image, such as a segmentation mask, keeps its mode.

    Parameters
    ----------
    dataset : map-style data set
        Anything with `len(dataset)` and `dataset[index]`.
    features : str
        Key of the features, if items are mappings. For a Hugging Face data set of images: `features="image"`.
    label : str or None
        Key of the label, if items are mappings. None leaves labels out.
    ragged : sequence of str
        Names of the fields whose size varies between records, for presaving.

    Raises
    ------
    ValueError
        If `dataset` is not a map-style data set.

    Warns
    -----
    UserWarning
        Once, if items have other keys as well, which are left out.

    Notes
    -----
    Transforms inside the data set stay as they are. Their random numbers do not depend on the iterator's seed, and
    presaving would repeat the same ones in every epoch. `AsyncIterator` reads items in several threads at once; pass it
    `threads=1` if the data set does not support that. The source can be pickled if the data set can.
    """

    def __init__(
        self, dataset: MapStyle, *, features: str = "features", label: str | None = "label", ragged: Sequence[str] = ()
    ) -> None:
        torch = sys.modules.get("torch")
        is_stream = torch is not None and isinstance(dataset, torch.utils.data.IterableDataset)
        if is_stream or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise ValueError(
                f"a {type(dataset).__name__} is not a map-style data set: records are read by index, which needs "
                "__len__ and __getitem__; write a stream to a store first, with presave.write"
            )
        self.name = source_name(dataset)
        self.dataset = dataset
        self.ragged = tuple(ragged)
        self._keys = {"features": features} if label is None else {"features": features, "label": label}
        self._has_warned = False
        classes = getattr(dataset, "classes", None)
        if isinstance(classes, list) and all(isinstance(each, str) for each in classes):
            self.classes = classes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Record:
        """Read record `index`; raise `ValueError` for an item of another form, and any error of the data set."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {self.name}, which holds {len(self)}")
        try:
            item = self.dataset[index]
        except IndexError as error:  # not the record's index, which exists
            raise LookupError(f"IndexError: {error}") from error
        if isinstance(item, Mapping):
            missing = self._keys["features"] not in item
            values = {name: item[key] for name, key in self._keys.items() if key in item}
            if not missing:
                self._warn_of_other_keys(item)
        else:
            missing = not (isinstance(item, (tuple, list)) and len(item) == len(PAIR))
            pair = {} if missing else dict(zip(PAIR, item, strict=True))
            values = {name: pair[name] for name in self._keys if name in pair}
        if missing:
            raise ValueError(
                f"its item is {describe(item)}; needed is a pair (features, label), or a mapping with "
                f"{' and '.join(map(repr, self._keys.values()))} (MapDataset takes other names for these)"
            )
        return {name: _as_array(name, value) for name, value in values.items()}

    def _warn_of_other_keys(self, item: Mapping[Any, Any]) -> None:
        """Warn, once, of keys that records leave out, one of which may be the label's."""
        others = [key for key in item if key not in self._keys.values()]
        if self._has_warned or not others:
            return
        self._has_warned = True
        label = self._keys.get("label")
        advice = "" if label is None or label in item else f"; there is no {label!r}: pass label=KEY, or label=None"
        shown = ", ".join(map(repr, others[:KEYS_SHOWN])) + (", ..." if len(others) > KEYS_SHOWN else "")
        warnings.warn(f"MapDataset leaves out the keys {shown} of {self.name}{advice}", UserWarning, stacklevel=3)

    def describe(self, index: int) -> str:
        """Return the file of record `index` if the data set lists its `samples`, as in torchvision; for messages."""
        samples = getattr(self.dataset, "samples", None)
        sample = samples[index] if isinstance(samples, (list, tuple)) and index < len(samples) else None
        return str(sample[0]) if isinstance(sample, (tuple, list)) and sample else ""

    def __repr__(self) -> str:
        return f"MapDataset({self.name!r}, {len(self):,} records)"


def _as_array(name: str, value: Any) -> np.ndarray:
    torch = sys.modules.get("torch")  # a data set of tensors has loaded it
    if torch is not None and isinstance(value, torch.Tensor):
        from etl.training.backends.tensors import as_array

        return as_array(value)
    if isinstance(value, Image.Image):
        return pillow.to_pixels(pillow.to_rgb(value)) if name == "features" else np.asarray(value)
    array = np.asarray(value)
    if array.dtype.kind in "OUS":
        raise ValueError(f"its {name} are {describe(value)}, not numbers; give a tensor, an array or an image")
    return array
