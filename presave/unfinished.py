"""A store in the making: a folder beside its place, which an interrupted write leaves and the next goes on with."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from presave.atomic import flush, write_atomically
from presave.checksum import checksum_bytes, checksum_file
from presave.disk_errors import disk_errors
from presave.errors import StoreError
from presave.manifest import (
    LARGEST_MANIFEST_NBYTES,
    MANIFEST_NAME,
    Manifest,
    Shard,
    Skipped,
    StoredFile,
    parse_shard,
    partial_folder,
    save_manifest,
    whole_number,
)
from presave.plain_file import read_plain, why_not_own
from presave.work_file import WORK_NAME

if TYPE_CHECKING:
    from typing_extensions import Self

PLAN_NAME = "plan.json"
STOP_NAME = "stop"
RUN_NAME = "run"
DONE_SUFFIX = ".done.json"
WHOLE_PREFIX = "whole."
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
        self._encoded_plan = json.dumps(plan, indent=1).encode()
        self._lock = -1

    def __enter__(self) -> Self:
        with disk_errors(self.folder, len(self._encoded_plan)):
            self._lock = self._open_folder()
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._check_place()
                self._check_plan()
                self._tidy()
                write_atomically(self.folder / RUN_NAME, secrets.token_hex(4).encode())
            except BlockingIOError:
                os.close(self._lock)
                raise StoreError(f"another process is writing {self.target} (in {self.folder})") from None
            except StoreError:
                os.close(self._lock)
                raise
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            os.close(self._lock)
        else:
            self._leave()

    def done(self, number: int) -> Done | None:
        """What was done for span `number` before, if its files are still what they were; otherwise None."""
        return find_done(self.folder, number)

    def stop(self) -> None:
        """Tell workers, wherever they run, to begin no further record."""
        # A rename, since a full disk may have no room for one more file. Where even that fails they write on in vain.
        with suppress(OSError):
            os.replace(self.folder / RUN_NAME, self.folder / STOP_NAME)

    def discard(self) -> None:
        """Leave nothing to go on with."""
        # The plan first: a worker looks for it when it has noted a shard, and takes back what came after this.
        with suppress(OSError):
            (self.folder / PLAN_NAME).unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def flush(self, number: int, done: Done) -> None:
        """Have the files of shard `number` written to the disk, which `finish` relies on."""
        for file in done.shard.files if done.shard is not None else ():
            with disk_errors(self.folder / file.name, file.nbytes):
                try:
                    flush(self.folder / file.name)
                except OSError:
                    # Read back it may look whole, from memory that the system has given up writing: it is made again.
                    _marker(self.folder, number).unlink(missing_ok=True)
                    for each in done.shard.files if done.shard is not None else ():
                        (self.folder / each.name).unlink(missing_ok=True)
                    raise

    def finish(self, manifest: Manifest) -> None:
        """Move the files of `manifest`, which were flushed, and itself to the store's place, all at once, and leave
        nothing else.
        """
        with disk_errors(self.target, manifest.nbytes):
            # Through a folder that no worker knows: one that was given up may still add files to the other.
            whole = Path(tempfile.mkdtemp(prefix=WHOLE_PREFIX, dir=self.folder))
            try:
                whole.chmod(self.folder.stat().st_mode)
                for file in (file for shard in manifest.shards for file in shard.files):
                    os.rename(self.folder / file.name, whole / file.name)
                save_manifest(manifest, whole)
                flush(whole)
                os.rename(whole, self.target)
                flush(self.target.parent)
            except BaseException:
                with suppress(OSError):
                    if not whole.exists():
                        os.rename(self.target, whole)
                    self._take_back(whole)
                raise
        self.discard()

    def _open_folder(self) -> int:
        if self.folder.is_symlink():  # what it leads to would be emptied
            raise StoreError(f"{self.folder} is a link, which no write has left; remove it")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            return os.open(self.folder, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            with suppress(OSError):
                self.folder.rmdir()
            raise

    def _leave(self) -> None:
        """End without a store: where no shard is whole nothing is lost, and nothing stays."""
        if not any(self.folder.glob(f"*{DONE_SUFFIX}")):
            self.discard()
        os.close(self._lock)

    def _tidy(self) -> None:
        """Take back or remove what a write that was killed has left."""
        (self.folder / STOP_NAME).unlink(missing_ok=True)
        for path in self.folder.iterdir():
            if path.is_symlink():
                continue
            if path.name.startswith(WHOLE_PREFIX):
                self._take_back(path)
            elif path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith("."):
                path.unlink(missing_ok=True)

    def _take_back(self, whole: Path) -> None:
        """Undo `finish`, so that the shards are there to go on with."""
        (whole / MANIFEST_NAME).unlink(missing_ok=True)
        for path in whole.iterdir():
            os.rename(path, self.folder / path.name)
        whole.rmdir()

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
        try:
            found = read_plain(path, LARGEST_MANIFEST_NBYTES)
        except FileNotFoundError:
            for marker in self.folder.glob(f"*{DONE_SUFFIX}"):  # of shards of some other plan
                marker.unlink()
            write_atomically(path, self._encoded_plan)
            return
        except ValueError as error:
            raise StoreError(f"{path}: {error}; delete {self.folder}") from None
        if found != self._encoded_plan:
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
        with disk_errors(self._folder, 0):
            try:
                run = (self._folder / RUN_NAME).read_text()
            except FileNotFoundError:
                raise given_up(self._folder) from None
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
        if kind is not None:
            with suppress(OSError):  # of a write that was given up this may have been the last
                self._folder.rmdir()

    def commit(self, paths: list[Path], records: int, elements: dict[str, int], skipped: tuple[Skipped, ...]) -> Done:
        """Move the files into the store, and note that the span is done.

        Nothing waits for the disk here: what it had not got when the machine stopped does not have the checksum noted.
        """
        marker = _marker(self._folder, self._number)
        moved: list[Path] = []
        try:
            files = []
            for path in paths:
                files.append(StoredFile(path.name, path.stat().st_size, checksum_file(path)))
                os.replace(path, self._folder / path.name)
                moved.append(self._folder / path.name)
            done = Done(Shard(records, tuple(files), elements) if records else None, skipped)
            content = asdict(done)
            content["checksum"] = _checksum(content)
            write_atomically(marker, json.dumps(content).encode(), durable=False)
            if not (self._folder / PLAN_NAME).exists():
                marker.unlink(missing_ok=True)
                raise given_up(self._folder)
        except BaseException:
            for path in moved:
                path.unlink(missing_ok=True)
            raise
        return done


def remove_remains(target: Path) -> None:
    """Remove the notes of a write of `target` that was killed after its store was in place."""
    folder = partial_folder(target)
    with suppress(OSError):
        notes = (PLAN_NAME, RUN_NAME, STOP_NAME, WORK_NAME)
        if all(path.name in notes or path.name.endswith(DONE_SUFFIX) for path in folder.iterdir()):
            shutil.rmtree(folder)


def find_done(folder: Path, number: int) -> Done | None:
    """What any worker has done for span `number` in `folder`, if its files are still what they were; otherwise None."""
    try:
        content = json.loads(read_plain(_marker(folder, number), LARGEST_MANIFEST_NBYTES))
        if content.pop("checksum") != _checksum(content):
            return None
        shard = None if content["shard"] is None else parse_shard(content["shard"])
        skipped = tuple(Skipped(whole_number(each["record"]), str(each["cause"])) for each in content["skipped"])
        whole = shard is None or all(_is_whole(folder / each.name, each) for each in shard.files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return Done(shard, skipped) if whole else None


def _is_whole(path: Path, file: StoredFile) -> bool:
    return why_not_own(path, links=False) is None and checksum_file(path) == file.xxh3_128


def is_stopped(folder: Path) -> bool:
    """Whether the write that made `folder` was given up, or the folder is gone."""
    # Once every few records: building two paths would cost more than asking for them.
    return not os.path.exists(f"{folder}/{PLAN_NAME}") or os.path.exists(f"{folder}/{STOP_NAME}")  # noqa: PTH110


def given_up(folder: Path) -> StoreError:
    """The error of a worker whose write in `folder` ended while it was at work."""
    return StoreError(f"the write in {folder} was given up: another shard failed, or it was interrupted")


def _marker(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}{DONE_SUFFIX}"


def _checksum(content: Mapping[str, Any]) -> str:
    return checksum_bytes(json.dumps(content).encode())


def _difference(found: bytes, plan: Mapping[str, Any]) -> str:
    try:
        other = json.loads(found)
        names = [name for name in plan if other.get(name) != plan[name]]
        return "; ".join(f"{name} was {other.get(name)!r} and is {plan[name]!r}" for name in names)
    except (ValueError, AttributeError, RecursionError):
        return f"its {PLAN_NAME} is damaged"
