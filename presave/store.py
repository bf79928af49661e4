"""Open stores: read single records, or gather many at once into the caller's buffers."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from presave.errors import StoreError
from presave.manifest import Manifest
from presave.manifest_file import load_manifest, manifest_stamp
from presave.open_shards import OpenShards
from presave.ragged import Ranges, ShardValues, find_ranges, gather_values, view_values
from presave.resources import available_nbytes
from presave.schema import Field, Schema
from presave.shard_formats import find_format
from presave.thread_safety import chosen_from
from presave.verification import verify as list_faults

UINT64 = np.dtype(np.uint64)

# By field name: an array of shape `(records, *shape)`, or for a ragged field a list with an array for each record.
Arrays = dict[str, Any]


def open_store(
    path: str | Path,
    cache: Literal["ram"] | None = None,
    *,
    trusted: bool = False,
    verify: bool = False,
    memory_budget: int | None = None,
) -> Store:
    """Open a store for reading.

    Parameters
    ----------
    path : str or Path
        The store's folder.
    cache : "ram", optional
        Read the whole store into memory first. By default its files are memory-mapped if the format allows it.
    trusted : bool
        Also read the format "pickle", which can run code from its files, and files that are links. Pass True only if
        you would let the store's author run code on this machine.
    verify : bool
        Compare every byte with the checksums in the manifest first.
    memory_budget : int, optional
        Maximum size of the store in bytes with `cache="ram"`; by default the memory that is free,
        within the limits of the container and of the process.

    Returns
    -------
    Store
        The open store. Use it as a context manager, or close it.

    Raises
    ------
    StoreError
        If there is no complete store at `path`, or it is damaged or not trusted.
    MemoryError
        With `cache="ram"`, if the store is larger than `memory_budget`.

    Examples
    --------
    >>> with presave.open_store("photos.store") as store:
    ...     record = store[0]
    ...     batch = store.gather([3, 1, 2])
    """
    store = Store(Path(path), trusted=trusted)
    if verify:
        faults = list_faults(path, trusted=trusted)
        if faults:
            raise StoreError(f"{path} has {len(faults)} faults: {'; '.join(faults[:3])}{'; ...' * (len(faults) > 3)}")
    if cache == "ram":
        store.preload(memory_budget)
    elif cache is not None:
        raise StoreError(f"cache must be None or 'ram', not {cache!r}")
    elif memory_budget is not None:
        raise StoreError("memory_budget is for cache='ram'; with cache=None the store is not held in memory")
    return store


class Store(Sequence[Arrays]):
    """A presaved data set, open for reading.

    A sequence of records: `len(store)`, `store[index]` and iteration. Open one with `open_store`.

    Parameters
    ----------
    path : Path
        The store's folder.
    trusted : bool
        As in `open_store`.

    Attributes
    ----------
    path : Path
        The store's folder.
    manifest : Manifest
        The description of its content.

    Notes
    -----
    Several threads may read from a store at once. A link to the store may lead to another one meanwhile: it is followed
    once. If a store is removed and written again meanwhile, opening its next shard is an error. Pickling a store saves
    its absolute path, without links, not its records: the unpickled store opens the files again, and names that path in
    errors. A store can be used after a fork, but if another thread reads from it during the fork, open it again in the
    child.

    Examples
    --------
    >>> store = presave.write("numbers.store", [{"x": i, "square": i * i} for i in range(100)])
    >>> len(store)
    100
    >>> store.gather([3, 1, 2])["square"]
    array([9, 1, 4])
    """

    thread_safe = True

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        stamp = manifest_stamp(path)
        self.manifest: Manifest = load_manifest(path)
        # Before shards are opened, the working folder may change, and a link to the store may lead to another one.
        self._place = path.resolve()
        try:
            self._format = find_format(self.manifest.format)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        if self._format.is_trusted_only and not trusted:
            raise StoreError(
                f"{path} has format {self._format.name!r}: reading it runs any code that its author put into it. "
                "Pass trusted=True if you trust the author"
            )
        self._trusted = trusted
        self._fields = self.manifest.schema
        self._shards = OpenShards(self._place, self.manifest, self._format, trusted, stamp)
        self._length = int(self._shards.first_records[-1])
        self._memory_budget: int | None = None
        self._is_preloaded = False

    def __len__(self) -> int:
        return self._length

    @property
    def fields(self) -> Schema:
        """The fields of a record by name, with dtype and shape."""
        return self._fields

    @property
    def identity(self) -> dict[str, str]:
        """The content of the store as it is read now, which identifies records that are written from it."""
        manifest = self.manifest if self._is_preloaded else load_manifest(self._place)
        return {"the content of the store": manifest.content}

    @property
    def nbytes(self) -> int:
        """Size of the store's data files on disk, in bytes."""
        return self.manifest.nbytes

    @property
    def reads_whole_shards(self) -> bool:
        """True if reading one record reads its whole shard. Only the shard that was read last is kept in memory."""
        return self._format.reads_whole_shards and not self._is_preloaded

    @property
    def is_mapped(self) -> bool:
        """True if rows are copied straight out of mapped files or memory.

        Then gathering a batch in parts costs no more than gathering it at once.
        """
        return self._is_preloaded or not (self._format.reads_whole_shards or self.manifest.options.get("compression"))

    def __getitem__(self, index: Any) -> Any:
        """Return a record as new arrays by field name. Negative indices count from the end; slices are refused."""
        if isinstance(index, slice):
            raise TypeError("a store has no slices; use gather(range(...)) or view(first, last)")
        index = operator.index(index)
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"record {index} of {self.path}, which holds {len(self)}")
        return {name: values[0] for name, values in self.gather([position]).items()}

    def __iter__(self) -> Iterator[Arrays]:
        for index in range(len(self)):
            yield self[index]

    def gather(
        self, indices: Sequence[int] | NDArray[np.integer] | range, out: Mapping[str, np.ndarray | None] | None = None
    ) -> Arrays:
        """Read records into arrays, one for each field.

        Parameters
        ----------
        indices : sequence, range or array of int, shape (records,)
            Records to read, in this order; repetitions are allowed.
        out : mapping of str to array or None, optional
            Fields to read, and where to write them; by default all fields into new arrays. For a fixed field an array
            of shape `(records, *field shape)` and the field's dtype. For a ragged field an array with one axis and room
            for all elements, see `elements`. None asks for a new array.

        Returns
        -------
        dict of str to array or list of array
            The arrays in `out` or new ones. For a ragged field a list with an array for each record; all of them are
            views of one buffer.

        Raises
        ------
        IndexError
            If a record does not exist.
        StoreError
            If `out` names an unknown field or an array that does not fit, a file is damaged, or the store is closed.
        MemoryError
            If there is no memory for new arrays.
        TypeError
            If `indices` are not integers. Boolean masks are not supported.
        """
        indices = self._check_indices(indices)
        wanted = dict.fromkeys(self._fields) if out is None else out
        self._check_out(wanted, len(indices))
        self._shards.check_open()
        arrays: Arrays = {}
        fixed: list[tuple[str, np.ndarray]] = []
        ragged: list[str] = []
        for name, array in wanted.items():
            field = self._fields[name]
            if field.is_ragged:
                ragged.append(name)
                continue
            arrays[name] = field.empty(len(indices)) if array is None else array
            column, array = field.safe_name, arrays[name]
            if self.reads_whole_shards or not self._shards.copy_rows(column, indices, array):
                fixed.append((column, array))
        spread = list(self._shards.split(indices)) if fixed or ragged else []
        # Shards are the outer loop, so that formats that read whole shards read each once for all fields.
        for shard, rows, slots in spread if fixed else ():
            columns = self._shards.columns(shard)
            for column, array in fixed:
                columns[column].gather(rows, array, slots)
        for name in ragged:
            field = self._fields[name]
            parts = [
                ShardValues(self._shards.columns(shard)[field.safe_name], self._find_ranges(field, shard, rows), slots)
                for shard, rows, slots in spread
            ]
            arrays[name] = gather_values(field, parts, len(indices), wanted[name])
        return {name: arrays[name] for name in wanted}

    def view(self, first: int, last: int) -> Arrays:
        """Return records `first` up to `last` as read-only arrays, without a copy if possible.

        They are views if the records are in one shard and the format is memory-mapped, otherwise copies. Raises
        `IndexError` unless `0 <= first <= last <= len(store)`.
        """
        if not 0 <= first <= last <= len(self):
            raise IndexError(f"records {first} to {last} of {self.path}, which holds {len(self)}")
        shard = int(np.searchsorted(self._shards.first_records, first, side="right")) - 1
        if first == last or last > self._shards.first_records[shard + 1]:
            arrays = self.gather(range(first, last))
            for values in arrays.values():
                for array in values if isinstance(values, list) else [values]:
                    array.flags.writeable = False
            return arrays
        columns = self._shards.columns(shard)
        low, high = (int(index - self._shards.first_records[shard]) for index in (first, last))
        return {
            name: view_values(columns[field.safe_name], self._find_ranges(field, shard, np.arange(low, high)))
            if field.is_ragged
            else columns[field.safe_name].view(low, high)
            for name, field in self._fields.items()
        }

    def rows_by_shard(
        self, field: str, indices: Sequence[int] | NDArray[np.integer] | range
    ) -> Iterator[tuple[np.ndarray, NDArray[np.int64], NDArray[np.int64]]]:
        """Yield the arrays that hold records of a fixed field, for loops that do more than copy.

        Copying with `out[slots] = array[rows]` for each yielded triple gives the same as `gather`.

        Parameters
        ----------
        field : str
            A field that is not ragged.
        indices : sequence, range or array of int, shape (records,)
            Records to read.

        Yields
        ------
        array : array of shape (any number of rows, then that of the field)
            Read-only and C-contiguous. If the format is memory-mapped, it is the whole shard, not copied; otherwise it
            may hold only the rows that are needed.
        rows : int64 array
            Rows of `array`.
        slots : int64 array
            Positions of these rows in `indices`.

        Raises
        ------
        StoreError
            If the field does not exist or is ragged. Other errors are those of `gather`.
        """
        column = self._fixed_field(field).safe_name
        return (
            (
                *self._shards.columns(shard)[column].locate(rows),
                np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots,
            )
            for shard, rows, slots in self._shards.split(self._check_indices(indices))
        )

    def row_addresses(
        self, field: str, indices: Sequence[int] | NDArray[np.integer] | range
    ) -> tuple[np.ndarray, object] | None:
        """Return where records of a fixed field lie in memory, for compiled loops that do more than copy.

        Parameters
        ----------
        field, indices
            As for `rows_by_shard`.

        Returns
        -------
        addresses : int64 array of shape (records,)
            Addresses of rows, each C-contiguous. Do not write to them.
        owner : object
            Keeps the rows in memory. Refer to it until they are read.

        None is returned instead if rows are not mapped, or numba is not installed or not loaded yet: use
        `rows_by_shard`.

        Raises
        ------
        StoreError
            As for `rows_by_shard`.
        """
        described = self._fixed_field(field)
        checked = self._check_indices(indices)
        nbytes = described.numpy_dtype.itemsize * math.prod(described.sizes)
        return self._shards.find_rows(described.safe_name, checked, nbytes) if self.is_mapped else None

    def elements(self, indices: Sequence[int] | NDArray[np.integer] | range) -> dict[str, int]:
        """Return, for each ragged field, how many elements these records have in all: the room that `gather` needs."""
        spread = list(self._shards.split(self._check_indices(indices)))
        return {
            name: sum(self._find_ranges(field, shard, rows).elements for shard, rows, _ in spread)
            for name, field in self._fields.items()
            if field.is_ragged
        }

    def shapes(self, field: str, indices: Sequence[int] | NDArray[np.integer] | range) -> NDArray[np.int64]:
        """Return the shape of each record's value of `field`, as int64 of shape `(len(indices), axes)`.

        If the format is memory-mapped, this reads little: 16 bytes a record for a ragged field with one axis, 8 more
        for each axis if there are several, and nothing for a fixed field. Raises `StoreError` if the field does not
        exist. Other errors are those of `gather`.
        """
        described = self._fields.get(field)
        if described is None:
            raise StoreError(f"{self.path} has no field {field!r}; it has {', '.join(self._fields)}")
        self._shards.check_open()
        indices = self._check_indices(indices)
        shapes = np.empty((len(indices), len(described.shape)), np.int64)
        if not described.is_ragged:
            shapes[:] = described.sizes
            return shapes
        for shard, rows, slots in self._shards.split(indices):
            shapes[slots] = self._find_ranges(described, shard, rows).shapes
        return shapes

    def preload(self, memory_budget: int | None = None) -> None:
        """Read the whole store into memory. Later gathers copy from there.

        Raises `MemoryError` if it needs more than `memory_budget` bytes (by default what is free, within
        the limits of the container and of the process).
        """
        specs = [self._shards.column_specs(shard) for shard in range(len(self.manifest.shards))]
        needed = sum(column.nbytes for columns in specs for column in columns)
        allowed = available_nbytes() if memory_budget is None else memory_budget
        if needed > allowed:
            limit = "are free" if memory_budget is None else "are its memory_budget"
            raise MemoryError(
                f"{self.path} needs {needed:,} bytes for cache='ram' and {allowed:,} bytes {limit}; "
                "use cache=None, which maps the files"
            )
        for shard, columns in enumerate(specs):
            readers = self._shards.columns(shard)
            arrays = {column.name: _in_memory(readers[column.name].view(0, column.rows)) for column in columns}
            self._shards.replace(shard, arrays)
        self._memory_budget, self._is_preloaded = memory_budget, True

    def close(self) -> None:
        """Close all files. Closing twice does nothing; reading afterwards raises `StoreError`."""
        self._shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        reopen = partial(open_store, trusted=self._trusted, memory_budget=self._memory_budget)
        # A worker may have another working folder.
        return reopen, (self._place, "ram" if self._is_preloaded else None)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name} {field}" for field in self._fields.values())
        return f"Store({str(self.path)!r}, {self.manifest.format}, {len(self):,} records: {fields})"

    def _fixed_field(self, name: str) -> Field:
        self._shards.check_open()
        field = self._fields.get(name)
        if field is None or field.is_ragged:
            fixed = [name for name, each in self._fields.items() if not each.is_ragged]
            raise StoreError(f"{self.path} has no fixed field {name!r}; it has {', '.join(fixed) or 'none'}")
        return field

    def _check_indices(self, indices: Sequence[int] | NDArray[np.integer] | range) -> NDArray[np.int64]:
        """Return `indices` as an int64 array; raise if they are not integers or a record does not exist."""
        checked = np.asarray(indices)
        if checked.ndim != 1 or (checked.size and checked.dtype.kind not in "iu"):
            raise TypeError(
                f"indices must be integers with one axis, not {checked.dtype} of shape {checked.shape}; "
                "for a boolean mask, pass np.flatnonzero(mask)"
            )
        checked = checked.astype(np.int64, copy=False)
        # Read as unsigned, a negative index is larger than any valid one. So one pass finds both kinds of error.
        if checked.size and np.maximum.reduce(checked.view(UINT64)) >= self._length:
            wrong = checked[(checked < 0) | (checked >= len(self))][0]
            raise IndexError(f"record {wrong} of {self.path}, which holds {len(self)}")
        return checked

    def _check_out(self, out: Mapping[str, np.ndarray | None], records: int) -> None:
        for name, array in out.items():
            if name not in self._fields:
                raise StoreError(f"{self.path} has no field {name!r}; it has {', '.join(self._fields)}")
            if array is None:
                continue
            field = self._fields[name]
            shape = (len(array) if array.ndim else 0,) if field.is_ragged else (records, *field.sizes)
            if array.shape != shape or array.dtype != field.numpy_dtype:
                needed = "a single axis" if field.is_ragged else f"shape {shape}"
                raise StoreError(
                    f"out[{name!r}] is {array.dtype} of shape {array.shape}; {self.path} needs "
                    f"{field.numpy_dtype} of {needed}"
                )
            if not array.flags.writeable:
                raise StoreError(f"out[{name!r}] is read-only; {self.path} writes into it")

    def _find_ranges(self, field: Field, shard: int, rows: np.ndarray) -> Ranges:
        elements = self.manifest.shards[shard].elements[field.name]
        return find_ranges(field, self._shards.columns(shard), rows, elements, f"{self.path}, shard {shard}")


def ragged_of(records: Any) -> Collection[str]:
    """Return the names of the fields whose shape differs: of a store as it holds them, of others their `ragged`.

    Those of a `Subset` of torch are those of what it chooses from.
    """
    chosen = chosen_from(records)
    if isinstance(chosen, Store):
        return [name for name, field in chosen.fields.items() if field.is_ragged]
    names: Collection[str] = getattr(chosen, "ragged", ())
    return names


def _in_memory(array: np.ndarray) -> np.ndarray:
    """Return `array`, or a copy unless the memory that it views is its own: that of a file or of another library."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return array if owner.flags.owndata else np.array(array)
