"""A store in the making: a folder beside its place, which an interrupted write leaves and the next goes on with."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from presave.checksum import checksum_bytes, checksum_file
from presave.errors import StoreError
from presave.manifest import Shard, Skipped, StoredFile, parse_shard, partial_folder

if TYPE_CHECKING:
    from typing_extensions import Self

PLAN_NAME = "plan.json"
STOP_NAME = "stop"
RUN_NAME = "run"
DONE_SUFFIX = ".done.json"
# How often a shard is begun in one write: worker processes may be killed for what is not its fault. No more than Dask
# allows, since the error with which Dask gives a task up never reaches the caller of joblib, who waits for ever.
ATTEMPTS = 3


@dataclass(frozen=True)
class Done:
    """What became of one span of records: a shard, None where all of them were skipped, and those that were."""

    shard: Shard | None
    skipped: tuple[Skipped, ...]


class Unfinished:
    """A context manager: the folder in which the store at `target` is made, for as long as no other process makes it.

    `plan` are JSON values that say all that decides the bytes. Raises `StoreError` where the folder holds the beginning
    of something else, or another process is writing there.
    """

    def __init__(self, target: Path, plan: Mapping[str, Any]) -> None:
        self.target = target
        self.folder = partial_folder(target)
        self._plan = plan
        self._lock = -1

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._check_place()
            self._check_plan()
            (self.folder / STOP_NAME).unlink(missing_ok=True)
            for path in self.folder.iterdir():
                if path.is_dir():  # of workers that were killed in an earlier write
                    shutil.rmtree(path, ignore_errors=True)
            write_atomically(self.folder / RUN_NAME, secrets.token_hex(4).encode())
        except BlockingIOError:
            os.close(self._lock)
            raise StoreError(f"another process is writing {self.target} (in {self.folder})") from None
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not any(self.folder.glob(f"*{DONE_SUFFIX}")):
            self.discard()  # nothing is lost
        os.close(self._lock)

    def done(self, number: int) -> Done | None:
        """What was done for span `number` before, if its files are still what they were; otherwise None."""
        return find_done(self.folder, number)

    def stop(self) -> None:
        """Tell workers, wherever they run, to begin no further record."""
        if self.folder.is_dir():
            (self.folder / STOP_NAME).touch()

    def discard(self) -> None:
        """Leave nothing to go on with."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def flush(self, done: Done) -> None:
        """Have the files of a shard written to the disk, which `finish` relies on."""
        for file in done.shard.files if done.shard is not None else ():
            flush(self.folder / file.name)

    def finish(self, keep: Collection[str]) -> None:
        """Move the files `keep`, which were flushed, to the store's place, all at once, and leave nothing else."""
        # Through a folder that no worker knows: one that was given up may still add files to the other.
        whole = Path(tempfile.mkdtemp(prefix="whole.", dir=self.folder))
        whole.chmod(self.folder.stat().st_mode)
        for name in keep:
            os.rename(self.folder / name, whole / name)
        flush(whole)
        os.rename(whole, self.target)
        flush(self.target.parent)
        self.discard()

    def _check_place(self) -> None:
        # Between making and locking the folder another process may have finished there, and moved or removed it.
        if self.target.exists():
            with suppress(OSError):
                self.folder.rmdir()
            raise StoreError(f"{self.target} exists already: another process has just written it")
        if not (self.folder.exists() and os.path.samestat(os.fstat(self._lock), self.folder.stat())):
            raise BlockingIOError

    def _check_plan(self) -> None:
        path = self.folder / PLAN_NAME
        encoded = json.dumps(self._plan, indent=1).encode()
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            write_atomically(path, encoded)
            return
        if found != encoded:
            raise StoreError(
                f"{self.folder} holds the beginning of another store of that name: {_difference(found, self._plan)}; "
                "delete it, or write with the same arguments to go on"
            )


class ShardFolder:
    """A context manager: an empty folder for the files of one span, of which all or none come into the store.

    A worker that is killed leaves its own behind, so they count the attempts. Raises `StoreError` after `ATTEMPTS`.
    """

    def __init__(self, folder: Path, number: int, span: range) -> None:
        self._folder = folder
        self._number = number
        self._span = span
        self.path = folder

    def __enter__(self) -> Self:
        # Names differ between runs: a worker that has not noticed yet that its run was given up may still use its own.
        run = (self._folder / RUN_NAME).read_text()
        for attempt in range(ATTEMPTS):
            self.path = self._folder / f"{self._number:05d}.{run}.{attempt}"
            with suppress(FileExistsError):
                self.path.mkdir()
                return self
        raise StoreError(
            f"records {self._span[0]} to {self._span[-1]}: {ATTEMPTS} worker processes died while they wrote them to "
            f"{self._folder}; look at these records and at the workers' memory, or write smaller shards"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self, paths: list[Path], records: int, elements: dict[str, int], skipped: tuple[Skipped, ...]) -> Done:
        """Move the files into the store, and note that the span is done.

        Nothing waits for the disk here: what it had not got when the machine stopped does not have the checksum noted.
        """
        files = []
        for path in paths:
            files.append(StoredFile(path.name, path.stat().st_size, checksum_file(path)))
            os.replace(path, self._folder / path.name)
        done = Done(Shard(records, tuple(files), elements) if records else None, skipped)
        content = asdict(done)
        content["checksum"] = _checksum(content)
        write_atomically(self._folder / f"{self._number:05d}{DONE_SUFFIX}", json.dumps(content).encode(), durable=False)
        return done


def find_done(folder: Path, number: int) -> Done | None:
    """What any worker has done for span `number` in `folder`, if its files are still what they were; otherwise None."""
    marker = folder / f"{number:05d}{DONE_SUFFIX}"
    try:
        content = json.loads(marker.read_bytes())
        if content.pop("checksum") != _checksum(content):
            return None
        shard = None if content["shard"] is None else parse_shard(content["shard"])
        skipped = tuple(Skipped(int(each["record"]), str(each["cause"])) for each in content["skipped"])
        whole = shard is None or all(checksum_file(folder / each.name) == each.xxh3_128 for each in shard.files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return Done(shard, skipped) if whole else None


def is_stopped(folder: Path) -> bool:
    """Whether the write that made `folder` was given up, or the folder is gone."""
    # Once every few records: building two paths would cost more than asking for them.
    return not os.path.exists(f"{folder}/{PLAN_NAME}") or os.path.exists(f"{folder}/{STOP_NAME}")  # noqa: PTH110


def flush(path: Path) -> None:
    """Have the system write a folder's entries, or a file's bytes, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write `path` so that it is there with all of `data` or not at all; if `durable`, even should the machine stop."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(name, path)


def _checksum(content: Mapping[str, Any]) -> str:
    return checksum_bytes(json.dumps(content).encode())


def _difference(found: bytes, plan: Mapping[str, Any]) -> str:
    try:
        other = json.loads(found)
        names = [name for name in plan if other.get(name) != plan[name]]
        return "; ".join(f"{name} was {other.get(name)!r} and is {plan[name]!r}" for name in names)
    except (ValueError, AttributeError):
        return f"its {PLAN_NAME} is damaged"
