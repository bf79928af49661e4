"""A store, open for reading: random access to records, and gathers of many into a caller's buffers."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psutil

from presave.errors import StoreError
from presave.formats import find_format
from presave.manifest import Manifest, load_manifest
from presave.open_shards import OpenShards
from presave.ragged import Ranges, find_ranges, gather_values, view_values
from presave.schema import Field, Schema
from presave.verify import verify as find_faults

if TYPE_CHECKING:
    from typing_extensions import Self

UINT64 = np.dtype(np.uint64)

# For a fixed field an array of shape `(records, *shape)`, for a ragged one a list with an array for each record.
Arrays = dict[str, Any]


def open_store(
    path: str | Path,
    cache: Literal["ram"] | None = None,
    *,
    trusted: bool = False,
    verify: bool = False,
    memory_budget: int | None = None,
) -> Store:
    """Open the store at `path`.

    `cache="ram"` reads all of it into memory first, which must fit into `memory_budget` bytes (by default what is
    free). `verify=True` compares every byte with the manifest first. `trusted=True` opens formats that can run code
    when they are read ("pickle"), and files that are links: only for stores that come from somebody who may run code
    here.

    Raises `StoreError` where there is no whole store, it is damaged or not trusted, and `MemoryError` where it does not
    fit.
    """
    store = Store(Path(path), trusted=trusted)
    if verify:
        faults = find_faults(path, trusted=trusted)
        if faults:
            raise StoreError(f"{path} has {len(faults)} faults: {'; '.join(faults[:3])}{'; ...' * (len(faults) > 3)}")
    if cache == "ram":
        store.preload(memory_budget)
    elif cache is not None:
        raise StoreError(f"cache must be None or 'ram', not {cache!r}")
    elif memory_budget is not None:
        raise StoreError("memory_budget is for cache='ram'; without it nothing is held in memory")
    return store


class Store(Sequence[Arrays]):
    """A presaved data set. May be pickled, forked and used by several threads: files are opened where they are read.

    A process that forks while another thread reads must not touch the store in the child; open it there instead.
    """

    def __init__(self, path: Path, *, trusted: bool = False) -> None:
        self.path = path
        self.manifest: Manifest = load_manifest(path)
        try:
            self._format = find_format(self.manifest.format)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        if self._format.is_trusted_only and not trusted:
            raise StoreError(
                f"{path} is of format {self._format.name!r}: reading it runs whatever code somebody put into it. "
                "Pass trusted=True if it comes from somebody you would let do that, or convert it"
            )
        self._trusted = trusted
        self._fields = self.manifest.schema
        self._shards = OpenShards(path, self.manifest, self._format, trusted)
        self._length = int(self._shards.first_records[-1])
        self._memory_budget: int | None = None
        self._is_preloaded = False

    def __len__(self) -> int:
        return self._length

    @property
    def fields(self) -> Schema:
        """The fields of a record: name to `Field` with dtype and shape."""
        return self._fields

    @property
    def nbytes(self) -> int:
        """Bytes of the store's data files on disk."""
        return self.manifest.nbytes

    @property
    def reads_whole_shards(self) -> bool:
        """Whether a shard is read whole each time that something of it is wanted, so that two reads cost twice."""
        return self._format.reads_whole_shards and not self._is_preloaded

    @property
    def is_mapped(self) -> bool:
        """Whether rows are copied straight out of mapped files or memory, so that parts of a batch cost no more than
        the whole of it.
        """
        return self._is_preloaded or not (self._format.reads_whole_shards or self.manifest.options.get("compression"))

    def __getitem__(self, index: Any) -> Any:
        """Record `index`: a new array for each field. Negative numbers count from the end; slices are refused."""
        if isinstance(index, slice):
            raise TypeError("a store has no slices; use gather(range(...)) or view(first, last)")
        index = operator.index(index)
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"record {index} of {self.path}, which holds {len(self)}")
        return {name: values[0] for name, values in self.gather([number]).items()}

    def __iter__(self) -> Iterator[Arrays]:
        for number in range(len(self)):
            yield self[number]

    def gather(
        self, indices: Sequence[int] | np.ndarray | range, out: Mapping[str, np.ndarray | None] | None = None
    ) -> Arrays:
        """The records `indices`, in that order: for each field an array of shape `(len(indices), *field shape)`, for a
        ragged field a list of arrays, which lie one after another in one buffer.

        `out` maps field names to arrays of that shape and the field's dtype, which are written and returned; for a
        ragged field to one of a single axis with room for all elements (`elements(indices)`). None asks for a new
        array, and fields that it leaves out are not read. Raises `IndexError` for a record that is not there,
        `StoreError` for an `out` that does not fit or a damaged file, `MemoryError` where there is no room for new
        arrays, and `TypeError` for indices that are not whole numbers (masks neither).
        """
        numbers = self._check_numbers(indices)
        wanted = dict.fromkeys(self._fields) if out is None else out
        self._check_out(wanted, len(numbers))
        self._shards.check_open()
        arrays: Arrays = {}
        fixed: list[tuple[str, np.ndarray]] = []
        ragged: list[str] = []
        for name, array in wanted.items():
            field = self._fields[name]
            if field.is_ragged:
                ragged.append(name)
                continue
            arrays[name] = field.empty(len(numbers)) if array is None else array
            column, array = field.safe_name, arrays[name]
            if self.reads_whole_shards or not self._shards.copy_rows(column, numbers, array):
                fixed.append((column, array))
        spread = list(self._shards.split(numbers)) if fixed or ragged else []
        # Shard by shard, for the sake of formats that read shards whole.
        for shard, rows, slots in spread if fixed else ():
            columns = self._shards.columns(shard)
            for column, array in fixed:
                columns[column].gather(rows, array, slots)
        for name in ragged:
            field = self._fields[name]
            parts = [
                (self._shards.columns(shard)[field.safe_name], self._find_ranges(field, shard, rows), slots)
                for shard, rows, slots in spread
            ]
            arrays[name] = gather_values(field, parts, len(numbers), wanted[name])
        return {name: arrays[name] for name in wanted}

    def view(self, first: int, last: int) -> Arrays:
        """Records `first` to `last`, read-only: views of the files where they lie in one shard and the format is
        mapped, otherwise copies. Raises `IndexError` unless `0 <= first <= last <= len(store)`.
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
        low, high = (int(number - self._shards.first_records[shard]) for number in (first, last))
        return {
            name: view_values(columns[field.safe_name], self._find_ranges(field, shard, np.arange(low, high)))
            if field.is_ragged
            else columns[field.safe_name].view(low, high)
            for name, field in self._fields.items()
        }

    def rows_by_shard(
        self, field: str, indices: Sequence[int] | np.ndarray | range
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each shard that `indices` lie in `array, rows, slots`, so that `out[slots] = array[rows]` in all of them
        gathers a fixed `field`: for loops that do more than copy.

        `array` is read-only, C-contiguous and of shape `(any number, *field shape)`: where the format is mapped the
        whole shard without a copy, otherwise the rows that are wanted. `rows` and `slots` are int64. Raises
        `StoreError` for a field that is ragged or not there, and as `gather` does.
        """
        described = self._fields.get(field)
        if described is None or described.is_ragged:
            fixed = [name for name, each in self._fields.items() if not each.is_ragged]
            raise StoreError(f"{self.path} has no fixed field {field!r}; it has {', '.join(fixed) or 'none'}")
        self._shards.check_open()
        column = described.safe_name
        return (
            (
                *self._shards.columns(shard)[column].locate(rows),
                np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots,
            )
            for shard, rows, slots in self._shards.split(self._check_numbers(indices))
        )

    def elements(self, indices: Sequence[int] | np.ndarray | range) -> dict[str, int]:
        """For each ragged field how many elements the values of `indices` have together, for buffers of `gather`."""
        spread = list(self._shards.split(self._check_numbers(indices)))
        return {
            name: sum(self._find_ranges(field, shard, rows).elements for shard, rows, _ in spread)
            for name, field in self._fields.items()
            if field.is_ragged
        }

    def shapes(self, field: str, indices: Sequence[int] | np.ndarray | range) -> np.ndarray:
        """The shape of each record's value of `field`: int64 of shape `(len(indices), axes)`.

        Of a ragged field 16 to 24 bytes a record are read where the format is mapped, and no values; of a fixed one
        nothing. Raises `StoreError` for a field that is not there, and as `gather` does.
        """
        described = self._fields.get(field)
        if described is None:
            raise StoreError(f"{self.path} has no field {field!r}; it has {', '.join(self._fields)}")
        self._shards.check_open()
        numbers = self._check_numbers(indices)
        shapes = np.empty((len(numbers), len(described.shape)), np.int64)
        if not described.is_ragged:
            shapes[:] = described.sizes
            return shapes
        for shard, rows, slots in self._shards.split(numbers):
            shapes[slots] = self._find_ranges(described, shard, rows).shapes
        return shapes

    def preload(self, memory_budget: int | None = None) -> None:
        """Read the whole store into memory; later gathers copy from there. Raises `MemoryError` if it does not fit."""
        layouts = [self._shards.layout(shard) for shard in range(len(self.manifest.shards))]
        needed = sum(column.nbytes for layout in layouts for column in layout)
        allowed = psutil.virtual_memory().available if memory_budget is None else memory_budget
        if needed > allowed:
            limit = "are free" if memory_budget is None else "are its memory_budget"
            raise MemoryError(
                f"{self.path} needs {needed:,} bytes for cache='ram' and {allowed:,} bytes {limit}; "
                "use cache=None, which maps the files"
            )
        for shard, layout in enumerate(layouts):
            columns = self._shards.columns(shard)
            arrays = {column.name: np.array(columns[column.name].view(0, column.rows)) for column in layout}
            self._shards.hold(shard, arrays)
        self._memory_budget, self._is_preloaded = memory_budget, True

    def close(self) -> None:
        """Close all files. Closing twice does nothing; reading afterwards is an error."""
        self._shards.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self._trusted, self._is_preloaded, self._memory_budget)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name} {field}" for field in self._fields.values())
        return f"Store({str(self.path)!r}, {self.manifest.format}, {len(self):,} records: {fields})"

    def _check_numbers(self, indices: Sequence[int] | np.ndarray | range) -> np.ndarray:
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise TypeError(
                f"indices must be one row of whole numbers, not {numbers.dtype} of shape {numbers.shape}; "
                "np.flatnonzero(mask) gives those of a mask"
            )
        numbers = numbers.astype(np.int64, copy=False)
        # As unsigned, negative numbers are above all others: one pass sees both.
        if numbers.size and np.maximum.reduce(numbers.view(UINT64)) >= self._length:
            wrong = numbers[(numbers < 0) | (numbers >= len(self))][0]
            raise IndexError(f"record {wrong} of {self.path}, which holds {len(self)}")
        return numbers

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


def _reopen(path: Path, trusted: bool, is_preloaded: bool, memory_budget: int | None) -> Store:
    return open_store(path, "ram" if is_preloaded else None, trusted=trusted, memory_budget=memory_budget)
