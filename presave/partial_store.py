"""A store that is being written: a folder beside its final place, from which an interrupted write continues.

The folder `.NAME.partial` holds

- `plan.json`, everything that decides the bytes of the store: a write with another plan cannot continue here;
- `identity.json`, what identified the records, to say what has changed;
- `lock`, which is locked by the process that is writing, or on a file system without locks `owner`, which names it;
- `run`, which holds the identifier of the current write and is renamed to `stop` to make its workers give up;
- for each complete shard, its files and `NNNNN.done.json`, which lists the files with their checksums;
- a folder for each shard that is being written, and a folder `whole.*` while the store moves to its final place.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from presave.content import difference, digest_json
from presave.errors import StoreError, disk_errors, is_shortage
from presave.files import checksum_file, flush, read_regular_file, set_mode, unsupported_reason, write_atomically
from presave.folder_lock import LOCK_NAME, OWNER_NAME, FolderLock
from presave.manifest import Manifest, Shard, Skipped, StoredFile
from presave.manifest_file import MANIFEST_NAME, MAX_MANIFEST_NBYTES, partial_folder, save_manifest
from presave.validate import parse_shard, whole_number

PLAN_NAME = "plan.json"
IDENTITY_NAME = "identity.json"
# Ten million files of a source.
MAX_IDENTITY_NBYTES = 2 << 30
# Entry of the plan: a checksum of what identifies the records.
IDENTITY = "identity"
STOP_NAME = "stop"
RUN_NAME = "run"
TASK_NAME = "work.pickle"
DONE_SUFFIX = ".done.json"
WHOLE_PREFIX = "whole."
# How often one write attempts a shard, since a worker process may be killed for reasons unrelated to it. Not more
# often than Dask does: when Dask gives a task up, the error never reaches joblib's caller, which then waits forever.
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class SpanResult:
    """The outcome of writing one span of consecutive records.

    Attributes
    ----------
    shard : Shard, optional
        The shard that was written; None if all records were skipped.
    skipped : tuple of Skipped
        The records that were skipped.
    first : tuple of int and int, optional
        Index and digest of the first record in the shard; None in shards of earlier versions.
    origins : str, optional
        Digest of what the records were read from; see `load_origins`.
    """

    shard: Shard | None
    skipped: tuple[Skipped, ...]
    first: tuple[int, int] | None = None
    origins: str | None = None


class PartialStore:
    """A context manager that owns the folder in which the store at `target` is written.

    Entering locks the folder against other processes. If the block raises, complete shards are kept for the next write.

    Parameters
    ----------
    plan : mapping of str to JSON value
        Everything that decides the bytes of the store.
    identity : mapping of str to JSON value
        What identifies the records that are written; empty if nothing does.

    Raises
    ------
    StoreError
        On entering, if the folder holds the beginning of another store, or another process is writing the same store.
    """

    def __init__(self, target: Path, plan: Mapping[str, Any], identity: Mapping[str, Any] | None = None) -> None:
        self.target = target
        self.folder = partial_folder(target)
        self._identity = dict(identity or {})
        self._plan = {**plan, IDENTITY: digest_json(self._identity)} if self._identity else plan
        self._encoded_plan = json.dumps(self._plan, indent=1).encode()
        self._owner: FolderLock | None = None
        self._is_discarded = False

    def __enter__(self) -> Self:
        with disk_errors(self.folder, len(self._encoded_plan)):
            self._make_folder()
            try:
                self._owner = FolderLock(self.folder)
                self._check_place()
                self._check_plan()
                self._tidy()
                write_atomically(self.folder / RUN_NAME, secrets.token_hex(4).encode())
            except BlockingIOError:
                self._release()
                raise StoreError(f"another process is writing {self.target} (in {self.folder})") from None
            except StoreError:
                self._release()
                raise
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._release()
        else:
            self._leave()

    def stop(self) -> None:
        """Tell the workers in all processes to start no further record."""
        # A rename, because a full disk may have no room for another file. If the rename fails, workers only finish
        # shards that are not needed.
        with suppress(OSError):
            os.replace(self.folder / RUN_NAME, self.folder / STOP_NAME)

    def flush(self, number: int, result: SpanResult) -> None:
        """Flush the files of span `number` to the disk, as `finish` requires."""
        files = result.shard.files if result.shard is not None else ()
        for file in files:
            with disk_errors(self.folder / file.name, file.nbytes):
                try:
                    flush(self.folder / file.name)
                except OSError:
                    # Read again, the file may look complete: the data are still in memory, although the system has
                    # given up writing them to the disk. So the shard is removed, to be written again.
                    _marker(self.folder, number).unlink(missing_ok=True)
                    for each in files:
                        (self.folder / each.name).unlink(missing_ok=True)
                    raise

    def finish(self, manifest: Manifest) -> None:
        """Make the store appear at `target`, all at once, and remove the partial folder.

        The files of `manifest` must have been flushed.
        """
        with disk_errors(self.target, manifest.nbytes):
            # Through a new folder, because workers of an abandoned write may still add files to the old one.
            whole = Path(tempfile.mkdtemp(prefix=WHOLE_PREFIX, dir=self.folder))
            try:
                set_mode(whole, self.folder.stat().st_mode)
                for file in (file for shard in manifest.shards for file in shard.files):
                    os.rename(self.folder / file.name, whole / file.name)
                save_manifest(manifest, whole)
                flush(whole)
                try:
                    os.rename(whole, self.target)
                except OSError as error:
                    if not is_shortage(error):
                        raise
                    # No rename opens files: gcsfuse has this error for folders above a limit, by default for all.
                    count = sum(len(shard.files) for shard in manifest.shards) + 1
                    raise StoreError(
                        f"{self.target}: its file system renames no folder of {count:,} files; mount gcsfuse with "
                        "--rename-dir-limit, then write again to continue, or write to another disk and copy the store"
                    ) from error
                flush(self.target.parent)
            except BaseException:
                with suppress(OSError):
                    if not whole.exists():
                        os.rename(self.target, whole)
                    self._take_back(whole)
                raise
        self.discard()

    def discard(self) -> None:
        """Empty the folder, which is removed when it is released, so that the next write begins anew."""
        self._is_discarded = True
        # The plan goes first: a worker that has just completed a shard removes it again if there is no plan.
        with suppress(OSError):
            (self.folder / PLAN_NAME).unlink()
        # The lock goes last: until then, no other process begins to write here.
        with suppress(OSError):
            for path in self.folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name not in (LOCK_NAME, OWNER_NAME):
                    with suppress(OSError):
                        path.unlink()

    def _make_folder(self) -> None:
        if self.folder.is_symlink():  # _tidy would delete files in the link's target
            raise StoreError(f"{self.folder} is a link, which no write has left; remove it")
        self.folder.mkdir(parents=True, exist_ok=True)

    def _leave(self) -> None:
        """Release the folder after a failed write. Remove the folder if it holds no complete shard."""
        if self._owner is None:
            with suppress(OSError):
                self.folder.rmdir()
        elif not any(self.folder.glob(f"*{DONE_SUFFIX}")):
            self.discard()
        self._release()

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.release(self._is_discarded)

    def _tidy(self) -> None:
        """Undo a `finish` that was killed, and remove what killed workers left."""
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
        """Undo `finish`: move the shards back, so that a write can continue with them."""
        (whole / MANIFEST_NAME).unlink(missing_ok=True)
        for path in whole.iterdir():
            os.rename(path, self.folder / path.name)
        whole.rmdir()

    def _check_place(self) -> None:
        # Before this process got the lock, another one may have completed the store.
        if self.target.exists():
            self._is_discarded = True  # the folder is removed unless it holds something
            raise StoreError(f"{self.target} exists already: another process has just written it")

    def _check_plan(self) -> None:
        path = self.folder / PLAN_NAME
        try:
            found = read_regular_file(path, MAX_MANIFEST_NBYTES)
        except FileNotFoundError:
            for marker in self.folder.glob(f"*{DONE_SUFFIX}"):  # shards written under an unknown plan
                marker.unlink()
            if self._identity:
                write_atomically(self.folder / IDENTITY_NAME, json.dumps(self._identity).encode())
            write_atomically(path, self._encoded_plan)
            return
        except ValueError as error:
            raise StoreError(f"{path}: {error}; delete {self.folder}") from None
        if found != self._encoded_plan:
            raise StoreError(
                f"{self.folder} holds the beginning of another store of that name: {self._difference(found)}; "
                "delete that folder, or write with the same arguments and records to continue"
            )

    def _difference(self, found: bytes) -> str:
        try:
            other = json.loads(found)
            changes = {name: (other.get(name), self._plan.get(name)) for name in {**other, **self._plan}}
            names = [name for name, (before, now) in changes.items() if json.dumps(before) != json.dumps(now)]
            said = [_describe_change(name, *changes[name]) for name in names if name != IDENTITY]
        except (ValueError, AttributeError, TypeError, RecursionError):
            return f"its {PLAN_NAME} is damaged"
        if IDENTITY in names:
            said.append(self._identity_difference() if IDENTITY in other else "it does not say what was read")
        return "; ".join(said)

    def _identity_difference(self) -> str:
        try:
            before = json.loads(read_regular_file(self.folder / IDENTITY_NAME, MAX_IDENTITY_NBYTES))
            return f"its records have changed since: {difference(before, self._identity)}"
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return "its records have changed since"


class ShardFolder:
    """A context manager for a worker: a new folder for the files of one span, removed at the end.

    `commit` moves the files into the partial store, all of them or none. A killed worker leaves its folder behind, and
    these folders count the attempts.

    Raises
    ------
    StoreError
        On entering, if `MAX_ATTEMPTS` workers died while they wrote this span, or the write was given up.
    """

    def __init__(self, folder: Path, number: int, span: range) -> None:
        self._folder = folder
        self._number = number
        self._span = span
        self._run = ""
        self.path = folder

    def __enter__(self) -> Self:
        # The name contains the run, because a worker of an earlier run may still be at work in its own folder.
        with disk_errors(self._folder, 0):
            try:
                self._run = (self._folder / RUN_NAME).read_text()
            except FileNotFoundError:
                raise aborted_error(self._folder) from None
            for attempt in range(MAX_ATTEMPTS):
                self.path = self._folder / f"{self._number:05d}.{self._run}.{attempt}"
                with suppress(FileExistsError):
                    self.path.mkdir()
                    return self
        raise StoreError(
            f"records {self._span[0]} to {self._span[-1]}: {MAX_ATTEMPTS} worker processes died while they wrote them "
            f"to {self._folder}; check these records and the workers' memory, or write smaller shards"
        )

    def __exit__(self, kind: object, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if kind is not None:
            with suppress(OSError):  # removes the partial store if this was the last worker of an abandoned write
                self._folder.rmdir()

    def commit(
        self,
        paths: list[Path],
        records: int,
        elements: dict[str, int],
        skipped: tuple[Skipped, ...],
        content: str | None = None,
        first: tuple[int, int] | None = None,
        origins: list[str] | None = None,
    ) -> SpanResult:
        """Move `paths`, the files of the shard, into the partial store, and record that the span is complete.

        Nothing is flushed to the disk here. If the machine crashes before the flush, the next write recognizes an
        incomplete file by its checksum.
        """
        if self._is_superseded():
            raise aborted_error(self._folder)
        marker = _marker(self._folder, self._number)
        moved: list[Path] = []
        try:
            files = []
            for path in paths:
                files.append(StoredFile(path.name, path.stat().st_size, checksum_file(path)))
                os.replace(path, self._folder / path.name)
                moved.append(self._folder / path.name)
            shard = Shard(records, tuple(files), elements, content) if records else None
            result = SpanResult(shard, skipped, first, digest_json(origins or []))
            values = {**asdict(result), "read": origins or []}
            values["checksum"] = digest_json(values)
            write_atomically(marker, json.dumps(values).encode(), durable=False)
            if not (self._folder / PLAN_NAME).exists():
                marker.unlink(missing_ok=True)
                raise aborted_error(self._folder)
        except BaseException:
            for path in moved if not self._is_superseded() else []:  # or they may be those of the next write
                path.unlink(missing_ok=True)
            raise
        return result

    def _is_superseded(self) -> bool:
        """Return True if another write has begun in the folder since."""
        with suppress(OSError):
            return (self._folder / RUN_NAME).read_text() != self._run
        return False


def load_origins(folder: Path, number: int) -> list[str]:
    """Return what the records of the complete span `number` were read from."""
    return list(json.loads(read_regular_file(_marker(folder, number), MAX_MANIFEST_NBYTES))["read"])


def load_span_result(folder: Path, number: int) -> SpanResult | None:
    """Return the recorded result of span `number`, or None if there is none or its files are missing or damaged."""
    try:
        content = json.loads(read_regular_file(_marker(folder, number), MAX_MANIFEST_NBYTES))
        if content.pop("checksum") != digest_json(content):
            return None
        shard = None if content["shard"] is None else parse_shard(content["shard"])
        skipped = tuple(Skipped(whole_number(each["record"]), str(each["cause"])) for each in content["skipped"])
        first = content.get("first")
        first = None if first is None else (int(first[0]), int(first[1]))
        is_intact = shard is None or all(_is_intact(folder / each.name, each) for each in shard.files)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        if is_shortage(error):
            raise
        return None
    return SpanResult(shard, skipped, first, content.get("origins")) if is_intact else None


def is_stopped(folder: Path) -> bool:
    """Return True if the write into `folder` was given up, or the folder is gone."""
    # Workers call this every few records, and two Path objects would cost more than the two system calls.
    return not os.path.exists(f"{folder}/{PLAN_NAME}") or os.path.exists(f"{folder}/{STOP_NAME}")  # noqa: PTH110


def aborted_error(folder: Path) -> StoreError:
    """Return the error for a worker that is still running when the write into `folder` has ended."""
    return StoreError(f"the write in {folder} was given up: another shard failed, or the write was interrupted")


def remove_leftovers(target: Path) -> None:
    """Remove the partial folder that a write leaves if it is killed just after its store appeared at `target`.

    A folder that holds data is kept.
    """
    folder = partial_folder(target)
    with suppress(OSError):
        notes = (PLAN_NAME, IDENTITY_NAME, LOCK_NAME, OWNER_NAME, RUN_NAME, STOP_NAME, TASK_NAME)
        if all(path.name in notes or path.name.endswith(DONE_SUFFIX) for path in folder.iterdir()):
            shutil.rmtree(folder)


def _describe_change(name: str, before: Any, now: Any) -> str:
    """Return how an entry of the plan has changed, in words."""
    if isinstance(before, dict) and isinstance(now, dict):
        return f"in {name}, {difference(before, now)}"
    return f"{name} was {before!r} and is {now!r}"


def _is_intact(path: Path, file: StoredFile) -> bool:
    return unsupported_reason(path, allow_links=False) is None and checksum_file(path) == file.xxh3_128


def _marker(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}{DONE_SUFFIX}"
