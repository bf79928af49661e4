"""Whatever is killed, and wherever: what is in place is whole, and the next call makes the rest to the same bytes."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import presave
from tests.torture.conftest import HowMany, Tally
from tests.torture.failing_files import FailingFiles, tree

FORMATS = presave.formats()
OTHERS = [("convert", {"format": "hdf5"}), ("photographs", {}), ("digits", {}), ("digits", {"compress": False})]


def _points(process: FailingFiles, task: str, arguments: dict[str, Any], tries: int) -> tuple[dict[str, bytes], list]:
    """What an undisturbed run makes, and requests that kill one: half of them by call, half by time."""
    place = process.place()
    whole = process.run(task, place, arguments=arguments)
    assert whole["outcome"] == "done", whole
    drawn = random.Random(f"{task} {arguments}")
    calls = range(1, whole["calls"] + 1)
    chosen = drawn.sample(calls, min(-(-tries // 2), len(calls)))
    requests = [{"action": "kill", "call": call} for call in sorted(chosen)]
    requests += [
        {"action": "count", "delay": whole["seconds"] * (number + drawn.random()) / (tries - len(requests))}
        for number in range(tries - len(requests))
    ]
    return tree(place), requests


def _kill(
    process: FailingFiles, task: str, arguments: dict[str, Any], tries: int, what: str, tally: Tally, again: int
) -> None:
    whole, requests = _points(process, task, arguments, tries)
    for request in requests:
        place = process.place()
        for _ in range(again):  # each time in what the one before has left
            ended = process.run(task, place, **request, arguments=arguments)
            assert ended["outcome"] in ("killed", "done") or "exists already" in ended["message"], (request, ended)
        tally(what, _look(place, whole, task, request))
        last = process.run(task, place, arguments=arguments)
        assert last["outcome"] == "done" or "exists already" in last["message"], (request, last)
        assert tree(place) == whole, (task, arguments, request)
        assert [path.name for path in place.iterdir()] == ["s"], (task, arguments, request)
        shutil.rmtree(place)


def _look(place: Path, whole: dict[str, bytes], task: str, request: dict[str, Any]) -> str:
    """What a kill has left at the place of the data."""
    if not (place / "s").exists():
        return "nothing until the next call made the same bytes"
    found = {f"s/{name}": data for name, data in tree(place / "s").items()}
    assert found == whole, (task, request)
    if task in ("write", "convert"):
        assert presave.verify(place / "s") == []
        presave.open_store(place / "s", trusted=True).close()
    return "complete"


@pytest.mark.parametrize("name", FORMATS)
def test_a_store_whose_write_is_killed_is_whole_or_not_there_and_goes_on_to_the_same_bytes(
    name: str, failing_files: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    jobs = 1 + FORMATS.index(name) % 2
    tries = how_many(2, 90)
    _kill(failing_files, "write", {"format": name, "jobs": jobs}, tries, f"presave.write killed, {name}", tally, 1)
    tries = how_many(1, 12)
    what = f"presave.write killed twice, {name}"
    _kill(failing_files, "write", {"format": name, "jobs": 3 - jobs}, tries, what, tally, 2)


@pytest.mark.parametrize(("task", "arguments"), OTHERS)
def test_other_data_whose_making_is_killed_is_whole_or_not_there(
    task: str, arguments: dict[str, Any], failing_files: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    what = "presave.convert killed" if task == "convert" else f"demonstration {task} killed"
    _kill(failing_files, task, arguments, how_many(2, 30), what, tally, 1)


def test_a_report_whose_writing_is_killed_is_the_old_one_or_the_new_one(
    failing_files: FailingFiles, how_many: HowMany, tally: Tally
) -> None:
    old, requests = _points(failing_files, "report", {"title": "old"}, how_many(2, 60))
    new, _ = _points(failing_files, "report", {"title": "new"}, 1)
    for request in requests:
        place = failing_files.place()
        for name, data in old.items():
            (place / name).write_bytes(data)
        failing_files.run("report", place, **request, arguments={"title": "new"})
        for name in old:
            found = (place / name).read_bytes()
            assert found in (old[name], new[name]), (request, name)
            tally("etl compare killed while it writes its reports", "the old file" if found == old[name] else "the new")
        shutil.rmtree(place)
