"""A table of numbers in a CSV file, a record a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from etl.sources.csv_labels import LabelError, LabelFinder, Labels, Targets
from etl.sources.csv_layout import QUOTE, CsvLayout, read_layout, unquote
from etl.sources.csv_rows import Rows, scan_rows
from etl.sources.positioned_file import PositionedFile
from etl.sources.record import Record

# The index keeps where every sixteenth line begins: half a byte a record, and a read of a kilobyte or two.
LINES_A_BLOCK = 16
# One for each thread that reads on from where it was.
BLOCKS_KEPT = 32


class Csv:
    """The rows of a CSV file, quoted as RFC 4180 says, in UTF-8.

    A record has `features`, of shape `(columns,)` and `dtype` (float32, or float64), and with a `label` column `label`.
    Columns are called by their names in the first line, or by number from 0, from the end if negative; `header=False`
    where the first line is a row. `features` are the columns to take, by default all but the label.

    Labels are those of classes unless `regression=True` makes them targets of `dtype`. If the first label is a whole
    number, all must be, and are int64 as they are. Otherwise they are names: `classes` are the sorted ones and labels
    their numbers; pass `classes=` for an order of your own, or to give a test set the numbers of the training set.

    Values are parsed as float64 and rounded once. An empty or NaN value is an error, or replaced with `missing`. Rows
    are read when asked for. Opening takes one pass, which checks the number of fields and the labels of classes, and
    keeps half a byte a record; so cheap that the index is not kept on disk. May be pickled, forked and used by several
    threads; the copies read their file again, so it must not change.

    Raises `ValueError` that names file, line and column where a line is not as described: when opened for labels,
    quotes that are not closed in their line and wrong numbers of fields, and otherwise when the record is read.
    """

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
            raise ValueError("regression and classes are about labels; pass label= to say which column holds them")
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
        finder = None if label is None or regression else LabelFinder(classes)
        starts: list[np.ndarray] = []
        self._length = 0
        end = self.layout.begin
        for rows in scan_rows(self.layout):
            starts.append(rows.starts[-self._length % LINES_A_BLOCK :: LINES_A_BLOCK] + rows.offset)
            self._length += len(rows.starts)
            end = rows.offset + int(rows.ends[-1])
            if finder is not None:
                _look_at_labels(finder, rows, self.layout)
        if not self._length:
            raise ValueError(f"{path} holds no rows")
        # Where blocks of lines begin, and where the last one ends: int64 of shape `(blocks + 1,)`.
        self._starts = np.concatenate([*starts, [end]])
        self._labels: Labels | None = Targets(dtype) if regression else finder.found() if finder is not None else None
        self.classes = None if self._labels is None else self._labels.classes
        self._file = PositionedFile(self.path)
        self._read_block = _block_reader(self._file, self._starts)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Record:
        """Record `index`. Raises `ValueError` that names file, line and column."""
        if not 0 <= index < self._length:
            raise IndexError(f"record {index} of {self.name}, which holds {self._length}")
        block, position = divmod(int(index), LINES_A_BLOCK)
        number = self.layout.first_line + index
        features, text = self.layout.parse(self._read_block(block)[position], number)
        if self._labels is None:
            return {"features": features}
        try:
            return {"features": features, "label": self._labels.value(text)}
        except ValueError as error:
            raise self.layout.error(number, self.layout.label or 0, str(error)) from None

    def describe(self, index: int) -> str:
        """Where record `index` is written, for messages."""
        return f"line {self.layout.first_line + index}"

    def close(self) -> None:
        """Give the file back; the next read opens it again."""
        self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_read_block"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _read_block=_block_reader(state["_file"], state["_starts"]))

    def __repr__(self) -> str:
        return f"Csv({self.name!r}, {len(self):,} records of {len(self.layout.features)} features)"


def _block_reader(file: PositionedFile, starts: np.ndarray) -> Callable[[int], list[bytes]]:
    """A function that gives the lines of a block, without their ends."""

    @lru_cache(BLOCKS_KEPT)
    def read_block(block: int) -> list[bytes]:
        start, end = starts[block : block + 2].tolist()
        text = file.read(start, end - start)
        # Not splitlines, which splits at what names may hold.
        lines = text.split(b"\n")
        return [line.removesuffix(b"\r") for line in lines] if b"\r" in text else lines

    return read_block


def _look_at_labels(finder: LabelFinder, rows: Rows, layout: CsvLayout) -> None:
    texts = rows.labels()
    if QUOTE in rows.text:
        texts = [unquote(text, f"{layout.path}, line {rows.first_line + row}") for row, text in enumerate(texts)]
    try:
        finder.see(texts)
    except LabelError as error:
        raise layout.error(rows.first_line + error.position, layout.label or 0, error.cause) from None
