"""Configurations: how to load a data set, in a TOML file that commands and training scripts take as it is."""

from __future__ import annotations

import errno
import functools
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import presave
from etl import strategies
from etl.arguments import printable, whole_number
from etl.configuration_file import (
    KEYS,
    facts_lines,
    nearest,
    path_for_file,
    path_from_file,
    read_tables,
    shown,
    table_lines,
    unknown_key,
    without_none,
)
from etl.functions import find_function, is_carried, is_function_name, parameters_of, takes_whole
from etl.iterators import BatchIterator, PresavedIterator, RawIterator
from etl.loading.padding import Padding
from etl.loading.records import ragged_after
from etl.runtime.resources import rank_cpus
from etl.sources import MapDataset, open_source
from etl.sources.identity import digest_difference, source_digests, store_digests
from etl.sources.named import is_source_name
from etl.stages.dtypes import DTYPES
from etl.stages.pipeline import Pipeline
from etl.stages.presets import PRESET_DECODERS, default_split, open_pipeline
from etl.strategies import Strategy
from etl.strategies.task import NAMES, Task
from etl.temporary import LOCKED, lock_folder, remove_leftovers
from presave.files import UNFINISHED, usual_mode, write_atomically
from presave.thread_safety import chosen_from

SIZE = 224
PREFETCH_SIZE = 2
# TOML has no None. These are the dtype of arrays that keep their own, and a setting of a user's loader.
UNCHANGED = "unchanged"
NONE = "none"

# Settings of the strategies of this package that need a store, or need loading ahead.
STORE_SETTINGS = ("stage", "format", "compression")
AHEAD_SETTINGS = ("prefetch_size", "loading_threads")

# Options of the source: what each must be, in words, and as a test.
_OPTION_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "label": ("a column's name or number", lambda value: isinstance(value, str) or _is_number(value)),
    "features": ("a list of columns", lambda value: _is_list(value, (str, int))),
    "classes": ("a list of names", lambda value: _is_list(value, (str,))),
    "header": ("true or false", lambda value: isinstance(value, bool)),
    "delimiter": ("a character", lambda value: isinstance(value, str)),
    "regression": ("true or false", lambda value: isinstance(value, bool)),
    "missing": ("a number", lambda value: isinstance(value, float) or _is_number(value)),
    "follow_links": ("true or false", lambda value: isinstance(value, bool)),
    "allow_empty": ("true or false", lambda value: isinstance(value, bool)),
}
TABLE_OPTIONS = tuple(_OPTION_KINDS)


@dataclass(frozen=True)
class Configuration:
    """A way to load a data set: the records, the strategy and its settings.

    Paths are relative to the working folder, as everywhere in Python. In a file they are relative to the file, and
    `read` and `write` convert them.

    Attributes
    ----------
    source : str
        Path of the source, or a name that `etl.open_source` takes.
    strategy : str
        Name of the strategy, or "package.module:function" for a user's loader.
    store : str or None
        Path of the store that the strategy reads, or of the folder of a user's loader that prepares files.
    split, pipeline, size, decoder, table_options
        See `etl.comparison.request.settings.Settings`. A size of None is the default one.
    batch_size : int
        Records per batch.
    dtype : str or None
        Dtype of floating features; None if each array keeps its own.
    seed : int
        Seed for shuffling and random stages.
    shuffle : bool
        Shuffle the records, in another order for every epoch.
    settings : dict of str to str, int, float, bool or None
        Settings of the strategy. For the strategies of this package these are `KEYS["settings"]`, and None is the
        default.
    result : dict
        Facts for the reader of the file. Those that are None are left out of it.
    file : Path or None
        The file that it was read from.

    Raises
    ------
    ValueError
        If a value is wrong. The message names the file, the table and the key.
    """

    source: str
    strategy: str
    store: str | None = None
    split: str | None = None
    pipeline: str | None = None
    size: int | None = None
    decoder: str = "pillow"
    table_options: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 32
    dtype: str | None = "float32"
    seed: int = 0
    shuffle: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result", without_none(self.result))
        self._check_data()
        self._check_loader()
        if self.strategy_kind.is_foreign:
            self._check_user_loader_settings()
        else:
            present = {name: value for name, value in self.settings.items() if value is not None}
            object.__setattr__(self, "settings", present)
            self._check_own_settings()
        if self.store is not None:
            self._text("store", "path", self.store)

    @classmethod
    def read(cls, path: str | Path) -> Configuration:
        """Read the file at `path`.

        Raises `OSError` if it cannot be read, and `ValueError` if it is not TOML, a table, key or value is wrong, or
        one is missing.
        """
        path = Path(path)
        tables = read_tables(path)
        data, loader, stored = dict(tables.get("data", {})), dict(tables.get("loader", {})), tables.get("store")
        for table, given, key in (("data", data, "source"), ("loader", loader, "strategy"), ("store", stored, "path")):
            if given is not None and key not in given:
                raise ValueError(f"{path}: [{table}] has no {key}, which it needs")
        options = {name: data.pop(name) for name in TABLE_OPTIONS if name in data}
        data["source"] = path_from_file(data["source"], path.parent, is_source_name)
        if loader.get("dtype") == UNCHANGED:
            loader["dtype"] = None
        settings = {name: None if value == NONE else value for name, value in tables.get("settings", {}).items()}
        return cls(
            **data,
            **loader,
            store=None if stored is None else path_from_file(stored["path"], path.parent),
            table_options=options,
            settings=settings,
            result=tables.get("result", {}),
            file=path,
        )

    def write(self, path: str | Path, title: str | None = None) -> None:
        """Write the configuration to a file, which appears as a whole.

        `title` is the first line, which says what this is and where it comes from; by default it names the source.
        Raises `OSError` if the file cannot be written, and `ValueError` if TOML cannot hold a fact of `result`.
        """
        target = Path(path).resolve()  # a link stays a link
        text = self._text_for(target, title or f"Settings for loading {self.source}")
        write_atomically(target, text.encode(), mode=usual_mode(target))

    @property
    def strategy_kind(self) -> Strategy:
        """Properties of the strategy, with the kind of workers that the settings name."""
        found, workers = strategies.find(self.strategy), self.settings.get("workers")
        return found if found.is_foreign or workers is None else replace(found, ahead=workers)

    @property
    def stage(self) -> str | None:
        """The last stage before the store, if it is given; None for the default one."""
        return self.settings.get("stage")

    @property
    def decoder_used(self) -> str:
        """The decoder of the strategy."""
        own = None if self.strategy_kind.is_foreign else self.settings.get("decoder")
        return own or self.decoder

    def open_source(self, given: Any = None) -> Any:
        """Open the source, or the one at the path `given`, with the same options; other objects are returned."""
        if given is None:
            with self._located("data", "source"):
                return open_source(self.source, self.split, **self.table_options)
        return open_source(given, self.split, **self.table_options) if _is_path(given) else given

    def open_pipeline(self, source: Any) -> Pipeline:
        """Return the stages for the records of `source`."""
        size = SIZE if self.size is None else self.size
        with self._located("data", "pipeline"):
            return open_pipeline(self.pipeline, source, size, self.decoder_used)

    def open_loader(self, *, source: Any = None, store: Any = None, rank: int = 0, world_size: int = 1) -> Any:
        """Return a loader of the configured batches; see `from_config`.

        Raises `ValueError` also if the store is damaged, or the user's loader cannot be made.
        """
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be at least 0 and below world_size {world_size}, not {rank}")
        kind, settings = self.strategy_kind, self.settings
        if kind.is_foreign:
            return self._open_user_loader(source, store, rank, world_size)
        if store is not None and not kind.reads_store:
            raise ValueError(f"{self._place()}{self.strategy} reads no store; leave out `store`")
        iterator = self._open_own(self.open_source(source), store)
        if world_size > 1:
            iterator = iterator.shard(rank, world_size)
        return kind.wrap(iterator, settings.get("prefetch_size", PREFETCH_SIZE), settings.get("loading_threads"))

    def needed_store(self) -> str:
        """Return the path of the store; raises `ValueError` if there is none."""
        kind = self.strategy_kind
        if not (kind.reads_store or kind.is_foreign):
            raise ValueError(f"{self._place()}{self.strategy} reads no store")
        if self.store is None:
            raise ValueError(f"{self._place()}{self.strategy} needs a table [store], with the path of its files")
        return self.store

    def prepare(self) -> float:
        """Let the user's loader prepare its files, in the folder at `store`, and return the seconds that it took.

        The folder appears when all is done. Raises `ValueError` if the strategy is not a user's loader, prepares
        nothing, has no folder, or the folder exists.
        """
        if not self.strategy_kind.is_foreign:
            raise ValueError(f"{self._place()}strategy {self.strategy} prepares no files; only your own loaders do")
        function = self._function()
        prepare = strategies.find_prepare(function)
        if prepare is None:
            raise ValueError(f"{self._place()}{self.strategy} has no `prepare`: there is nothing to write")
        folder = Path(self.needed_store())
        remove_leftovers(folder.parent.glob(f".{glob.escape(folder.name)}.*{UNFINISHED}{LOCKED}"))
        if folder.exists():
            raise ValueError(f"{folder} exists already; choose another path, or remove it")
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Of its own, because another process may do the same.
        own, lock = lock_folder(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=UNFINISHED, dir=folder.parent))
        unfinished = Path(own, folder.name)
        try:
            unfinished.mkdir()
            started = time.perf_counter()
            prepare(self._task(function, None, unfinished))
            seconds = time.perf_counter() - started
            unfinished.rename(folder)
        finally:
            lock.close()
            shutil.rmtree(own, ignore_errors=True)
        return seconds

    def set_compute_threads(self) -> None:
        """Give torch's operations in this process as many threads as the loader was tuned beside, if that is set."""
        threads = self.settings.get("compute_threads")
        if threads is not None and find_spec("torch") is not None:
            import torch

            torch.set_num_threads(min(threads, rank_cpus()))

    def _open_own(self, source: Any, store: Any) -> RawIterator | PresavedIterator:
        """Return the iterator that a strategy of this package is made of, which loads in the calling thread.

        If it opens the store, it closes it, too.
        """
        pipeline = self.open_pipeline(source)
        ragged = ragged_after(getattr(chosen_from(source), "ragged", ()), pipeline.stages)
        order: dict[str, Any] = {
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "dtype": self.dtype,
            "padding": Padding() if ragged else None,
        }
        if not self.strategy_kind.reads_store:
            return RawIterator(source, pipeline, **order)
        with self._located("settings", "stage"):
            _, rest = pipeline.split(self.stage or default_split(pipeline))
        if store is not None:
            _check_records(store, source)
            return PresavedIterator(store, rest, **order)
        own = self.needed_store()
        if not os.path.lexists(own):
            raise presave.StoreError(f"{self._place('store', 'path')}there is no store at {own}; {self._remedy()}")
        with self._located("store", "path", f". If the store is to be replaced, remove it and {self._remedy()}"):
            _check_records(own, source)
            return PresavedIterator(own, rest, **order)

    def _open_user_loader(self, source: Any, store: Any, rank: int, world_size: int) -> Any:
        """Return the loader that the user's function makes; see `open_loader`."""
        if isinstance(store, presave.Store):
            raise ValueError(f"{self._place()}{self.strategy} takes the path of a folder as `store`, not an open store")
        function = self._function()
        given = self.store if store is None else store
        if strategies.find_prepare(function) is not None and not Path(given or self.needed_store()).is_dir():
            raise ValueError(f"{self._place('store', 'path')}there is no folder {given}; {self._remedy()}")
        task = self._task(function, source, None if given is None else Path(given))
        return strategies.open_loader(function, replace(task, rank=rank, world_size=world_size))

    def _task(self, function: Callable[..., Any], source: Any, folder: Path | None) -> Task:
        """Return the task of a user's loader with `folder` for its files, which is made if it does not exist."""
        if folder is None and any(each.name == "folder" for each in parameters_of(function)):
            raise ValueError(f"{self._place()}{self.strategy} asks for a folder; give the path of one in [store]")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        cpus, given = rank_cpus(), self.source if source is None else source
        functions = [each for each in (function, getattr(function, "prepare", None)) if each is not None]
        opened = functools.cache(lambda: self.open_source(source))
        return Task(
            batch_size=self.batch_size,
            dtype=self.dtype or "float32",
            seed=self.seed,
            epoch=0,
            records=_count(opened, given) if any(_asks_for(each, "records") for each in functions) else 0,
            cpus=cpus,
            workers=cpus,
            folder="" if folder is None else str(folder.absolute()),
            settings=self.settings,
            open_path=lambda: _source_path(given),
            open_source=lambda: opened().dataset if isinstance(opened(), MapDataset) else opened(),
            open_pipeline=lambda: self.open_pipeline(opened()),
        )

    def _function(self) -> Callable[..., Any]:
        return find_function(str(self.strategy_kind.function), self._place("loader", "strategy").rstrip(": "))

    def _remedy(self) -> str:
        return f"write it with `etl presave --config {self.file or 'FILE'}`"

    def _place(self, table: str = "", key: str = "") -> str:
        """Return the beginning of an error: the file, if there is one, and the table and key, if given."""
        file = "" if self.file is None else f"{self.file}: "
        return f"{file}[{table}] {key}: " if table else file

    @contextmanager
    def _located(self, table: str, key: str, remedy: str = "") -> Iterator[None]:
        """Let a `ValueError` of the block, or a missing file, name the file, the table and the key."""
        try:
            yield
        except presave.StoreError as error:
            raise presave.StoreError(f"{self._place(table, key)}{error}{remedy}") from error
        except ValueError as error:
            raise ValueError(f"{self._place(table, key)}{error}{remedy}") from error
        except FileNotFoundError as error:
            raise FileNotFoundError(errno.ENOENT, f"{self._place(table, key)}no such file", error.filename) from error

    def _check_data(self) -> None:
        self._text("data", "source", self.source)
        for key in ("split", "pipeline"):
            if getattr(self, key) is not None:
                self._text("data", key, getattr(self, key))
        if self.pipeline is not None and not is_function_name(self.pipeline):
            raise ValueError(f"{self._place('data', 'pipeline')}give package.module:function, not {self.pipeline!r}")
        self._choice("data", "decoder", self.decoder, PRESET_DECODERS)
        if self.size is not None:
            self._whole("data", "size", self.size, 1)
        for key, value in self.table_options.items():
            if key not in _OPTION_KINDS:
                raise ValueError(f"{self._place('data', key)}{unknown_key(key, 'data')}")
            wanted, fits = _OPTION_KINDS[key]
            if not fits(value):
                raise ValueError(f"{self._place('data', key)}it must be {wanted}, not {shown(value)}")

    def _check_loader(self) -> None:
        self._text("loader", "strategy", self.strategy)
        try:
            strategies.find(self.strategy)
        except ValueError as error:
            near = nearest(self.strategy, strategies.names())
            raise ValueError(f"{self._place('loader', 'strategy')}{error}{near}") from None
        self._whole("loader", "batch_size", self.batch_size, 1)
        if self.dtype is not None:
            self._choice("loader", "dtype", self.dtype, (*DTYPES, UNCHANGED))
        self._whole("loader", "seed", self.seed, 0)
        if not isinstance(self.shuffle, bool):
            raise ValueError(f"{self._place('loader', 'shuffle')}it must be true or false, not {shown(self.shuffle)}")

    def _check_own_settings(self) -> None:
        settings, kind = self.settings, self.strategy_kind
        for name, value in settings.items():
            if name not in KEYS["settings"]:
                raise ValueError(f"{self._place('settings', name)}{unknown_key(name, 'settings')}")
            if name in STORE_SETTINGS and not kind.reads_store:
                raise ValueError(f"{self._place('settings', name)}{self.strategy} reads no store; leave it out")
            if name in AHEAD_SETTINGS and not kind.loads_ahead and value != 0:
                raise ValueError(
                    f"{self._place('settings', name)}{self.strategy} does not load ahead; leave it out, or add "
                    'workers = "thread"'
                )
        choices = {"decoder": PRESET_DECODERS, "workers": ("thread", "process"), "format": presave.formats()}
        for name, allowed in choices.items():
            if name in settings:
                self._choice("settings", name, settings[name], allowed)
        for name in ("stage", "compression"):
            if name in settings:
                self._text("settings", name, settings[name])
        for name, least in (("prefetch_size", 0), ("loading_threads", 0), ("compute_threads", 1)):
            if name in settings:
                self._whole("settings", name, settings[name], least)
        if "compression" in settings and settings.get("format") != "hdf5":
            raise ValueError(f'{self._place("settings", "compression")}it is for format = "hdf5"')
        if kind.reads_store:
            self.needed_store()
        elif self.store is not None:
            raise ValueError(f"{self._place('store', 'path')}{self.strategy} reads no store; leave the table out")

    def _check_user_loader_settings(self) -> None:
        for name, value in self.settings.items():
            if not isinstance(value, (str, int, float, type(None))):
                raise ValueError(
                    f"{self._place('settings', name)}it must be text, a number, or true or false, not {shown(value)}"
                )
            if value == NONE:
                raise ValueError(f"{self._place('settings', name)}{NONE!r} means None in a file; rename that value")
            if name == "compute_threads":
                self._whole("settings", name, value, 1)

    def _text(self, table: str, key: str, value: Any) -> None:
        if not isinstance(value, str) or not value:
            raise ValueError(f"{self._place(table, key)}it must be text, not {shown(value)}")
        if is_carried(value):
            raise ValueError(
                f"{self._place(table, key)}a function of a script or notebook cannot be named in a file; put it into a "
                "module, and name it as package.module:function"
            )

    def _whole(self, table: str, key: str, value: Any, least: int) -> None:
        whole_number(f"{self._place(table, key)}it", value, least)

    def _choice(self, table: str, key: str, value: Any, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            raise ValueError(
                f"{self._place(table, key)}it must be one of {', '.join(allowed)}, not {shown(value)}"
                f"{nearest(value, allowed)}"
            )

    def _text_for(self, target: Path, title: str) -> str:
        """Return the content of a file at `target`."""
        lines = [f"# {printable(line)}" for line in title.splitlines()]
        lines += ["#", f'# In a training script:  train = etl.from_config("{target.name}")']
        if self.store is not None:
            lines.append(f"# Once, before that:      etl presave --config {target.name}")
        lines.append(f"# To measure it again:    etl compare --config {target.name}")
        data = {
            "source": path_for_file(self.source, target.parent, is_source_name),
            "split": self.split,
            "pipeline": self.pipeline,
            "size": self.size,
            "decoder": None if self.decoder == "pillow" else self.decoder,
            **self.table_options,
        }
        tables: dict[str, Mapping[str, Any]] = {
            "data": data,
            "loader": {
                "strategy": self.strategy,
                "batch_size": self.batch_size,
                "dtype": UNCHANGED if self.dtype is None else self.dtype,
                "seed": self.seed,
                "shuffle": self.shuffle,
            },
            "settings": {name: NONE if value is None else value for name, value in self.settings.items()},
            "store": {} if self.store is None else {"path": path_for_file(self.store, target.parent)},
        }
        for table, values in tables.items():
            lines += table_lines(table, values)
        try:
            lines += facts_lines(self.result)
        except TypeError as error:
            raise ValueError(f"[result] cannot be written to {target}: {error}") from error
        return "\n".join(lines) + "\n"


def from_config(
    path: str | Path,
    *,
    source: Any = None,
    store: Any = None,
    threads: bool = True,
    rank: int = 0,
    world_size: int = 1,
) -> BatchIterator | Any:
    """Return the loader that a file describes, such as `etl tune --toml` writes it, ready for training.

    Parameters
    ----------
    path : str or Path
        The file. Paths in it are relative to its folder, and functions are found on the path and in the working folder.
    source : str, Path or sequence of records, optional
        Records to load instead of those that the file names, for example those of a test set, or on another machine.
    store : str, Path or Store, optional
        A store of these records, instead of that of the file. An open one is not closed with the iterator. For a user's
        loader, the path of its folder.
    threads : bool
        If the file has `compute_threads`, set torch's threads in this process to that number: the loader was tuned
        beside so many. Under torchrun, no more than its share of the CPUs.
    rank, world_size : int
        The part of each epoch to load, as of `BatchIterator.shard`. A user's loader gets them in its `Task`.

    Returns
    -------
    BatchIterator, or the user's own loader
        A `RawIterator` or `PresavedIterator`, wrapped in an `AsyncIterator` if the strategy loads ahead. It closes the
        store that it has opened. If the strategy is a user's loader, what its function returned.

    Raises
    ------
    OSError
        If there is no such file.
    ValueError
        If a table, a key or a value is wrong, the source cannot be opened, the strategy does not take `store`, or the
        store is missing or was written from other records or with other stages. The message names the file, and the
        command that writes the store.

    Examples
    --------
    >>> with etl.from_config("photos.toml") as train:  # doctest: +SKIP
    ...     etl.fit(model, train, epochs=10)
    """
    configuration = Configuration.read(path)
    loader = configuration.open_loader(source=source, store=store, rank=rank, world_size=world_size)
    if threads:
        configuration.set_compute_threads()
    return loader


def _check_records(store: presave.Store | str | Path, source: Any) -> None:
    """Raise `ValueError` unless `store` was written from the records of `source`, of which it may have skipped some."""
    manifest = store.manifest if isinstance(store, presave.Store) else presave.load_manifest(Path(store))
    path = store.path if isinstance(store, presave.Store) else store
    moved = manifest.provenance.get("skipped")  # by a conversion
    skipped = len(manifest.skipped) + (len(moved) if isinstance(moved, list) else 0)
    written = manifest.records + skipped
    if written != len(source):
        raise ValueError(
            f"{path} was written from {written:,} records, but the source has {len(source):,}: it has changed since, "
            "or is another one"
        )
    differing = digest_difference(store_digests(manifest), source_digests(source))
    if differing:
        raise ValueError(f"{path} was written from other records than those of the source: their {differing} differ")


def _count(opened: Callable[[], Any], given: Any) -> int:
    """Return the number of records of the source at `given`; 0 for files that only a user's loader can read."""
    try:
        return len(opened())
    except (ValueError, OSError):
        if not _is_path(given) or is_source_name(os.fspath(given)) or not os.path.lexists(given):
            raise
        return 0


def _source_path(given: Any) -> str:
    if not _is_path(given) or is_source_name(os.fspath(given)):
        raise ValueError("there is no path: the source is neither a file nor a folder; ask for `source`")
    return str(Path(given).absolute())


def _asks_for(function: Callable[..., Any], name: str) -> bool:
    """Return True if a user's loader asks for the attribute `name` of its task, or for the whole task."""
    return any(each.name == name for each in parameters_of(function)) or takes_whole(function, NAMES)


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_list(value: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(each, kinds) and not isinstance(each, bool) for each in value
    )
