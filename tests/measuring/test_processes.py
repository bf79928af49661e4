"""Fresh processes: each session has its own state, and every failure is the same kind of error."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from etl.measuring.processes import MeasurementError, Server
from tests.programs import output_of
from tests.worker_processes import assert_ended, is_running

ROOT = Path(__file__).parents[2]
START = """
import sys
sys.path += sys.argv[1:3]
from etl.measuring.server import serve
serve()
"""
COMMAND = [sys.executable, "-c", START, str(ROOT), str(Path(__file__).parent), "served:prepare"]

Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:

        def start(does: str | None = None, **options: Any) -> Server:
            return stack.enter_context(Server("raw", COMMAND, {"does": does}, timeout=60.0, **options))

        yield start


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """A server whose sessions all end in order."""
    with Server("raw", COMMAND, {"does": None}, timeout=60.0) as server:
        server.wait_until_ready()
        yield server


def test_each_session_is_a_process_that_begins_in_the_state_of_the_server_and_keeps_its_own(shared: Server) -> None:
    pids = set()
    for _ in range(2):
        opened = shared.sample({"does": "remember"})
        assert opened["state"] == 2  # the server's own request was the first
        pids.add(opened["pid"])
    assert len(pids - {shared.pid}) == 2
    assert not any(map(is_running, pids))
    shared.ask({"does": "remember"})
    assert shared.ask({"does": "remember"})["state"] == 3
    shared.end_session()
    assert shared.sample({"does": "remember"})["state"] == 2


def test_a_process_with_a_thousand_open_files_hears_a_server(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("fewer files can be open here")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            stack.enter_context(Path(os.devnull).open())
        assert start().sample({"does": "remember"})["state"] == 2


@pytest.mark.parametrize("turns", [0, 1])
def test_an_error_is_raised_with_its_traceback_and_the_next_session_is_served(shared: Server, turns: int) -> None:
    for _ in range(turns):
        shared.ask({"does": "remember"})
    with pytest.raises(MeasurementError, match="raw cannot be measured: RuntimeError: it is broken") as raised:
        shared.ask({"does": "raise"})
    assert "in act" in raised.value.text
    assert not raised.value.is_input
    assert shared.sample({"does": "remember"})["state"] == 2


def test_wrong_input_says_only_what_is_wrong(shared: Server) -> None:
    with pytest.raises(MeasurementError, match=r"raw cannot be measured: photographs/3.jpg is no image$") as raised:
        shared.sample({"does": "refuse"})
    assert raised.value.is_input


def test_output_of_a_session_is_not_an_answer(shared: Server) -> None:
    assert shared.sample({"does": "print"})["state"] == 2


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("die", r"was killed by signal 9 \(out of memory\?\)"),
        ("die half way", r"was killed by signal 9 \(out of memory\?\)"),
        ("exit", "ended with exit code 3"),
    ],
)
def test_a_session_that_ends_is_an_error_that_says_how_before_what_was_written(
    start: Start, does: str, reason: str
) -> None:
    server = start()
    server.wait_until_ready()
    server.ask({"does": "print"})
    with pytest.raises(MeasurementError, match=f"the process of raw {reason}: an answer") as raised:
        server.ask({"does": does})
    message, *written = raised.value.text.splitlines()
    assert message == str(raised.value)
    assert written == ["an answer?"]


@pytest.mark.parametrize(("does", "reason"), [("die", "was killed by signal 9"), ("raise", "it is broken")])
def test_a_server_that_cannot_be_prepared_is_an_error_that_says_why(start: Start, does: str, reason: str) -> None:
    with pytest.raises(MeasurementError, match=reason):
        start(does).wait_until_ready()


def test_what_a_process_wrote_to_standard_error_is_in_the_error() -> None:
    with (
        pytest.raises(MeasurementError, match="ended with exit code 1: ZeroDivisionError") as raised,
        Server("raw", [sys.executable, "-c", "1 / 0"], {}, timeout=60) as server,
    ):
        server.wait_until_ready()
    assert "Traceback" in raised.value.text


@pytest.mark.parametrize(("is_earlier", "written"), [(True, ""), (False, r": an answer\?")], ids=["earlier", "same"])
def test_a_session_that_hangs_is_an_error_with_what_it_wrote_and_ends_with_the_server(
    start: Start, is_earlier: bool, written: str
) -> None:
    server = start()
    if is_earlier:
        server.sample({"does": "print"})
        pid = server.ask({"does": "remember"})["pid"]
    else:
        server.wait_until_ready()
        pid = server.ask({"does": "print"})["pid"]
    server.timeout = 1.0
    with pytest.raises(
        MeasurementError, match=rf"the process of raw gave no answer for 1 s{written}, at served.py:\d+ \(act\)$"
    ):
        server.ask({"does": "hang"})
    server.close()
    assert_ended({pid})


def test_a_server_has_the_environment_asked_for_and_runs_what_was_registered_for_its_exit(
    start: Start, tmp_path: Path
) -> None:
    server = start("register", hash_seed=7, environment={"NOTE": str(tmp_path / "note")})
    assert server.wait_until_ready()["seed"] == "7"
    server.end(60)
    assert (tmp_path / "note").exists()


def test_a_server_that_does_not_end_is_not_waited_for(start: Start) -> None:
    server = start("hang")
    server.end(0.1)
    assert is_running(server.pid)


def test_a_server_with_threads_serves_one_session_and_says_so(start: Start) -> None:
    server = start("thread")
    server.wait_until_ready()
    assert not server.can_fork
    assert server.sample({"does": "remember"})["pid"] == server.pid
    with pytest.raises(MeasurementError, match="has threads after its imports: it serves one session"):
        server.sample({"does": "remember"})


CLIENT = """
import sys
from etl.measuring.processes import Server
server = Server("raw", sys.argv[1:], {}, timeout=60)
server.wait_until_ready()
print(server.pid, server.ask({"does": "remember"})["pid"], flush=True)
server.ask({"does": "hang"})
"""


def test_a_server_and_a_session_that_hangs_end_with_a_client_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", CLIENT, *COMMAND], cwd=ROOT, stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        pids = {int(each) for each in client.stdout.readline().split()}
        assert len(pids) == 2
        client.kill()
    assert_ended(pids)


IGNORING = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from etl.measuring.processes import MeasurementError, Server
from tests.measuring.test_processes import COMMAND
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with Server("raw", COMMAND, {"does": None}, timeout=60.0) as server:
    print(server.sample({"does": "remember"})["state"], server.sample({"does": "remember"})["state"])
    try:
        server.sample({"does": "die"})
    except MeasurementError as error:
        print(error)
try:
    Server("raw", COMMAND, {"does": "die"}, timeout=60.0).wait_until_ready()
except MeasurementError as error:
    print(error)
"""


def test_servers_work_for_a_program_that_ignores_its_children() -> None:
    states, session, server = output_of("-c", IGNORING, ROOT).splitlines()
    assert states == "2 2"
    assert "was killed by signal 9" in session
    assert "has ended (why is unknown, because this program ignores SIGCHLD)" in server
