"""Threads and processes that raise, hang, are killed or run out of memory: one error at the right batch, and the next
epoch is right to the bit."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain, islice
from multiprocessing import active_children, forkserver
from pathlib import Path

import psutil
import pytest

import etl
from etl.stages.stage import AnyStage
from tests.leftovers import Leftovers
from tests.torture.conftest import HowMany, Tally
from tests.unlucky_records import Files, Unlucky, slowly

POSITIONS = {"first": 0, "middle": 2, "last": 4}
# Also what a healthy batch on a busy machine has.
TIMEOUT_SECONDS = 3.0
# Iterators that hang at the same time.
LANES = 16


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = Leftovers.now()
    yield
    before.assert_the_same()


def make(workers: str, fault: Path, *stages: AnyStage) -> etl.AsyncIterator:
    raw = etl.RawIterator(Files(fault), etl.Pipeline([Unlucky(fault, workers == "thread"), *stages]), 4, shuffle=True)
    number = {"thread": {"threads": 2}, "process": {"processes": 2}}[workers]
    return etl.AsyncIterator(raw, 3, workers=workers, timeout=TIMEOUT_SECONDS, **number)


def contents(batch: etl.Batch) -> tuple[bytes, bytes]:
    return batch.features.tobytes(), batch.labels.tobytes()


def plain_epoch(number: int) -> list[etl.Batch]:
    plain = etl.RawIterator(Files(Path()), etl.Pipeline([]), 4, shuffle=True)
    plain.set_epoch(number)
    return list(plain)


def until_error(batches: Iterator[etl.Batch], got: list[tuple[bytes, bytes]]) -> BaseException | None:
    try:
        for batch in batches:
            got.append(contents(batch))  # noqa: PERF401 - those before the error count
    except Exception as error:  # noqa: BLE001 - which one is what is asked
        return error
    return None


def fail_once(iterator: etl.AsyncIterator, fault: Path, how: str, place: int, number: int) -> BaseException:
    """The error of epoch `number`, in which `how` happens at a record of the batch at `place`; the epoch after it is
    checked, too.
    """
    said = f"epoch {number}, {how} at batch {place}"
    expected = plain_epoch(number)
    record = random.Random(f"{how} {place} {number}").choice(expected[place].labels.tolist())
    fault.write_text(f"{record} {how}")
    iterator.set_epoch(number)
    batches = iter(iterator)
    got: list[tuple[bytes, bytes]] = []
    error = until_error(batches, got)
    assert error is not None, said
    assert got == [contents(batch) for batch in expected[:place]], said
    assert next(batches, None) is None, said
    assert (iterator.epoch, iterator.state_dict()["position"]) == (number, 4 * place), said
    assert f"record {record} of photos ({record:02}.jpg): failed at stage 'unlucky'" in str(error), said
    fault.unlink()
    assert [contents(batch) for batch in iterator] == [contents(batch) for batch in expected], said
    return error


@pytest.mark.parametrize(
    ("workers", "how", "cause", "text"),
    [
        ("thread", "raises", OSError, "disk on fire"),
        ("thread", "hangs", TimeoutError, "not finished after 3 s of waiting for its batch"),
        ("thread", "runs out of memory", MemoryError, "Unable to allocate 2.00 GiB"),
        ("process", "raises", OSError, "disk on fire"),
        ("process", "hangs", TimeoutError, "not finished after 3 s of waiting for its batch"),
        ("process", "is stopped", TimeoutError, "not finished after 3 s of waiting for its batch"),
        ("process", "runs out of memory", MemoryError, "Unable to allocate 2.00 GiB"),
        ("process", "is killed", ChildProcessError, r"worker process \d+ was killed by signal 9 \(out of memory\?\)"),
    ],
)
def test_one_error_at_its_batch_and_the_next_epoch_is_right(
    workers: str, how: str, cause: type[Exception], text: str, tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    tries = [(position, number) for number in range(how_many(1, 200)) for position in POSITIONS]
    lanes = min(LANES, len(tries)) if cause is TimeoutError else 1

    def fail(lane: int) -> list[str]:
        fault = tmp_path / str(lane)
        with make(workers, fault) as iterator:
            for position, number in tries[lane::lanes]:
                error = fail_once(iterator, fault, how, POSITIONS[position], number)
                assert isinstance(error.__cause__, cause)
                assert re.search(text, str(error))
        return [position for position, _ in tries[lane::lanes]]

    with ThreadPoolExecutor(lanes) as pool:
        for position in chain.from_iterable(pool.map(fail, range(lanes))):
            tally(f"a worker fails, a {workers} {how}, {position} batch", "one error at that batch, next epoch right")


def kill_one(chance: random.Random, before: set[int]) -> None:
    """Kill a worker process that is not among `before`, wherever it is."""
    own = [each for each in active_children() if each.name == "etl-worker" and each.pid not in before]
    if own:
        chance.choice(own).kill()


def test_a_process_killed_from_outside_at_any_moment_costs_one_error_at_most(
    tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    before = {each.pid for each in active_children()}
    with make("process", tmp_path / "none", slowly) as iterator:
        list(iterator)
        for number in range(how_many(8, 200)):
            chance = random.Random(number)
            iterator.set_epoch(number)
            expected = [contents(batch) for batch in plain_epoch(number)]
            place, wait_seconds = chance.randrange(6), chance.choice([0, 0.001, 0.002])
            batches, got = iter(iterator), []
            got += [contents(batch) for batch in islice(batches, place)]
            time.sleep(wait_seconds)
            kill_one(chance, before)
            error = until_error(batches, got)
            said = f"try {number}: killed at batch {place} after {wait_seconds} s, got {len(got)}, then {error!r}"
            assert got == expected[: len(got)], said
            if error is None:
                assert got == expected, said
            else:
                assert "was killed by signal 9" in str(error), said
                assert len(got) < len(expected), said
                assert next(batches, None) is None, said
            assert iterator.epoch == number + (error is None), said
            iterator.set_epoch(number)
            assert [contents(batch) for batch in iterator] == expected, said
            outcome = "no error, epoch whole" if error is None else "one error"
            tally("a worker process is killed at any moment", f"{outcome}, next epoch right")


def test_a_process_killed_while_it_starts_costs_one_error_at_most(
    tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    before = {each.pid for each in active_children()}
    expected = [contents(batch) for batch in plain_epoch(0)]
    for number in range(how_many(3, 200)):
        chance = random.Random(number)
        with make("process", tmp_path / "none") as iterator:
            time.sleep(chance.choice([0, 0.001, 0.01, 0.03]))
            kill_one(chance, before)
            got: list[tuple[bytes, bytes]] = []
            error = until_error(iter(iterator), got)
            said = f"try {number}: got {len(got)}, then {error!r}"
            assert got == expected[: len(got)], said
            assert error is not None or got == expected, said
            assert error is None or "was killed by signal 9" in str(error), said
            iterator.set_epoch(0)
            assert [contents(batch) for batch in iterator] == expected, said
        outcome = "no error, epoch whole" if error is None else "one error"
        tally("a worker process is killed while it starts", f"{outcome}, next epoch right")


def test_the_server_that_forks_processes_killed_costs_one_error_at_most(
    tmp_path: Path, how_many: HowMany, tally: Tally
) -> None:
    expected = [contents(batch) for batch in plain_epoch(0)]
    for number in range(how_many(1, 10)):
        with make("process", tmp_path / "none") as iterator:
            batches = iter(iterator)
            got = [contents(batch) for batch in islice(batches, number % 4)]
            forkserver.ensure_running()  # before the first batch it may not have begun
            server = psutil.Process(forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
            server.kill()
            errors = [until_error(batches, got)]
            said = f"try {number}: got {len(got)}, then {errors!r}"
            assert got == expected[: len(got)], said
            assert errors[0] is not None or got == expected, said
            # On a busy machine it is there for longer than an epoch takes.
            with suppress(psutil.NoSuchProcess):  # starting another one removes it
                while server.status() != psutil.STATUS_ZOMBIE:
                    time.sleep(0.001)
            for _ in range(2):  # the loss of their server may be found only when the next epoch has begun
                iterator.set_epoch(0)
                again: list[tuple[bytes, bytes]] = []
                errors.append(until_error(iter(iterator), again))
                assert again == expected[: len(again)], errors
            assert again == expected, errors
            assert errors.count(None) >= 2, errors
        outcome = "no error" if errors.count(None) == 3 else "one error"
        tally("the server that forks worker processes is killed", f"{outcome}, next epoch right")
    forkserver.ensure_running()  # which waits for the one that was killed
