"""A disk that is full or fails: an error with path and bytes, nothing half made, and the space given back."""

from __future__ import annotations

import errno
import json
import mmap
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import presave
from tests.torture.conftest import HowMany, Tally
from tests.torture.failing_files import FailingFiles, all_below, tree

FORMATS = presave.formats()
WRITES = [("write", {"format": name, "jobs": 1 + number % 2}) for number, name in enumerate(FORMATS)]
OTHERS = [("convert", {"format": "torch"}), ("photographs", {}), ("digits", {}), ("digits", {"compress": False})]
# Full from some call on, as disks are; or one call that fails, as on a disk that is breaking.
KINDS = [
    ("full", errno.ENOSPC),
    ("fail", errno.EIO),
    ("full", errno.EDQUOT),
    ("fail", errno.ENOSPC),
]
PAGE_NBYTES = mmap.PAGESIZE
NOTES = re.compile(r"plan\.json|identity\.json|lock|run|stop|\d+\.done\.json")


def _check_left(left: Mapping[str, bytes | None], request: dict[str, Any]) -> None:
    """Nothing is left of a failed write but, where it can go on, whole shards and the notes that name them; `left` has
    the bytes of each file, and None for folders.
    """
    if not left:
        return
    folder, *others = sorted(left)
    assert (folder, left[folder]) == (".s.partial", None), (request, left)
    files = {name.removeprefix(".s.partial/"): left[name] for name in others}
    notes = [json.loads(content or b"") for name, content in files.items() if name.endswith(".done.json")]
    assert notes, (request, left)
    named = {file["name"] for note in notes for file in note["shard"]["files"]}
    shards = {name for name in files if not NOTES.fullmatch(name)}
    assert shards == named, (request, shards ^ named)


def _check_error(task: str, answer: dict[str, Any], place: Path, tried: object) -> None:
    assert answer["outcome"] == "error", tried
    assert answer["type"] == ("StoreError" if task in ("write", "convert") else "OSError"), tried
    assert str(place) in answer["message"], tried
    assert re.search(r"[\d,]+ bytes are free", answer["message"]), tried


def _fail(
    process: FailingFiles, task: str, arguments: dict[str, Any], request: dict[str, Any], whole: dict[str, bytes]
) -> str:
    """What came of one try."""
    place = process.place()
    answer = process.run(task, place, **request, arguments=arguments)
    tried = (task, arguments, request, answer)
    if answer["outcome"] == "done":
        assert tree(place) == whole, tried
        outcome = "not noticed, and whole"
    else:
        _check_error(task, answer, place, tried)
        _check_left(all_below(place), request)
        outcome = "an error with path and bytes, nothing half made"
        again = process.run(task, place, arguments=arguments)
        assert again["outcome"] == "done", (tried, again)
        assert tree(place) == whole, tried
    assert [path.name for path in place.iterdir()] == ["s"], tried
    shutil.rmtree(place)
    return outcome


@pytest.mark.parametrize(("task", "arguments"), WRITES + OTHERS)
def test_a_disk_that_is_full_or_fails_gives_an_error_and_leaves_nothing_half_made(
    task: str, arguments: dict[str, Any], failing_files: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    for request in _requests(failing_files, task, arguments, how_many(1, 10 if task == "write" else 6), how_many(2, 4)):
        outcome = _fail(failing_files, task, arguments, request, request.pop("whole"))
        tally(f"{_kind(request)}, {task}", outcome)


def test_a_report_that_cannot_be_written_is_an_error_and_leaves_the_old_one(
    failing_files: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    old = failing_files.place()
    failing_files.run("report", old, arguments={"title": "old"})
    for request in _requests(failing_files, "report", {"title": "new"}, how_many(1, 6), how_many(2, 4)):
        new, place = request.pop("whole"), failing_files.place()
        shutil.copytree(old, place, dirs_exist_ok=True)
        answer = failing_files.run("report", place, **request, arguments={"title": "new"})
        assert answer["outcome"] == "error", (request, answer)
        assert re.search(rf"etl: .*{place}/.*: cannot be written .* [\d,]+ bytes are free", answer["message"]), answer
        found = tree(place)
        assert found.keys() == new.keys(), (request, found.keys())
        assert found != new
        assert all(data in (new[name], tree(old)[name]) for name, data in found.items()), request
        tally(f"{_kind(request)}, reports of etl compare", "an error with path and bytes, the old file stays")


@pytest.mark.parametrize(("task", "arguments"), WRITES + OTHERS)
def test_a_small_disk_that_is_really_full_is_an_error_and_has_its_room_back(
    task: str, arguments: dict[str, Any], small_disks: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    drawn = random.Random(f"{task} {arguments}")
    whole = small_disks.run(task, small_disks.place(), disk="size=64m", arguments=arguments)
    for option, most in (("size", whole["taken"]), ("nr_inodes", len(whole["made"]))):
        step = PAGE_NBYTES if option == "size" else 1
        choices = range(step, most + step, step)
        for limit in sorted(drawn.sample(choices, min(how_many(1, 15), len(choices)))):
            disk, place = f"{option}={limit}", small_disks.place()
            answer = small_disks.run(task, place, disk=disk, arguments=arguments)
            tried = (task, arguments, disk, answer)
            assert answer["again"]["outcome"] == "done", tried
            assert answer["made"] == whole["made"], tried
            if answer["outcome"] == "done":
                tally(f"a tmpfs of a few pages or files, {option}, {task}", "room enough, and whole")
                continue
            _check_error(task, answer, place, tried)
            left = {
                name: None if content is None else bytes.fromhex(content) for name, content in answer["left"].items()
            }
            _check_left(left, {"disk": disk})
            assert left or answer["taken"] == 0, tried
            what = f"a tmpfs of a few pages or files, {option}, {task}"
            tally(what, "an error with path and bytes, nothing half made")


def _requests(
    process: FailingFiles, task: str, arguments: dict[str, Any], tries: int, kinds: int
) -> Iterator[dict[str, Any]]:
    """Requests that fail, spread over the calls that can; with each what an undisturbed run makes, as `whole`."""
    drawn = random.Random(f"{task} {arguments}")
    for action, number in KINDS[:kinds]:
        place = process.place()
        calls = process.run(task, place, action, call=0, arguments=arguments)["calls"]
        for call in sorted(drawn.sample(range(1, calls + 1), min(tries, calls))):
            yield {"action": action, "errno": number, "call": call, "whole": tree(place)}


def _kind(request: dict[str, Any]) -> str:
    kind = "a full disk" if request["action"] == "full" else "one call that fails"
    return f"{kind}, {errno.errorcode[request['errno']]}"


@pytest.mark.parametrize(("task", "arguments"), WRITES)
def test_a_limit_of_the_system_on_the_size_of_files_is_an_error_too(
    task: str, arguments: dict[str, Any], failing_files: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    place = failing_files.place()
    failing_files.run(task, place, arguments=arguments)
    whole = tree(place)
    largest = max(len(data) for data in whole.values())
    for number in range(how_many(1, 8)):
        request = {"action": "count", "largest": largest * (number + 1) // how_many(2, 9)}
        tally(f"a limit on the size of files, {task}", _fail(failing_files, task, arguments, request, whole))
