"""Temporary folders are removed however a process ends, and what a killed one leaves is removed by the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from etl.temporary import LOCK_FILE, Terminated, ending_in_order, temporary_folder
from tests.scratch import ROOT
from tests.worker_processes import assert_ended

# Makes a folder with a file in it, says so, and waits.
PROGRAM = """
import signal, sys, threading, time
from pathlib import Path
from etl.temporary import temporary_folder
{before}
def work():
    with temporary_folder("compare") as folder:
        (folder / "store").write_bytes(bytes(100))
        try:
            print(folder.name, flush=True)
            time.sleep(60)
        except Exception:
            pass
        finally:
            print("cleaned", flush=True)
{work}
print("went on", flush=True)
"""


def program(before: str = "", work: str = "work()") -> str:
    return PROGRAM.format(before=before, work=work)


def ended(code: str, folder: Path, *numbers: signal.Signals) -> tuple[int, list[str]]:
    """Run `code` with temporary files in `folder`, send it signals, and return its exit code and what it printed."""
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        assert (folder / name / "store").exists()
        for number in numbers:
            process.send_signal(number)
        said, _ = process.communicate(timeout=60)
    return process.returncode, said.splitlines()


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGHUP, signal.SIGTERM)])
def test_a_script_that_is_asked_to_end_removes_its_folder_and_dies_of_the_signal(
    numbers: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    code, said = ended(program(), tmp_path, *numbers)
    assert -code in numbers
    assert said == ["cleaned"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))", 7, ["cleaned"]),
        ("def end(*_): raise RuntimeError\nsignal.signal(signal.SIGTERM, end)", 0, ["cleaned", "went on"]),
    ],
)
def test_a_handler_of_the_script_stays_in_force(before: str, code: int, said: list[str], tmp_path: Path) -> None:
    assert ended(program(before), tmp_path, signal.SIGTERM) == (code, said)
    assert not list(tmp_path.iterdir())


# A user's data set skips what it cannot read, and its bare `except` catches the signal, too.
CAUGHT = """
import time
from etl.temporary import ending_in_order

def read():
    try:
        print("reads", flush=True)
        time.sleep(60)
    except:
        pass

with ending_in_order():
    while True:
        read()
"""


def test_a_second_signal_ends_a_process_whose_code_catches_the_first_and_goes_on() -> None:
    with subprocess.Popen([sys.executable, "-c", CAUGHT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "reads\n"
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize("work", ["work()", "threading.Thread(target=work, daemon=True).start(); time.sleep(60)"])
def test_what_a_killed_process_leaves_is_removed_by_the_next_and_what_is_in_use_is_not(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _ = ended(program(work=work), tmp_path, signal.SIGKILL)
    assert code == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    for suffix in ("", ".lock"):  # without a lock, and perhaps in use
        (tmp_path / f"etl-compare-of_an_earlier_version{suffix}").mkdir()
    (tmp_path / "etl-compare-link.locked").symlink_to(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("doctor") as one, temporary_folder("doctor") as other:
        assert not left.exists()
        assert one.is_dir()
        assert other.is_dir()
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "etl-compare-link.locked",
        "etl-compare-of_an_earlier_version",
        "etl-compare-of_an_earlier_version.lock",
    ]


def test_what_is_left_of_a_folder_whose_process_was_killed_while_removing_it_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etl-compare-left.locked").mkdir()
    (tmp_path / "etl-compare-left.locked" / "store").touch()  # the file of the lock went first
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("doctor"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("network_file_system")
def test_a_folder_that_another_machine_uses_is_left_where_folders_are_locked_for_one_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with temporary_folder("compare") as folder:
        with temporary_folder("compare"):
            pass
        assert folder.is_dir()
    assert not list(tmp_path.iterdir())


def test_the_folder_is_locked_itself_so_that_what_tidies_temporary_folders_leaves_its_files() -> None:
    with temporary_folder("compare") as folder:
        opened = os.open(folder, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(opened)


def test_a_folder_of_another_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "etl-compare-theirs.locked").mkdir()
    (tmp_path / "etl-compare-theirs.locked" / LOCK_FILE).touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with temporary_folder("doctor"):
        pass
    assert (tmp_path / "etl-compare-theirs.locked").is_dir()


COMPARE = """
import sys, etl
if __name__ == "__main__":
    etl.compare(sys.argv[1], ["raw", "presaved"], table_options={"label": "kind"}, compute="simulated:5ms")
"""


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        (["-c", COMPARE, "rows.csv"], signal.SIGHUP, -signal.SIGHUP),
        (["-m", "etl", "compare", "rows.csv", "--label", "kind"], signal.SIGHUP, 128 + signal.SIGHUP),
        (["-m", "etl", "doctor", "rows.csv", "--label", "kind", "--try"], signal.SIGTERM, 128 + signal.SIGTERM),
    ],
    ids=["script", "compare", "doctor"],
)
def test_no_process_and_no_file_is_left_when_measuring_is_ended(
    command: list[str], number: signal.Signals, code: int, tmp_path: Path
) -> None:
    (tmp_path / "rows.csv").write_text("a,kind\n" + "1,2\n" * 64)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, *command], env=environment, cwd=tmp_path) as process:
        until = time.monotonic() + 60
        while not list(temporary.glob("etl-*.locked")) and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(1)  # anywhere in the work
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(60) == code
    assert_ended({each.pid for each in started})
    assert not list(temporary.iterdir())


@ending_in_order()
def clean_up_badly(error: Exception | None) -> None:
    with contextlib.suppress(Terminated):
        signal.raise_signal(signal.SIGHUP)
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [None, OSError("the terminal is gone")])
def test_a_signal_ends_the_block_though_its_cleaning_fails_or_hides_it(error: Exception | None) -> None:
    with pytest.raises(Terminated, match="SIGHUP"):
        clean_up_badly(error)


def test_signals_have_their_default_meaning_again_after_the_block() -> None:
    with temporary_folder("doctor"):
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
