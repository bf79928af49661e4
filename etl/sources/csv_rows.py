"""Where the rows of a CSV file lie, found in one pass with little memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from etl.sources.csv_layout import QUOTE, UNCLOSED_QUOTE, CsvLayout, check_line_length

# Large enough that numpy's calls cost nothing, small enough for the cache of a CPU and for many jobs.
CHUNK_NBYTES = 2 << 20
NEWLINE, CARRIAGE_RETURN = b"\n"[0], b"\r"[0]


@dataclass(frozen=True)
class Rows:
    """Some whole lines: `text`, which lies at byte `offset` of the file and begins with line `first_line`.

    Row i lies in `text[starts[i]:ends[i]]`, without its end; its label, as it is written, in
    `text[label_starts[i]:label_ends[i]]`. All are int64 of shape `(rows,)`.
    """

    text: bytes
    offset: int
    first_line: int
    starts: np.ndarray
    ends: np.ndarray
    label_starts: np.ndarray
    label_ends: np.ndarray

    def lines(self) -> Iterator[bytes]:
        """The lines, without their ends."""
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.text[start:end]

    def labels(self) -> list[bytes]:
        """The labels as they are written, with their quotes."""
        places = zip(self.label_starts.tolist(), self.label_ends.tolist(), strict=True)
        return [self.text[start:end] for start, end in places]


def scan_rows(layout: CsvLayout) -> Iterator[Rows]:
    """All rows of the file, some at a time; empty lines at its end are left out.

    Holds a few times `CHUNK_NBYTES`. Raises `ValueError` that names file and line where a line has not as many fields
    as the first, is empty and not at the end, or ends within quotes.
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
            newlines = np.flatnonzero(np.frombuffer(lines, np.uint8) == NEWLINE)
            rows = _find_rows(layout, lines, offset, number, newlines)
            if len(rows.starts) and first_empty is not None:
                raise ValueError(f"{layout.path}, line {first_empty} is empty; only lines at the end may be")
            if len(rows.starts) < len(newlines) and first_empty is None:
                first_empty = number + len(rows.starts)
            if len(rows.starts):
                yield rows
            offset += len(text)
            number += len(newlines)


def _find_rows(layout: CsvLayout, text: bytes, offset: int, first_line: int, newlines: np.ndarray) -> Rows:
    characters = np.frombuffer(text, np.uint8)
    starts = np.concatenate([[0], newlines[:-1] + 1])
    ends = newlines - (characters[np.maximum(newlines - 1, 0)] == CARRIAGE_RETURN)
    delimiters = np.flatnonzero(characters == layout.delimiter[0])
    if QUOTE in text:
        quotes = np.flatnonzero(characters == QUOTE[0])
        # Twice a quote within quotes opens and closes, so that an odd number of quotes before it is within them.
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
    layout: CsvLayout, first_line: int, starts: np.ndarray, ends: np.ndarray, delimiters: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where the label of each line starts and ends, after each line was found to have as many fields as it should."""
    columns = len(layout.names)
    table = delimiters.reshape(len(starts), columns - 1) if len(delimiters) == len(starts) * (columns - 1) else None
    # With the right number in all, and the first and last of each line within it, each line has the right number.
    if table is None or (columns > 1 and ((table[:, 0] < starts) | (table[:, -1] >= ends)).any()):
        counts = np.searchsorted(delimiters, ends) - np.searchsorted(delimiters, starts) + 1
        wrong = np.flatnonzero(counts != columns)[0]
        raise ValueError(f"{layout.path}, line {first_line + wrong} has {counts[wrong]} fields, not {columns}")
    label = layout.label or 0
    return (
        starts if label == 0 else table[:, label - 1] + 1,
        ends if label == columns - 1 else table[:, label],
    )
