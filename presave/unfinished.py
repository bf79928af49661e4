"""A store in the making: a folder beside its place, which an interrupted write leaves and the next goes on with."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from presave.checksum import checksum_file
from presave.errors import StoreError
from presave.manifest import Shard, Skipped, StoredFile, parse_shard, partial_folder

if TYPE_CHECKING:
    from typing_extensions import Self

PLAN_NAME = "plan.json"
STOP_NAME = "stop"
DONE_SUFFIX = ".done.json"


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
            self._check_plan()
            (self.folder / STOP_NAME).unlink(missing_ok=True)
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
            shutil.rmtree(self.folder, ignore_errors=True)  # nothing is lost
        os.close(self._lock)

    def done(self, number: int) -> Done | None:
        """What was done for span `number` before, if its files are still what they were; otherwise None."""
        marker = self.folder / f"{number:05d}{DONE_SUFFIX}"
        try:
            content = json.loads(marker.read_bytes())
            shard = None if content["shard"] is None else parse_shard(content["shard"])
            skipped = tuple(Skipped(int(each["record"]), str(each["cause"])) for each in content["skipped"])
            whole = shard is None or all(
                checksum_file(self.folder / each.name) == each.xxh3_128 for each in shard.files
            )
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return Done(shard, skipped) if whole else None

    def stop(self) -> None:
        """Tell workers, wherever they run, to begin no further record."""
        if self.folder.is_dir():
            (self.folder / STOP_NAME).touch()

    def finish(self, keep: Collection[str]) -> None:
        """Leave only the files `keep`, and move the folder to the store's place, all flushed to the disk."""
        for path in self.folder.iterdir():
            if path.name not in keep:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        flush(self.folder)
        os.rename(self.folder, self.target)
        flush(self.target.parent)

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
    """A context manager: an empty folder for the files of one span, of which all or none come into the store."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number
        self.path = folder

    def __enter__(self) -> Self:
        self.path = Path(tempfile.mkdtemp(prefix=f"{self._number:05d}.", dir=self._folder))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def commit(self, paths: list[Path], records: int, elements: dict[str, int], skipped: tuple[Skipped, ...]) -> Done:
        """Flush the files to the disk, move them into the store, and note that the span is done."""
        files = []
        for path in paths:
            flush(path)
            files.append(StoredFile(path.name, path.stat().st_size, checksum_file(path)))
            os.replace(path, self._folder / path.name)
        done = Done(Shard(records, tuple(files), elements) if records else None, skipped)
        write_atomically(self._folder / f"{self._number:05d}{DONE_SUFFIX}", json.dumps(asdict(done)).encode())
        return done


def is_stopped(folder: Path) -> bool:
    """Whether the write that made `folder` was given up, or the folder is gone."""
    return not (folder / PLAN_NAME).exists() or (folder / STOP_NAME).exists()


def flush(path: Path) -> None:
    """Have the system write a folder's entries, or a file's bytes, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `path` so that it is there with all of `data`, on the disk, or not at all."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name, path)


def _difference(found: bytes, plan: Mapping[str, Any]) -> str:
    try:
        other = json.loads(found)
        names = [name for name in plan if other.get(name) != plan[name]]
        return "; ".join(f"{name} was {other.get(name)!r} and is {plan[name]!r}" for name in names)
    except (ValueError, AttributeError):
        return f"its {PLAN_NAME} is damaged"
