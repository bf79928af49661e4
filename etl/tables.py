"""Tables that fit the terminal: columns for which there is no room go into further tables beneath.

Imports nothing else of `etl`: `benchmarks/` loads this file by path, so that it works with every commit of `etl`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

# Width of a pipe or a file: enough for the widest table with long names.
FILE_WIDTH = 250
# Columns of text shrink to this width before a column moves to another table.
TEXT_WIDTH = 30
# Columns of text are never narrower than this.
MIN_TEXT_WIDTH = 8
MIN_BAR_WIDTH, MAX_BAR_WIDTH = 5, 20
# What a column adds to its content: a space on either side and a line. The table has one more line.
FRAME = 3
# Substitutes for characters that the terminal's encoding lacks.
_PLAIN = str.maketrans({"█": "#", "▒": "+", "░": ".", "–": "-", "−": "-", "µ": "u"})  # noqa: RUF001


@dataclass(frozen=True)
class Bar:
    """A bar in a cell of a table, scaled to the width of its column.

    Attributes
    ----------
    parts : sequence of (str, str, float)
        Character, style and length of each part; lengths are shares of the width of the column.
    """

    parts: Sequence[tuple[str, str, float]]

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Return the shortest and the longest width of the bar."""
        return Measurement(MIN_BAR_WIDTH, MAX_BAR_WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw each part from the end of the previous one, so that rounding errors do not add up."""
        bar, start, end = Text(), 0, 0.0
        for character, style, length in self.parts:
            end += max(0.0, length) * options.max_width
            bar.append(encodable(character, console.encoding) * (round(end) - start), style)
            start = round(end)
        yield bar


def output_size() -> tuple[int, int]:
    """Return the columns and lines of standard output; a pipe or a file is `FILE_WIDTH` wide."""
    # Rich assumes that every dumb terminal has 80 columns.
    size = shutil.get_terminal_size()
    return (size.columns if sys.stdout.isatty() else FILE_WIDTH), size.lines


def encodable(text: str, encoding: str) -> str:
    """Return `text` with substitutes for the characters that `encoding` lacks: ASCII for bars, escapes for others."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "backslashreplace").decode(encoding)
    return text


def print_table(table: Table, console: Console, *, keys: int = 1, first: Sequence[str] = ()) -> None:
    """Print `table`, spreading its columns over several tables if the console is too narrow for all.

    Numbers and short texts are never cut or wrapped. Bars shrink, and long texts wrap at words, before a column moves.
    """
    columns = [_measured(column, table.show_header, console) for column in table.columns]
    order = sorted(range(keys, len(columns)), key=lambda index: _rank(table.columns[index], first))
    if table.title is not None:
        console.print(encodable(str(table.title), console.encoding), style="table.title", highlight=False)
    for number, widths in enumerate(_split(columns, keys, order, console.width)):
        # Lines are not cropped: a terminal that is too narrow for a single number wraps them.
        console.print(_part(table, widths, console.encoding), crop=False)
        if number == 0 and table.caption is not None:
            console.print(encodable(str(table.caption), console.encoding), style="table.caption", highlight=False)


def _rank(column: Column, first: Sequence[str]) -> int:
    return first.index(str(column.header)) if column.header in first else len(first)


@dataclass(frozen=True)
class _Width:
    """Widths of the content of a column.

    Attributes
    ----------
    natural : int
        Without wrapping.
    shared : int
        The narrowest to which it shrinks before a column moves to another table.
    whole : int
        The narrowest that breaks no word.
    minimum : int
        The narrowest of all.
    """

    natural: int
    shared: int
    whole: int
    minimum: int


def _measured(column: Column, has_header: bool, console: Console) -> _Width:
    cells = [*([column.header] if has_header else ()), *column.cells]
    measured = [_measure(cell, console) for cell in cells]
    natural = max((each.maximum for each in measured), default=0)
    words = max((each.minimum for each in measured), default=0)
    if any(isinstance(cell, Bar) for cell in cells):
        return _Width(natural, words, words, words)
    if column.justify != "left":
        return _Width(natural, natural, natural, natural)
    natural = min(natural, console.width)
    return _Width(natural, min(natural, TEXT_WIDTH), min(words, TEXT_WIDTH), min(natural, MIN_TEXT_WIDTH))


def _measure(cell: RenderableType, console: Console) -> Measurement:
    if isinstance(cell, str):
        cell = encodable(cell, console.encoding)
    return Measurement.get(console, console.options.update_width(sys.maxsize), cell)


def _split(columns: Sequence[_Width], keys: int, order: Sequence[int], room: int) -> list[dict[int, int]]:
    """Return one dict for each table: the width of each of its columns, by index."""
    names = [each.natural for each in columns[:keys]]
    if _total([*names, *(columns[index].shared for index in order)]) > room:
        # Names wider than half of the console wrap, so that more columns stay in one table.
        names = _shrunk(names, [each.whole for each in columns[:keys]], room // 2)
    named = [_Width(width, width, width, each.minimum) for width, each in zip(names, columns[:keys], strict=True)]
    columns = [*named, *columns[keys:]]
    if not order or _total([each.shared for each in columns]) <= room:  # keys alone wrap
        return [_fitted(columns, range(len(columns)), room)]
    headline = _packed(columns, keys, order, room)[0]
    rest = order[len(headline) :]
    parts = _packed(columns, keys, rest, room)
    for narrower in range(room - 1, 0, -1):  # no more tables than that, but as even in width as possible
        evened = _packed(columns, keys, rest, narrower)
        if len(evened) > len(parts):
            break
        parts = evened
    return [_fitted(columns, sorted([*range(keys), *part]), room) for part in (headline, *parts)]


def _packed(columns: Sequence[_Width], keys: int, order: Sequence[int], room: int) -> list[list[int]]:
    """Return the columns of each table, at least one, without the keys, which are in all tables.

    Only the last column of a table may be narrower than its content.
    """
    parts: list[list[int]] = []
    taken: list[int] = []
    for index in order:
        if not parts or _total([*taken, columns[index].shared]) > room:
            parts.append([])
            taken = [each.natural for each in columns[:keys]]
        parts[-1].append(index)
        taken.append(columns[index].natural)
    return parts


def _fitted(columns: Sequence[_Width], part: Sequence[int], room: int) -> dict[int, int]:
    """Return the widths at which the columns in `part` fit into `room`."""
    widths = _shrunk([columns[index].natural for index in part], [columns[index].shared for index in part], room)
    widths = _shrunk(widths, [columns[index].whole for index in part], room)
    widths = _shrunk(widths, [columns[index].minimum for index in part], room)
    return dict(zip(part, widths, strict=True))


def _shrunk(widths: Sequence[int], minimum: Sequence[int], room: int) -> list[int]:
    """Narrow the widest column that may shrink, repeatedly, until the table fits or no column may shrink."""
    widths = list(widths)
    while _total(widths) > room:
        index = max(range(len(widths)), key=lambda each: (widths[each] > minimum[each], widths[each]), default=None)
        if index is None or widths[index] <= minimum[index]:
            break
        widths[index] -= 1
    return widths


def _total(widths: Sequence[int]) -> int:
    """Return the width of a table whose columns have contents of these widths."""
    return sum(widths) + FRAME * len(widths) + 1


def _part(table: Table, widths: dict[int, int], encoding: str) -> Table:
    """Return a table of the columns of `table` that are in `widths`, which maps indices to widths."""
    part = Table(show_header=table.show_header, width=_total(list(widths.values())))
    for index, width in widths.items():
        column = table.columns[index]
        header = encodable(str(column.header), encoding)
        part.add_column(header, justify=column.justify, style=column.style, overflow="fold", width=width)
    rows = zip(*(table.columns[index].cells for index in widths), strict=True)
    for row, cells in zip(table.rows, rows, strict=True):
        shown = (encodable(cell, encoding) if isinstance(cell, str) else cell for cell in cells)
        part.add_row(*shown, style=row.style)
    return part
