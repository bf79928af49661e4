"""A write whose process is killed while those that it has started write on: they do not get in the way of the next."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import presave
from tests.torture.conftest import HowMany, Tally
from tests.torture.failing_files import tree
from tests.torture.slow_writer import COUNT, SECONDS_A_RECORD

WRITER = Path(__file__).with_name("slow_writer.py")
LIMIT_SECONDS = 120
# What a record takes and what follows it is over long before.
WRITING_ON_SECONDS = 50 * SECONDS_A_RECORD
SHARDS = COUNT // 10


def start(place: Path) -> subprocess.Popen[bytes]:
    # In a session of its own, so that the processes it leaves behind can be found and ended.
    return subprocess.Popen([sys.executable, WRITER, place / "s"], start_new_session=True)


def wait_for_shards(place: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while len(list((place / ".s.partial").glob("*.done.json"))) < count:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.002)


@pytest.mark.skipif(sys.platform != "linux", reason="sessions of processes are Linux's here")
def test_processes_of_a_killed_write_do_not_disturb_the_next(tmp_path: Path, how_many: HowMany, tally: Tally) -> None:
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    assert start(undisturbed).wait(LIMIT_SECONDS) == 0
    drawn = random.Random(0)
    for number in range(how_many(1, 20)):
        place = tmp_path / str(number)
        place.mkdir()
        killed = start(place)
        try:
            wait_for_shards(place, drawn.randrange(1, SHARDS - 2), killed)
            time.sleep(drawn.uniform(0, 10 * SECONDS_A_RECORD))
            killed.kill()
            killed.wait()
            os.killpg(killed.pid, 0)  # they are there
            assert start(place).wait(LIMIT_SECONDS) == 0
            time.sleep(WRITING_ON_SECONDS)
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
        assert tree(place) == tree(undisturbed)
        assert [path.name for path in place.iterdir()] == ["s"]
        assert presave.verify(place / "s") == []
        tally("presave.write killed while its processes write on", "the next call made the same bytes")
