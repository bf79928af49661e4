"""What the labels of a table mean: numbers of classes, names of classes, or targets of a regression."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from etl.sources.csv_layout import NUMBER

WHOLE_NUMBER = re.compile(rb"\s*[+-]?\d+\s*")
INT64 = np.iinfo(np.int64)
# Whoever takes a column of texts that are all different for the label should hear of it before memory is full.
MOST_CLASSES = 1_000_000


class Labels(Protocol):
    """What the text of a label means. `classes` are the names of the classes, None where they have none."""

    @property
    def classes(self) -> list[str] | None: ...

    def value(self, text: bytes) -> Any:
        """The label that `text` is, int or floating numpy scalar; raises `ValueError` that says why it is none."""


class ClassNumbers:
    """Whole numbers: those of classes, as they are."""

    classes = None

    def value(self, text: bytes) -> int:
        """`text` as a number that int64 holds."""
        if not WHOLE_NUMBER.fullmatch(text):
            raise _refusal(
                text, "is no whole number, as the first one is; pass regression=True, or classes=[...] for names"
            )
        number = int(text)
        if not INT64.min <= number <= INT64.max:
            raise _refusal(text, "does not fit into int64")
        return number


class ClassNames:
    """Names of classes, whose numbers are their places in `classes`. Raises `ValueError` for a name given twice."""

    def __init__(self, classes: Sequence[str]) -> None:
        repeated = [name for name, count in Counter(classes).items() if count > 1]
        if repeated or not classes:
            raise ValueError(f"classes holds {repeated[0]!r} twice" if repeated else "classes is empty")
        self.classes = list(classes)
        self._numbers = {name.encode(): number for number, name in enumerate(self.classes)}

    def value(self, text: bytes) -> int:
        """The number of the class called `text`."""
        number = self._numbers.get(text)
        if number is None:
            raise _refusal(text, f"is none of the {len(self.classes)} classes")
        return number


class Targets:
    """Numbers, as floating scalars of `dtype`: the targets of a regression."""

    classes = None

    def __init__(self, dtype: str) -> None:
        self._type = np.dtype(dtype).type

    def value(self, text: bytes) -> Any:
        """The number that `text` is."""
        if not NUMBER.fullmatch(text):
            raise _refusal(text, "is not a number")
        with np.errstate(over="ignore"):
            number = self._type(float(text))
        if not np.isfinite(number):
            raise _refusal(text, f"is too large for {np.dtype(self._type)}")
        return number


class LabelFinder:
    """Finds out what labels mean by looking at all of them, some at a time.

    They are `classes` where these are given. Otherwise the first one decides: if it is a whole number all must be, and
    are numbers of classes; any other text is the name of a class, and classes are sorted by name.
    """

    def __init__(self, classes: Sequence[str] | None) -> None:
        self._labels: ClassNumbers | ClassNames | None = None if classes is None else ClassNames(classes)
        self._seen: set[bytes] = set()

    def see(self, texts: Sequence[bytes]) -> None:
        """Look at more labels, at least one. Raises `LabelError` for the first that is none."""
        if not self._seen and self._labels is None:
            if WHOLE_NUMBER.fullmatch(texts[0]):
                self._labels = ClassNumbers()
            elif NUMBER.fullmatch(texts[0]):
                raise LabelError(
                    0, str(_refusal(texts[0], "is no whole number; pass regression=True, or classes=[...] for names"))
                )
        faults = {}
        for text in set(texts) - self._seen:
            try:
                self._check(text)
            except ValueError as error:
                faults[text] = str(error)
            self._seen.add(text)
        if faults:
            position = min(texts.index(text) for text in faults)
            raise LabelError(position, faults[texts[position]])
        if self._labels is not None and len(self._seen) > MOST_CLASSES:
            self._seen = {texts[0]}  # it only saves checking equal labels again

    def found(self) -> ClassNumbers | ClassNames:
        """What they are, now that all were seen."""
        return self._labels or ClassNames(sorted(text.decode() for text in self._seen))

    def _check(self, text: bytes) -> None:
        if self._labels is not None:
            self._labels.value(text)
            return
        if not text.strip():
            raise _refusal(text, "")
        try:
            text.decode()
        except UnicodeDecodeError:
            raise _refusal(text, "is not UTF-8 text; convert the file") from None
        if len(self._seen) >= MOST_CLASSES:
            raise ValueError(f"more than {MOST_CLASSES:,} different labels; choose the column that names classes")


class LabelError(ValueError):
    """The label at `position` among those looked at is none; `cause` says why."""

    def __init__(self, position: int, cause: str) -> None:
        super().__init__(position, cause)
        self.position = position
        self.cause = cause


def _refusal(text: bytes, why: str) -> ValueError:
    return ValueError(f"label {text.decode(errors='replace')!r} {why}" if text.strip() else "the label is missing")
