"""The byte offsets of a CSV file's rows, found in one pass with little memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from etl.sources.csv_layout import QUOTE, UNCLOSED_QUOTE, CsvLayout, check_line_length

# Large enough that the overhead of numpy's calls does not matter, small enough for a CPU's cache and for many jobs.
CHUNK_NBYTES = 2 << 20
_NEWLINE, _CARRIAGE_RETURN = b"\n"[0], b"\r"[0]


@dataclass(frozen=True)
class Rows:
    """A chunk of whole lines.

    Attributes
    ----------
    text : bytes
        The lines.
    offset : int
        Byte offset of `text` in the file.
    first_line : int
        Line number of the first line, counted from 1.
    starts, ends : int64 array of shape (rows,)
        Row i is `text[starts[i]:ends[i]]`, without its line end.
    label_starts, label_ends : int64 array of shape (rows,)
        The label of row i is `text[label_starts[i]:label_ends[i]]`, with its quotes.
    """

    text: bytes
    offset: int
    first_line: int
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    label_starts: NDArray[np.int64]
    label_ends: NDArray[np.int64]

    def lines(self) -> Iterator[bytes]:
        """Yield the lines without their ends."""
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.text[start:end]

    def labels(self) -> list[bytes]:
        """Return the labels of all rows, with their quotes."""
        bounds = zip(self.label_starts.tolist(), self.label_ends.tolist(), strict=True)
        return [self.text[start:end] for start, end in bounds]


def scan_rows(layout: CsvLayout) -> Iterator[Rows]:
    """Yield all rows of the file in chunks, except for empty lines at its end.

    Takes a few times `CHUNK_NBYTES` of memory. Raises `ValueError` that names file and line if a line has more or fewer
    fields than the first, is empty but not at the end of the file, or ends within quotes.
    """
    # Bound by numpy's search for line ends and delimiters.
    offset, number, rest = layout.begin, layout.first_line, b""
    first_empty: int | None = None
    with layout.path.open("rb") as file:
        file.seek(offset)
        while True:
            piece = file.read(CHUNK_NBYTES)
            text = rest + piece
            if not text:
                return
            cut = text.rfind(b"\n") + 1 if piece else len(text)
            text, rest = text[:cut], text[cut:]
            check_line_length(layout.path, number, len(rest))
            if not text:
                continue
            lines = text if text.endswith(b"\n") else text + b"\n"  # the last one may lack its end
            newlines = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
            rows = _find_rows(layout, lines, offset, number, newlines)
            if len(rows.starts) and first_empty is not None:
                raise ValueError(f"{layout.path}, line {first_empty} is empty; only lines at the end may be")
            if len(rows.starts) < len(newlines) and first_empty is None:
                first_empty = number + len(rows.starts)
            if len(rows.starts):
                yield rows
            offset += len(text)
            number += len(newlines)


def _find_rows(layout: CsvLayout, text: bytes, offset: int, first_line: int, newlines: NDArray[np.int64]) -> Rows:
    characters = np.frombuffer(text, np.uint8)
    starts = np.concatenate([[0], newlines[:-1] + 1])
    ends = newlines - (characters[np.maximum(newlines - 1, 0)] == _CARRIAGE_RETURN)
    delimiters = np.flatnonzero(characters == layout.delimiter[0])
    if QUOTE in text:
        quotes = np.flatnonzero(characters == QUOTE[0])
        # A doubled quote closes and opens again, so a character is inside quotes if an odd number of quotes precede it.
        open_lines = np.flatnonzero(np.searchsorted(quotes, newlines) % 2)
        if len(open_lines):
            raise ValueError(f"{layout.path}, line {first_line + open_lines[0]}: {UNCLOSED_QUOTE}")
        delimiters = delimiters[np.searchsorted(quotes, delimiters) % 2 == 0]
    empty = np.flatnonzero(starts == ends)
    if len(empty):
        filled = np.flatnonzero(starts != ends)
        if len(filled) and filled[-1] > empty[0]:
            raise ValueError(f"{layout.path}, line {first_line + empty[0]} is empty; only lines at the end may be")
        starts, ends = starts[: empty[0]], ends[: empty[0]]
    label_starts, label_ends = _find_labels(layout, first_line, starts, ends, delimiters)
    return Rows(text, offset, first_line, starts, ends, label_starts, label_ends)


def _find_labels(
    layout: CsvLayout,
    first_line: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    delimiters: NDArray[np.int64],
) -> tuple[np.ndarray, np.ndarray]:
    """Return the start and the end of each line's label; raise `ValueError` if a line has a wrong number of fields."""
    columns = len(layout.names)
    table = delimiters.reshape(len(starts), columns - 1) if len(delimiters) == len(starts) * (columns - 1) else None
    # If the total is right and each line contains its first and last delimiter, every line has the right number.
    if table is None or (columns > 1 and ((table[:, 0] < starts) | (table[:, -1] >= ends)).any()):
        counts = np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts) + 1
        wrong = np.flatnonzero(counts != columns)[0]
        raise layout.fields_error(int(first_line + wrong), int(counts[wrong]))
    label = layout.label or 0
    return (
        starts if label == 0 else table[:, label - 1] + 1,
        ends if label == columns - 1 else table[:, label],
    )
