"""The columns of a CSV file: its features, its label, and how a line is parsed."""

from __future__ import annotations

import codecs
import math
import re
import struct
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from etl.arguments import printable
from etl.sources.labels import NUMBER, LabelError, LabelFinder, Labels, is_missing
from etl.sources.record import check_file

# Type codes of struct. Its standard sizes refuse numbers that are too large; its native ones and numpy give infinity.
DTYPES = {"float32": "f", "float64": "d"}
QUOTE = b'"'
UNCLOSED_QUOTE = "a quote is not closed; a field may not go on in the next line"
GZIP_MAGIC = b"\x1f\x8b"
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A longer line is not a line of a CSV file, and would be read into memory as a whole.
MAX_LINE_NBYTES = 64 << 20
MAX_COLUMNS = 1_000_000
OTHER_DELIMITERS = (";", "\t", "|", ",", " ")
# pandas' name for a column without one, in a table that was written again.
ROW_NAMES = re.compile(r"|Unnamed: 0(\.\d+)*")
SEPARATOR_NOTE = re.compile(r"sep=.{0,2}", re.IGNORECASE)


@dataclass(frozen=True)
class CsvLayout:
    """The columns of a CSV file, the place of its first row, and how values are read.

    Attributes
    ----------
    path : Path
        The file.
    names : tuple of str
        Names of all columns.
    features : tuple of int
        Indices of the columns that are features.
    label : int or None
        Index of the column with the label, if there is one.
    begin : int
        Byte at which the first row begins.
    first_line : int
        Line number of the first row, counted from 1.
    delimiter : bytes
        One ASCII character.
    dtype : str
        "float32" or "float64". Values are parsed as float64 and rounded once.
    missing : float or None
        Replacement for missing values (see `is_missing`); None makes them errors.
    row_names : int
        Number of columns at the beginning that have no name, and so are neither features nor label.
    """

    path: Path
    names: tuple[str, ...]
    features: tuple[int, ...]
    label: int | None
    begin: int
    first_line: int
    delimiter: bytes
    dtype: str
    missing: float | None
    row_names: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """Settings that change what is read from the file, as JSON values."""
        return {
            "features": [self.names[column] for column in self.features],
            "label": None if self.label is None else self.names[self.label],
            "first_line": self.first_line,
            "delimiter": self.delimiter.decode(),
            "dtype": self.dtype,
            "missing": None if self.missing is None else str(self.missing),  # JSON has no NaN
        }

    def parse(self, line: bytes, number: int) -> tuple[np.ndarray, bytes]:
        """Return the features and the label in `line`.

        Returns
        -------
        features : array of `dtype`, shape (columns,)
            Read-only.
        label : bytes
            The label as it is written; empty if the layout has none.

        Raises
        ------
        ValueError
            If the number of fields is wrong or a value is not a number. The error names file, line and column.
        """
        fields = self.split(line, number)
        # Bound by Python's float, a fifth of a microsecond a column.
        try:
            values = [float(fields[column]) for column in self.features]
            packed = struct.pack(self._packing, *values)
            is_certain = math.isfinite(sum(values)) and b"_" not in line
        except (ValueError, OverflowError):
            is_certain = False
        if not is_certain:
            values = [self.parse_number(fields[column], number, column) for column in self.features]
            packed = struct.pack(self._packing, *values)
        return np.frombuffer(packed, self._array_dtype), b"" if self.label is None else fields[self.label]

    def split(self, line: bytes, number: int) -> list[bytes]:
        """Return the fields of line `number` without quotes; raise `ValueError` unless there is one for each column."""
        fields = line.split(self.delimiter)
        if QUOTE in line:
            fields = _join_quoted(fields, self.delimiter, f"{self.path}, line {number}")
        if len(fields) != len(self.names):
            raise self.fields_error(number, len(fields))
        return fields

    def parse_number(self, field: bytes, number: int, column: int) -> float:
        """Return the number in `field`, or `missing` if it is missing (see `is_missing`).

        Raises `ValueError` that names file, line and column if `field` is not a number that `dtype` holds.
        """
        text = field.decode(errors="replace")
        value: float | None
        try:
            value = math.nan if is_missing(field) else float(field)
        except ValueError:
            value = None
        if value is None or b"_" in field:
            hint = _delimiter_hint(self.names)
            if b"," in field and not hint:
                hint = "; write decimals with a point, and thousands without a separator"
            raise self.error(number, column, f"{text!r} is not a number{hint}")
        if math.isnan(value):
            if self.missing is None:
                shown = f" ({text!r})" if text.strip() else ""
                raise self.error(number, column, f"the value is missing{shown}; pass missing=VALUE, or remove the line")
            return self.missing
        try:
            struct.pack(f"={DTYPES[self.dtype]}", value)
        except OverflowError:
            value = math.inf
        if math.isinf(value) and NUMBER.fullmatch(field):
            raise self.error(number, column, f"{text} is too large for {self.dtype}")
        return value

    def parse_label(self, labels: Labels, text: bytes, number: int) -> Any:
        """Return the label in `text`, of line `number`; raise `ValueError` that names file, line and column."""
        try:
            return labels.value(text)
        except ValueError as error:
            raise self.label_error(number, str(error)) from None

    def add_labels(self, finder: LabelFinder, texts: Sequence[bytes], numbers: Sequence[int]) -> None:
        """Add the labels of the lines `numbers` to `finder`; raise `ValueError` that names the first invalid one."""
        try:
            finder.add(texts)
        except LabelError as error:
            raise self.label_error(numbers[error.position], error.cause) from None

    @cached_property
    def _packing(self) -> str:
        return f"={len(self.features)}{DTYPES[self.dtype]}"

    @cached_property
    def _array_dtype(self) -> np.dtype:
        return np.dtype(self.dtype)

    def fields_error(self, number: int, found: int) -> ValueError:
        """Return the error for line `number`, which has `found` fields."""
        hint = _delimiter_hint(self.names)
        if self.names[0].startswith("#"):
            hint = "; line 1 begins with '#': comments are not read, remove them"
        elif found > len(self.names) and not hint:
            hint = f"; put values that hold {self.delimiter.decode()!r} in quotes"
            if number == self.first_line and found == len(self.names) + 1:
                hint += ", and if this table is of R's write.table, write it again with row.names=FALSE"
        return ValueError(f"{self.path}, line {number} has {found} fields, not {len(self.names)}{hint}")

    def warn_of_row_names(self) -> None:
        """Warn if columns without a name are left out. The warning points at the caller of the source's constructor."""
        if self.row_names:
            columns = "column has" if self.row_names == 1 else f"{self.row_names} columns have"
            warnings.warn(
                printable(
                    f"{self.path}: the first {columns} no name in line 1, like row names of R and pandas, and no part "
                    "in the features; for data, write a name, or choose the columns with features=[0, ...]"
                ),
                UserWarning,
                stacklevel=3,
            )

    def error(self, number: int, column: int, cause: str) -> ValueError:
        """Return the error for a value."""
        return ValueError(f"{self.path}, line {number}, column {self.names[column]!r}: {cause}")

    def label_error(self, number: int, cause: str) -> ValueError:
        """Return the error for the label in line `number`."""
        return self.error(number, self.label or 0, cause)


def read_layout(
    path: Path,
    label: str | int | None,
    *,
    header: bool = True,
    features: Sequence[str | int] | None,
    delimiter: str = ",",
    dtype: str,
    missing: float | None = None,
) -> CsvLayout:
    """Read the layout of a CSV file from its first line; for the arguments see `Csv`.

    Raises `ValueError` if an argument or the first line is invalid.
    """
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise ValueError(f"delimiter must be one ASCII character, and not a quote or a line end, not {delimiter!r}")
    if dtype not in DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
    mark_nbytes, line = read_first_line(path)
    if line.count(delimiter.encode()) >= MAX_COLUMNS:
        raise ValueError(f"{path}, line 1 has more than {MAX_COLUMNS:,} columns; is this a CSV file?")
    fields = _join_quoted(line.rstrip(b"\r\n").split(delimiter.encode()), delimiter.encode(), f"{path}, line 1")
    try:
        names = tuple(field.decode().strip() if header else str(column) for column, field in enumerate(fields))
    except UnicodeDecodeError:
        raise ValueError(f"{path}, line 1 is not UTF-8 text; convert the file") from None
    if header and SEPARATOR_NOTE.fullmatch(names[0]):
        raise ValueError(
            f"{path}, line 1 is a spreadsheet's note on the separator, {line.decode().strip()!r}: remove the line, and "
            "pass delimiter= (--delimiter) if it is not a comma"
        )
    label_column = None if label is None else _find_columns(path, names, [label])[0]
    row_names = 0
    if features is None:
        named = [column for column, name in enumerate(names) if column == label_column or not ROW_NAMES.fullmatch(name)]
        row_names = named[0] if header and named else 0
        chosen = tuple(column for column in range(row_names, len(names)) if column != label_column)
    else:
        chosen = _find_columns(path, names, features)
    if not chosen:
        raise ValueError(f"{path} has no columns for features; it has {_quoted(names)}{_delimiter_hint(names)}")
    is_named = any(isinstance(column, str) for column in (label, *(() if features is None else features)))
    if header and not is_named and not row_names and all(NUMBER.fullmatch(fields[column]) for column in chosen):
        raise ValueError(
            f"{path}, line 1 holds numbers: pass header=False if it is the first row; if they are the names of "
            "columns, choose label or features by name"
        )
    if label_column is not None and label_column in chosen:
        raise ValueError(f"{path}: column {names[label_column]!r} cannot be the label and a feature")
    return CsvLayout(
        path=path,
        names=names,
        features=chosen,
        label=label_column,
        begin=mark_nbytes + len(line) * header,
        first_line=1 + header,
        delimiter=delimiter.encode(),
        dtype=dtype,
        missing=missing,
        row_names=row_names,
    )


def read_first_line(path: Path) -> tuple[int, bytes]:
    """Return the size of the byte order mark of a CSV file, and its first line with its end."""
    check_file(path)
    with path.open("rb") as file:
        start = file.read(len(codecs.BOM_UTF8))
        if start.startswith(GZIP_MAGIC):
            raise ValueError(f"{path} is a gzip file, whose rows cannot be reached at random; unpack it first")
        if start.startswith(UTF16_MARKS):
            raise ValueError(f"{path} is UTF-16 text; convert it to UTF-8")
        mark_nbytes = len(start) if start == codecs.BOM_UTF8 else 0
        file.seek(mark_nbytes)
        line = file.readline(MAX_LINE_NBYTES + 1)
    if not line.strip(b"\r\n"):
        raise ValueError(f"{path}, line 1 is empty" if line else f"{path} is empty")
    check_line_length(path, 1, len(line))
    if b"\r" in line.rstrip(b"\r\n"):
        raise ValueError(f"{path}, line 1 holds a carriage return; lines end in LF or CR LF, convert the file")
    return mark_nbytes, line


def check_line_length(path: Path, number: int, nbytes: int) -> None:
    """Raise `ValueError` if a line is too long."""
    if nbytes > MAX_LINE_NBYTES:
        raise ValueError(f"{path}, line {number} is longer than {MAX_LINE_NBYTES >> 20} MiB; is this a CSV file?")


def _find_columns(path: Path, names: Sequence[str], columns: Sequence[str | int]) -> tuple[int, ...]:
    """Return the indices of `columns`; raise `ValueError` unless there is one of each name or index."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    found = []
    for column in columns:
        if isinstance(column, str):
            named = places.get(column.strip(), [])
            if len(named) != 1:
                count = "more than one" if named else "no"
                raise ValueError(
                    f"{path} has {count} column {column.strip()!r}; it has {_quoted(names)}{_delimiter_hint(names)}"
                )
            found.append(named[0])
        elif -len(names) <= column < len(names):
            found.append(column % len(names))
        else:
            raise ValueError(
                f"{path} has no column {column}; it has {len(names)}: {_quoted(names)}{_delimiter_hint(names)}"
            )
    return tuple(found)


def _quoted(names: Sequence[str]) -> str:
    """Return `names` for a message, in quotes unless they are plain words: blanks and delimiters would be invisible."""
    return ", ".join(name if name.isidentifier() or name.isdecimal() else repr(name) for name in names)


def _delimiter_hint(names: Sequence[str]) -> str:
    """Return advice on the delimiter if the only name of a column holds another one."""
    found = [each for each in OTHER_DELIMITERS if each in names[0]] if len(names) == 1 else []
    return f"; if {found[0]!r} separates the columns, pass delimiter={found[0]!r} (--delimiter)" if found else ""


def _join_quoted(pieces: Sequence[bytes], delimiter: bytes, location: str) -> list[bytes]:
    """Return the fields, without quotes, of a line that was split at every delimiter, even within quotes.

    `location` is named in errors.
    """
    fields: list[bytes] = []
    parts: list[bytes] = []
    is_open = False
    for piece in pieces:
        parts.append(piece)
        is_open ^= piece.count(QUOTE) % 2 == 1
        if not is_open:
            fields.append(unquote(delimiter.join(parts), location))
            parts.clear()
    if is_open:
        raise ValueError(f"{location}: {UNCLOSED_QUOTE}")
    return fields


def unquote(field: bytes, location: str) -> bytes:
    """Return `field` without the quotes of RFC 4180; raise `ValueError` that names `location` for a quote inside it."""
    if QUOTE not in field:
        return field
    field = field.strip(b" \t")
    inner = field[1:-1]
    is_quoted = len(field) > 1 and field.startswith(QUOTE) and field.endswith(QUOTE)
    if not is_quoted or QUOTE in inner.replace(QUOTE * 2, b""):
        text = field.decode(errors="replace")
        raise ValueError(f"{location}: a quote within {text!r}; write it twice and put the field in quotes")
    return inner.replace(QUOTE * 2, QUOTE)
