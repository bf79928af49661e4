"""A store, open for reading: random access to records, and gathers of many into a caller's buffers."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psutil

from presave.errors import StoreError
from presave.formats import ShardReader, find_format
from presave.manifest import Manifest, load_manifest
from presave.schema import Schema

if TYPE_CHECKING:
    from typing_extensions import Self

Arrays = dict[str, np.ndarray]


def open_store(path: str | Path, cache: Literal["ram"] | None = None) -> Store:
    """Open the store at `path`; `cache="ram"` reads all of it into memory first.

    Raises `StoreError` where there is no whole store, and `MemoryError` where `cache="ram"` does not fit into the
    memory that is free.
    """
    store = Store(Path(path))
    if cache == "ram":
        store.preload()
    elif cache is not None:
        raise StoreError(f"cache must be None or 'ram', not {cache!r}")
    return store


class Store(Sequence[Arrays]):
    """A presaved data set. May be pickled, forked and used by several threads: files are opened where they are read.

    A process that forks while another thread reads must not touch the store in the child; open it there instead.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest: Manifest = load_manifest(path)
        self._format = find_format(self.manifest.format)
        counts = [shard.records for shard in self.manifest.shards]
        self._first_records = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._shards: dict[int, ShardReader] = {}
        self._ram: Arrays | None = None
        self._lock = threading.Lock()
        self._closed = False

    def __len__(self) -> int:
        return int(self._first_records[-1])

    @property
    def fields(self) -> Schema:
        """The fields of a record: name to `Field` with dtype and shape."""
        return self.manifest.schema

    @property
    def nbytes(self) -> int:
        """Bytes of the store's data files on disk."""
        return self.manifest.nbytes

    def __getitem__(self, index: Any) -> Any:
        """Record `index`: a new array for each field. Negative numbers count from the end; slices are refused."""
        if isinstance(index, slice):
            raise TypeError("a store has no slices; use gather(range(...))")
        index = operator.index(index)
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"record {index} of {self.path}, which holds {len(self)}")
        return {name: array[0] for name, array in self.gather([number]).items()}

    def __iter__(self) -> Iterator[Arrays]:
        for number in range(len(self)):
            yield self[number]

    def gather(
        self, indices: Sequence[int] | np.ndarray | range, out: Mapping[str, np.ndarray] | None = None
    ) -> Arrays:
        """The records `indices`, in that order: for each field an array of shape `(len(indices), *field shape)`.

        `out` maps field names to arrays of that shape and the field's dtype, which are written and returned; fields
        that it leaves out are not read. Raises `IndexError` for a record that is not there, `StoreError` for an `out`
        that does not fit or a damaged file, and `TypeError` for indices that are not whole numbers (masks neither).
        """
        numbers = np.asarray(indices)
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise TypeError(
                f"indices must be one row of whole numbers, not {numbers.dtype} of shape {numbers.shape}; "
                "np.flatnonzero(mask) gives those of a mask"
            )
        numbers = numbers.astype(np.int64, copy=False)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            wrong = numbers[(numbers < 0) | (numbers >= len(self))][0]
            raise IndexError(f"record {wrong} of {self.path}, which holds {len(self)}")
        arrays = self._check_out(out, len(numbers)) if out is not None else self._allocate(len(numbers))
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        if self._ram is not None:
            for name, array in arrays.items():
                np.take(self._ram[name], numbers, axis=0, out=array, mode="clip")
            return arrays
        for shard, rows, slots in self._by_shard(numbers):
            reader = self._reader(shard)
            for name, array in arrays.items():
                reader.gather(name, rows, array, slots)
        return arrays

    def preload(self) -> None:
        """Read the whole store into memory; later gathers copy from there."""
        needed = sum(field.record_nbytes for field in self.fields.values()) * len(self)
        available = psutil.virtual_memory().available
        if needed > available:
            raise MemoryError(
                f"{self.path} needs {needed / 1e6:,.0f} MB for cache='ram' and {available / 1e6:,.0f} MB are free; "
                "use cache=None, which maps the files"
            )
        self._ram = self.gather(range(len(self)))

    def close(self) -> None:
        """Close all files. Closing twice does nothing; reading afterwards is an error."""
        self._closed = True
        self._ram = None
        with self._lock:
            for reader in self._shards.values():
                reader.close()
            self._shards.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.path, "ram" if self._ram is not None else None)

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name} {np.dtype(f.dtype)}{list(f.shape)}" for f in self.fields.values())
        return f"Store({str(self.path)!r}, {self.manifest.format}, {len(self):,} records: {fields})"

    def _allocate(self, records: int) -> Arrays:
        return {name: field.empty(records) for name, field in self.fields.items()}

    def _check_out(self, out: Mapping[str, np.ndarray], records: int) -> Arrays:
        for name, array in out.items():
            if name not in self.fields:
                raise StoreError(f"{self.path} has no field {name!r}; it has {', '.join(self.fields)}")
            field = self.fields[name]
            if array.shape != (records, *field.shape) or array.dtype != np.dtype(field.dtype):
                raise StoreError(
                    f"out[{name!r}] is {array.dtype} of shape {array.shape}; {self.path} needs "
                    f"{np.dtype(field.dtype)} of shape {(records, *field.shape)}"
                )
            if not array.flags.writeable:
                raise StoreError(f"out[{name!r}] is read-only; {self.path} writes into it")
        return dict(out)

    def _by_shard(self, numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray | slice]]:
        """Split `numbers` by shard: shard, rows in it, and the places in the output that they go to."""
        shards = np.searchsorted(self._first_records, numbers, side="right") - 1
        for shard in np.unique(shards).tolist():
            places = np.flatnonzero(shards == shard)
            rows = numbers[places] - self._first_records[shard]
            consecutive = int(places[-1]) - int(places[0]) + 1 == len(places)
            yield shard, rows, slice(int(places[0]), int(places[-1]) + 1) if consecutive else places

    def _reader(self, shard: int) -> ShardReader:
        reader = self._shards.get(shard)
        if reader is None:
            with self._lock:
                if self._closed:  # by another thread, since the gather began
                    raise StoreError(f"{self.path} is closed")
                reader = self._shards.get(shard)
                if reader is None:
                    reader = self._format.open_shard(self.path, self.manifest.shards[shard], self.fields)
                    self._shards[shard] = reader
        return reader
