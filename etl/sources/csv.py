"""A table of numbers in a CSV file, one record a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.sources.csv_layout import QUOTE, CsvLayout, read_layout, unquote
from etl.sources.csv_rows import scan_rows
from etl.sources.identity import FileIdentity
from etl.sources.labels import LabelFinder, Labels, Targets
from etl.sources.positioned_file import PositionedFile
from etl.sources.record import Record, check_index

# The index holds the offset of every sixteenth line, which takes half a byte for each record. A block of sixteen lines,
# read at once, has a kilobyte or two.
LINES_PER_BLOCK = 16
# One for each thread that reads line after line.
CACHED_BLOCKS = 32


class Csv(FileIdentity):
    r"""The rows of a CSV file in UTF-8, quoted as in RFC 4180.

    A record has `features`, an array of `dtype` and shape `(columns,)`, and `label` if a label column is named. Values
    are parsed as float64 and rounded once.

    Parameters
    ----------
    path : str or Path
        The file.
    label : str or int, optional
        Column with the label: its name in the first line, or its index, which counts from the end if negative.
    header : bool
        True if the first line names the columns, False if it is the first row.
    features : sequence of str or int, optional
        Columns that are features, by name or index. By default all but the label and row names: columns at the
        beginning that have no name in the first line, as R and pandas write them.
    delimiter : str
        One ASCII character.
    classes : sequence of str, optional
        Names of the classes, in the order of their numbers: for an order of your own, or to give a test set the numbers
        of the training set. By default the first label decides: if it is a whole number, labels are class numbers
        (int64, unchanged); otherwise they are names, and classes are numbered in sorted order. Blanks around a name do
        not count, and a missing label, such as NA, is an error unless `classes` names it.
    regression : bool
        If True, labels are targets of `dtype`, not classes.
    dtype : str
        "float32" or "float64".
    missing : float, optional
        Replacement for values that are missing: empty, NaN, NA, NULL, None, ? and the like. By default they are errors.

    Raises
    ------
    ValueError
        If a line is malformed. The error names file, line and column. Invalid class labels, unclosed quotes and wrong
        numbers of fields are found when the file is opened, all else when the record is read.

    Warns
    -----
    UserWarning
        If row names are left out.

    Notes
    -----
    Opening takes one pass over the file. The index takes half a byte for each record, and is so cheap to make that it
    is not kept on disk. Rows are read from the file on access. A source may be pickled, forked and used by several
    threads. Copies read the same file, so it must not change.

    Examples
    --------
    >>> _ = Path("flowers.csv").write_text("width,height,kind\n1.5,2.0,rose\n3.0,4.5,lily\n")
    >>> source = etl.Csv("flowers.csv", label="kind")
    >>> source[1]["features"], source.classes[source[1]["label"]]
    (array([3. , 4.5], dtype=float32), 'lily')
    """

    thread_safe = True

    def __init__(
        self,
        path: str | Path,
        label: str | int | None = None,
        *,
        header: bool = True,
        features: Sequence[str | int] | None = None,
        delimiter: str = ",",
        classes: Sequence[str] | None = None,
        regression: bool = False,
        dtype: str = "float32",
        missing: float | None = None,
    ) -> None:
        if (regression or classes is not None) and label is None:
            raise ValueError("regression and classes need labels; pass label= to name the column that holds them")
        if regression and classes is not None:
            raise ValueError("labels are either targets (regression=True) or names (classes=[...])")
        self.name = str(path)
        self.path = Path(path)
        self.layout: CsvLayout = read_layout(
            self.path,
            label,
            header=header,
            features=features,
            delimiter=delimiter,
            dtype=dtype,
            missing=missing,
        )
        self.options = {**self.layout.options, "regression": regression}
        self.layout.warn_of_row_names()
        finder = None if label is None or regression else LabelFinder(classes)
        starts: list[np.ndarray] = []
        self._length = 0
        end = self.layout.begin
        for rows in scan_rows(self.layout):
            starts.append(rows.starts[-self._length % LINES_PER_BLOCK :: LINES_PER_BLOCK] + rows.offset)
            self._length += len(rows.starts)
            end = rows.offset + int(rows.ends[-1])
            if finder is not None:
                texts = rows.labels()
                numbers = range(rows.first_line, rows.first_line + len(texts))
                if QUOTE in rows.text:
                    texts = [unquote(text, f"{path}, line {n}") for text, n in zip(texts, numbers, strict=True)]
                self.layout.add_labels(finder, texts, numbers)
        if not self._length:
            raise ValueError(f"{path} holds no rows")
        # Byte offsets of the blocks of lines, and the end of the last one: int64 of shape `(blocks + 1,)`.
        self._starts = np.concatenate([*starts, [end]])
        self._labels: Labels | None = Targets(dtype) if regression else finder.result() if finder is not None else None
        self.classes = None if self._labels is None else self._labels.classes
        self.path = self.path.absolute()  # before records are read, the working folder may change
        self._file = PositionedFile(self.path)
        self._read_block = _block_reader(self._file, self._starts)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Record:
        check_index(self, index)
        block, position = divmod(int(index), LINES_PER_BLOCK)
        number = self.layout.first_line + index
        features, text = self.layout.parse(self._read_block(block)[position], number)
        if self._labels is None:
            return {"features": features}
        return {"features": features, "label": self.layout.parse_label(self._labels, text, number)}

    def describe(self, index: int) -> str:
        """Return the line of record `index`, for messages."""
        return f"line {self.layout.first_line + index}"

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_read_block"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _read_block=_block_reader(state["_file"], state["_starts"]))

    def _identified(self) -> tuple[list[str], list[Path], list[str] | None]:
        return [self.path.name], [self.path], self.classes

    def __repr__(self) -> str:
        return f"Csv({self.name!r}, {len(self):,} records of {len(self.layout.features)} features)"


def _block_reader(file: PositionedFile, starts: NDArray[np.int64]) -> Callable[[int], list[bytes]]:
    """Return a function that reads the lines of a block, without their ends."""

    @lru_cache(CACHED_BLOCKS)
    def read_block(block: int) -> list[bytes]:
        start, end = starts[block : block + 2].tolist()
        text = file.read(start, end - start)
        # Not splitlines, which also splits at characters that names may contain.
        lines = text.split(b"\n")
        return [line.removesuffix(b"\r") for line in lines] if b"\r" in text else lines

    return read_block
