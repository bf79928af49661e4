"""Labels as text: class numbers, class names, or regression targets; and files that list class names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from etl.arguments import refuse_string
from presave.files import read_regular_file

# Stricter than Python's float(), which accepts underscores, "nan" and "infinity". No digit can match two parts of the
# pattern: backtracking over all combinations would take time quadratic in the number of digits.
NUMBER = re.compile(rb"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*")
_WHOLE_NUMBER = re.compile(rb"\s*[+-]?\d+\s*")
# How R, pandas, databases and spreadsheets write that there is no value. Not "none", which may well be a class.
_MISSING = re.compile(r"|[#<]?na>?|#?n/a( n/a)?|-?nan|nat|null|\?|\.|-?1\.#(ind|qnan)", re.IGNORECASE)
_INT64 = np.iinfo(np.int64)
# If nearly every row has a different label, the column does not name classes: an error before memory is full.
MAX_CLASSES = 1_000_000
_MAX_CLASSES_FILE_NBYTES = 16 << 20


def is_missing(text: bytes) -> bool:
    """Return True if `text` says that there is no value: it is blank, or a word such as NA, NULL or ?."""
    word = _stripped(text)
    return word == "None" or _MISSING.fullmatch(word) is not None


class Labels(Protocol):
    """The meaning of labels.

    Attributes
    ----------
    classes : list of str or None
        Names of the classes; None if they have no names.
    """

    @property
    def classes(self) -> list[str] | None: ...

    def value(self, text: bytes) -> Any:
        """Return the label in `text`, an int or a floating-point numpy scalar; raise `ValueError` if it is invalid."""


class ClassNumbers:
    """Class numbers: whole numbers, kept as they are."""

    classes = None

    def value(self, text: bytes) -> int:
        """Return the number in `text`, which fits into int64."""
        if not _WHOLE_NUMBER.fullmatch(text):
            raise _invalid(
                text, "is no whole number, as the first one is; pass regression=True, or classes=[...] for names"
            )
        number = int(text)
        if not _INT64.min <= number <= _INT64.max:
            raise _invalid(text, "does not fit into int64")
        return number


class ClassNames:
    """Class names: the number of a class is its index in `classes`. Blanks around a name do not count.

    Raises `ValueError` for a repeated name, for one that is no text, and for a string, whose letters would be names.
    """

    def __init__(self, classes: Sequence[str]) -> None:
        refuse_string("classes", classes)
        given: list[Any] = list(classes)
        wrong = [each for each in given if not isinstance(each, str)]
        if wrong:
            raise ValueError(f"classes holds {wrong[0]}, which is no text; write it as labels are, '{wrong[0]}'")
        repeated = [name for name, count in Counter(map(str.strip, given)).items() if count > 1]
        if repeated or not given:
            raise ValueError(f"classes holds {repeated[0]!r} twice" if repeated else "classes is empty")
        self.classes = list(map(str, given))
        self._numbers = {name.strip().encode(): number for number, name in enumerate(self.classes)}

    def value(self, text: bytes) -> int:
        """Return the number of the class named `text`."""
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers.get(_stripped(text).encode())
        if number is None:
            raise _invalid(text, f"is not one of the {len(self.classes)} classes")
        return number


class Targets:
    """Regression targets: floating-point scalars of `dtype`."""

    classes = None

    def __init__(self, dtype: str) -> None:
        self._type = np.dtype(dtype).type

    def value(self, text: bytes) -> Any:
        """Return the number in `text`."""
        if not NUMBER.fullmatch(text):
            raise _invalid(text, "is not a number")
        with np.errstate(over="ignore"):
            number = self._type(float(text))
        if not np.isfinite(number):
            raise _invalid(text, f"is too large for {np.dtype(self._type)}")
        return number


class LabelFinder:
    """Infers from all labels, chunk by chunk, whether they are class numbers or class names.

    If `classes` is given, labels must be among these names. Otherwise the first label decides: if it is a whole number,
    all labels are class numbers and must be whole numbers; if not, they are names, and classes are sorted by name.
    """

    def __init__(self, classes: Sequence[str] | None) -> None:
        self._labels: ClassNumbers | ClassNames | None = None if classes is None else ClassNames(classes)
        self._seen: set[bytes] = set()

    def add(self, texts: Sequence[bytes]) -> None:
        """Take in more labels, at least one; raises `LabelError` for the first that is invalid."""
        if not self._seen and self._labels is None:
            if _WHOLE_NUMBER.fullmatch(texts[0]):
                self._labels = ClassNumbers()
            elif NUMBER.fullmatch(texts[0]):
                raise LabelError(
                    0, str(_invalid(texts[0], "is no whole number; pass regression=True, or classes=[...] for names"))
                )
        for text in dict.fromkeys(texts):  # each once, in their order
            if text not in self._seen:
                try:
                    self._check(text)
                except ValueError as error:
                    raise LabelError(texts.index(text), str(error)) from None
                self._seen.add(text)
        if self._labels is not None and len(self._seen) > MAX_CLASSES:
            self._seen = {texts[0]}  # the set only saves checking equal labels again

    def result(self) -> ClassNumbers | ClassNames:
        """Return the meaning of the labels, after all were added."""
        return self._labels or ClassNames(sorted({_stripped(text) for text in self._seen}))

    def _check(self, text: bytes) -> None:
        if self._labels is not None:
            self._labels.value(text)
            return
        if is_missing(text):
            raise _invalid(text, "")
        try:
            text.decode()
        except UnicodeDecodeError:
            raise _invalid(text, "is not UTF-8 text; convert the file") from None
        if len(self._seen) >= MAX_CLASSES:
            raise ValueError(f"more than {MAX_CLASSES:,} different labels; choose the column that names classes")


class LabelError(ValueError):
    """An invalid label: its `position` in the chunk that was added, and the `cause`."""

    def __init__(self, position: int, cause: str) -> None:
        super().__init__(position, cause)
        self.position = position
        self.cause = cause


def read_class_names(path: Path) -> str:
    """Return the text of a file of class names; raise `ValueError` that names `path` if it is not UTF-8 or too long."""
    try:
        return read_regular_file(path, _MAX_CLASSES_FILE_NBYTES).decode("utf-8-sig")
    except ValueError as error:
        raise ValueError(f"{path} does not name classes: {error}") from None


def _invalid(text: bytes, reason: str) -> ValueError:
    label = text.decode(errors="replace")
    if not text.strip():
        return ValueError("the label is missing")
    if is_missing(text):
        return ValueError(
            f"the label is missing ({label!r}): remove the line, or pass classes=[...] if it names a class"
        )
    return ValueError(f"label {label!r} {reason}")


def _stripped(text: bytes) -> str:
    """Return `text` without the blanks around it, those of spreadsheets included, which bytes do not know."""
    return text.decode(errors="replace").strip()
