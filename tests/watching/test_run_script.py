"""`etl run` changes nothing of a script but what it is told to: output, exit, arguments, `__main__` and errors."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from etl.temporary import temporary_folder
from etl.watching.diagnosis import Diagnosis
from etl.watching.script import describe, join_ranks, ranks_folder
from tests.programs import output_of, run_python
from tests.refusals import refusal
from tests.worker_processes import assert_ended

LOOP = """
import time
from torch.utils.data import DataLoader

def train(records=200):
    for number, batch in enumerate(DataLoader(range(records), batch_size=2)):
        time.sleep(0.005)
        if records == 10**6 and number == 20:
            print("has begun", flush=True)
"""
# A busy machine may change which verdict it is.
VERDICT = re.compile(r"^(?:cannot tell if )?(\S+) (?:waits|does not wait) for data\b.*\(95% interval ", re.MULTILINE)


def start(script: Path, *arguments: str, options: tuple[str, ...] = (), **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "etl", "run", *options, script.name, *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=script.parent, **pipes, **more)


def run(script: Path, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str, str]:
    """Return exit code, output and errors."""
    process = start(script, *arguments, options=options)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "train.py"


def test_output_arguments_and_main_are_those_of_python(script: Path) -> None:
    script.write_text(
        LOOP
        + "import sys, pickle\n"
        + "class Kept: pass\n"
        + "train()\n"
        + "print(sys.argv, __name__, __file__, sys.path[0], sys.modules['__main__'].Kept is Kept)\n"
        + "print(type(pickle.loads(pickle.dumps(Kept()))) is Kept, __builtins__.__name__, __spec__)\n"
    )
    arguments = ("--epochs", "3", "-m", "--json=x")
    plain = output_of(script.name, *arguments, cwd=script.parent)
    code, output, errors = run(script, *arguments)
    assert (code, output) == (0, plain)
    assert VERDICT.findall(errors) == ["train.py"]


def test_modules_are_found_as_by_python_with_a_safe_path(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = script.with_name("library")
    library.mkdir()
    (library / "mine.py").touch()
    script.write_text("import mine, sys\nprint(sys.path[0])\n")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(library), os.environ["PYTHONPATH"]]))
    code, output, errors = run(script)
    assert (code, output) == (0, f"{library}\n"), errors


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(3)", 3), ("sys.exit('it is over')", 1), ("os._exit(4)", 4), ("raise ValueError('no\\nsense')", 1)],
)
def test_however_a_script_ends_it_exits_the_same_and_there_is_a_report(script: Path, end: str, code: int) -> None:
    script.write_text(f"{LOOP}\nimport os, sys\ntrain()\n{end}\n")
    plain = run_python(script.name, cwd=script.parent)
    found, output, errors = run(script)
    assert (found, output) == (plain.returncode, plain.stdout) == (code, "")
    assert VERDICT.findall(errors) == ["train.py"]
    assert all(line in errors.splitlines() for line in plain.stderr.splitlines())  # the same traceback
    assert errors.count("Traceback") == plain.stderr.count("Traceback")
    assert "etl/watching" not in errors


@pytest.mark.parametrize(("end", "code"), [("", 2), ("os._exit(0)", 2), ("os._exit(4)", 4), ("sys.exit(3)", 3)])
def test_a_report_that_cannot_be_written_is_said_in_one_line_and_a_scripts_own_exit_code_stays(
    script: Path, end: str, code: int
) -> None:
    script.write_text(f"import os, sys\nos.mkdir('found.json')\n{end}\n")
    found, _, errors = run(script, options=("--json", "found.json"))
    assert found == code
    assert re.fullmatch("etl: .*found.json: cannot be written .*", errors.splitlines()[-1])
    assert "Traceback" not in errors


def test_ctrl_c_ends_it_as_it_ends_python_and_there_is_a_report(script: Path) -> None:
    script.write_text(f"{LOOP}\nimport atexit\natexit.register(print, 'at exit')\ntrain(10**6)\n")
    process = start(script)
    assert process.stdout is not None
    assert process.stdout.readline() == "has begun\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert output == "at exit\n"
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert VERDICT.findall(errors) == ["train.py"]


@pytest.mark.parametrize(("option", "batches"), [("--batches=30", 30), ("--epochs=2", 200), ("--seconds=2", None)])
def test_a_limit_ends_it_early_and_well(script: Path, option: str, batches: int | None) -> None:
    script.write_text(f"{LOOP}\nwhile True:\n    train()\n")
    file = script.with_suffix(".json")
    code, _, errors = run(script, options=(option, "--json", file.name))
    assert code == 0, errors
    ((found, *_),) = json.loads(file.read_text())["ranks"]
    assert batches is None or found["batches"] == batches


@pytest.mark.parametrize("handler", ["signal.default_int_handler", "signal.SIG_IGN", "lambda *_: None"])
def test_a_limit_ends_a_script_whose_loader_another_thread_reads(script: Path, handler: str) -> None:
    script.write_text(
        f"{LOOP}\n"
        "import queue, signal, threading\n"
        f"signal.signal(signal.SIGINT, {handler})\n"
        "batches = queue.Queue(2)\n"
        "def read():\n"
        "    while True:\n"
        "        for batch in DataLoader(range(200), batch_size=2):\n"
        "            batches.put(batch)\n"
        "threading.Thread(target=read, daemon=True).start()\n"
        "while True:\n"
        "    batches.get()\n"
    )
    code, _, errors = run(script, options=("--batches=20",))
    assert code == 0, errors
    assert VERDICT.findall(errors) == ["train.py"]
    assert "Traceback" not in errors


def test_a_limit_of_another_thread_does_not_end_what_shows_an_error(script: Path) -> None:
    script.write_text(
        f"{LOOP}\n"
        "import sys, threading\n"
        "def read():\n"
        "    for batch in DataLoader(range(200), batch_size=2): pass\n"
        "def show(*error):\n"
        "    reader = threading.Thread(target=read)\n"
        "    reader.start()\n"
        "    reader.join()\n"
        "    print('shown', flush=True)\n"
        "sys.excepthook = show\n"
        "raise ValueError\n"
    )
    code, output, errors = run(script, options=("--batches=20",))
    assert (code, output) == (1, "shown\n"), errors


def test_ranks_are_ended_by_the_batches_of_one_loop_since_they_may_have_others(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    script.write_text(f"{LOOP}\ntrain(records=40)\ntrain()\n")
    code, _, errors = run(script, options=("--batches=30", "--json", "found.json"))
    assert code == 0, errors
    (found,) = json.loads(script.with_name("found.json").read_text())["ranks"]
    assert sorted(each["batches"] for each in found) == [20, 30]


ENDINGS = """
import os, signal, sys, threading
from etl.watching.script import Script, run_script

def end_in_a_thread():
    thread = threading.Thread(target=os._exit, args=(3,))
    thread.start()
    thread.join(0.2)

def end_in_a_signal():
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
    signal.raise_signal(signal.SIGUSR1)

def report(found):
    print("reports", flush=True)
    {0}()
    print("reported", flush=True)
    return True

run_script(Script(sys.argv[1], False, []), report)
"""


@pytest.mark.parametrize(
    ("end", "output"), [("end_in_a_thread", "reports\nreported\n"), ("end_in_a_signal", "reports\n")]
)
def test_an_exit_of_another_thread_waits_for_the_report_and_one_of_a_signal_does_not(
    script: Path, end: str, output: str
) -> None:
    script.touch()
    done = run_python("-c", ENDINGS.format(end), script)
    assert (done.returncode, done.stdout) == (3, output), done.stderr


def test_a_look_at_the_first_batch_is_no_epoch(script: Path) -> None:
    script.write_text(
        f"{LOOP}\nloader = DataLoader(range(200), 2)\nnext(iter(loader))\nwhile True:\n    for batch in loader: pass\n"
    )
    code, _, errors = run(script, options=("--epochs=1", "--json", "found.json"))
    assert code == 0, errors
    ((found,),) = json.loads(script.with_name("found.json").read_text())["ranks"]
    assert found["batches"] == 101


LOADERS = """
class Endless:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler

class Repeating(DataLoader):  # as those of Ultralytics and timm
    def __init__(self, *arguments):
        super().__init__(*arguments)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

class Wrapping(DataLoader):
    def __iter__(self):
        yield from super().__iter__()
"""


@pytest.mark.parametrize("kind", ["Repeating", "Wrapping"])
def test_epochs_of_loaders_that_iterate_in_a_way_of_their_own_are_counted(script: Path, kind: str) -> None:
    script.write_text(
        f"{LOOP}{LOADERS}\n"
        f"loader = {kind}(range(20), 2)\n"
        "while True:\n"
        "    for batch in loader: pass\n"
        "    print('validates')\n"
    )
    code, output, errors = run(script, options=("--epochs=2", "--json", "found.json"))
    assert (code, output) == (0, 2 * "validates\n"), errors
    ((found,),) = json.loads(script.with_name("found.json").read_text())["ranks"]
    assert (found["batches"], found["epochs"]) == (20, 2)


def test_what_was_found_is_written_where_it_was_asked_for_though_the_script_changes_its_folder(script: Path) -> None:
    script.write_text("import os\nos.mkdir('elsewhere')\nos.chdir('elsewhere')\n")
    code, _, errors = run(script, options=("--json", "found.json"))
    assert code == 0, errors
    assert json.loads(script.with_name("found.json").read_text()) == {"first_rank": 0, "ranks": [[]]}


def test_what_was_found_is_written_though_the_script_has_closed_standard_error(script: Path) -> None:
    script.write_text("import sys\nsys.stderr.close()\n")
    code, _, _ = run(script, options=("--json", "found.json"))
    assert code == 0
    assert json.loads(script.with_name("found.json").read_text()) == {"first_rank": 0, "ranks": [[]]}


def test_a_further_machine_writes_a_file_of_its_own(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "8")
    script.touch()
    code, _, errors = run(script, options=("--json", "found.json"))
    assert code == 0, errors
    assert json.loads(script.with_name("found-rank8.json").read_text()) == {"first_rank": 8, "ranks": [[]]}


def test_on_standard_output_it_follows_what_the_script_printed_into_a_file(script: Path) -> None:
    script.write_text(f"{LOOP}\nprint('first', flush=True)\ntrain()\nprint('last')\n")
    command = [sys.executable, "-m", "etl", "run", "--json", "-", script.name]
    with script.with_name("output").open("w+") as output:
        subprocess.run(command, cwd=script.parent, stdout=output, stderr=subprocess.DEVNULL, timeout=120, check=True)
        output.seek(0)
        first, last, found = output.read().split("\n", 2)
    assert (first, last) == ("first", "last")
    assert json.loads(found)["ranks"]


def test_ranks_are_not_ended_at_steps_of_their_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert "--seconds would end each rank at another step" in refusal(capsys, "run", "--seconds", "2", "train.py")


def test_a_module_runs_with_its_arguments(script: Path) -> None:
    package = script.parent / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(f"{LOOP}\nimport sys\ntrain()\nprint(sys.argv[1:], __spec__.name)\n")
    code, output, errors = run(script.with_name("package.train"), "--fast", options=("-m",))
    assert (code, output) == (0, "['--fast'] package.train\n"), errors
    assert VERDICT.findall(errors) == ["package.train"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("missing.py", (), "missing.py"),
        ("missing", ("-m",), "there is no module 'missing'"),
        ("missing.train", ("-m",), "module 'missing.train' cannot be found: No module named 'missing'"),
        ("train.py", ("--epochs=0",), "--epochs must be above 0, not 0"),
        ("train.py", ("--json=no/such/found.json",), "--json no/such/found.json: there is no folder no/such"),
    ],
)
def test_a_wrong_call_is_one_line(script: Path, name: str, options: tuple[str, ...], message: str) -> None:
    script.touch()
    code, output, errors = run(script.with_name(name), options=options)
    assert (code, output) == (2, "")
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_a_syntax_error_is_shown_as_python_shows_it(script: Path) -> None:
    script.write_text("for\n")
    plain = run_python(script.name, cwd=script.parent)
    code, _, errors = run(script)
    assert code == plain.returncode == 1
    assert errors.startswith(plain.stderr)
    assert "internal error" not in errors


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_start_method_report_and_the_users_function_is_called(script: Path, method: str) -> None:
    script.write_text(
        "import os, time\n"
        "import numpy as np\n"
        "from torch.utils.data import DataLoader, Dataset\n"
        "class Records(Dataset):\n"
        "    def __len__(self):\n"
        "        return 240\n"
        "    def __getitem__(self, index):\n"
        "        assert greeted\n"
        "        np.sort(np.random.default_rng(index).random(500_000))\n"
        "        return index\n"
        "greeted = []\n"
        "def greet(number):\n"
        "    greeted.append(number)\n"
        "if __name__ == '__main__':\n"
        f"    method = {method!r}\n"
        "    loader = DataLoader(Records(), 4, num_workers=1, worker_init_fn=greet, multiprocessing_context=method)\n"
        "    assert sum(len(batch) for batch in loader) == 240\n"
        "    assert loader.worker_init_fn is greet\n"
    )
    code, _, errors = run(script)
    assert code == 0, errors
    assert "__getitem__ (train.py:9) takes" in errors


def test_a_script_that_forks_replaces_iter_or_has_no_loop_is_told_so(script: Path) -> None:
    script.write_text(
        f"{LOOP}\n"
        "import os\n"
        "def iterate(self):\n"
        "    return self._get_iterator()\n"
        "DataLoader.__iter__ = iterate\n"
        "child = os.fork()\n"
        "train()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
    )
    code, _, errors = run(script)
    assert code == 0, errors
    assert VERDICT.findall(errors) == ["train.py"]  # the child's loop is not watched
    script.write_text("print('no loop')\n")
    code, output, errors = run(script)
    assert (code, output) == (0, "no loop\n")
    assert "train.py: no loop over a torch DataLoader or an iterator of etl was seen in this process." in errors


def test_loops_over_iterators_of_etl_are_found_once(script: Path) -> None:
    script.write_text(
        "import time\n"
        "import numpy as np\n"
        "import etl\n"
        "records = [{'features': np.zeros(4, np.float32), 'label': number % 2} for number in range(400)]\n"
        "for batch in etl.AsyncIterator(etl.RawIterator(records, etl.Pipeline([]), 4)):\n"
        "    time.sleep(0.01)\n"
    )
    code, _, errors = run(script)
    assert code == 0, errors
    assert VERDICT.findall(errors) == ["train.py"]


def test_nothing_is_imported_that_the_script_may_have_to_prepare(script: Path) -> None:
    script.write_text("import sys\nprint({'torch', 'numpy', 'etl.iterators'} & sys.modules.keys())\n")
    _, output, _ = run(script)
    assert output == "set()\n"


def test_random_numbers_are_those_of_the_seed_that_the_script_has_set(script: Path) -> None:
    script.write_text("import random, time\nrandom.seed(0)\ntime.sleep(1)\nprint(random.random())\n")
    plain = output_of(script.name, cwd=script.parent)
    code, output, errors = run(script)
    assert (code, output) == (0, plain), errors


def test_what_a_killed_run_leaves_is_removed_by_a_later_command(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text(f"{LOOP.replace('batch_size=2', 'batch_size=2, num_workers=1')}\ntrain(10**6)\n")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with start(script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "has begun\n"
        (worker,) = psutil.Process(process.pid).children(recursive=True)
        (folder,) = tmp_path.glob("etl-watch-*")
        process.kill()
    assert_ended({worker.pid})
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    until = time.monotonic() + 60
    while folder.exists():  # the worker's threads, and its lock with them, may end a moment later
        assert time.monotonic() < until
        with temporary_folder("later"):
            time.sleep(0.02)


WAITS = Diagnosis("DataLoader of Records", "waits", 0.9, 0.8, 1.0, 0.1, 0.01, 100, 1, 0.1)
COMPUTES = replace(WAITS, verdict="computes", share=0.01, low=0.0, high=0.02)


@pytest.fixture
def second_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process the second of two ranks of torchrun, and return their temporary folder."""
    variables = {"LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "run", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("etl.watching.script.RANKS_SECONDS", 0.0)
    return tmp_path


def test_results_of_ranks_are_not_written_into_a_folder_of_someone_else(second_rank: Path) -> None:
    (second_rank / "theirs").mkdir()
    ranks_folder().symlink_to(second_rank / "theirs")
    with pytest.raises(PermissionError, match="belongs to another user"):
        join_ranks([])
    assert not list((second_rank / "theirs").iterdir())


@pytest.mark.parametrize(("is_restarted", "expected"), [(False, [[COMPUTES], [WAITS]]), (True, [[COMPUTES], []])])
@pytest.mark.usefixtures("second_rank")
def test_results_of_an_attempt_before_a_restart_do_not_count(
    monkeypatch: pytest.MonkeyPatch, is_restarted: bool, expected: list[list[Diagnosis]]
) -> None:
    assert join_ranks([WAITS]) is None
    if is_restarted:
        monkeypatch.setattr("etl.watching.script.BEGAN", time.monotonic())
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert join_ranks([COMPUTES]) == expected


def test_the_id_of_a_run_of_torchrun_may_be_any_text(second_rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "project/run 7")
    assert join_ranks([WAITS]) is None
    (folder,) = second_rank.iterdir()
    assert [each.name for each in folder.iterdir()] == ["1.json"]


@pytest.mark.usefixtures("second_rank")
def test_results_of_another_container_with_the_same_ids_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert join_ranks([WAITS]) is None
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert join_ranks([COMPUTES]) == [[COMPUTES], []]


def test_old_folders_of_ranks_that_were_killed_are_removed(second_rank: Path) -> None:
    ended = 2**22 + 1  # more than Linux ever has
    for name, launcher, age in (("left", ended, 10**6), ("young", ended, 60), ("running", os.getpid(), 10**6)):
        folder = second_rank / f"etl-run-{os.getuid()}-{name}-1-{launcher}"
        folder.mkdir()
        (folder / "1.json").touch()
        os.utime(folder, (time.time() - age,) * 2)
    join_ranks([])
    names = {each.name.split("-")[3] for each in second_rank.iterdir()}
    assert names == {"young", "running", "run"}


def test_ranks_have_their_numbers_among_all_machines() -> None:
    said = describe("train.py", [[COMPUTES], [WAITS]], first=8)
    assert said.startswith("rank 9 of train.py waits for data")
    assert said.endswith("in their steps for rank 9: a slow rank.")
    assert describe("train.py", [[COMPUTES], []], first=8).endswith("Nothing was found of rank 9.")


def test_ranks_that_are_faster_than_a_slow_one_do_not_wait_for_it() -> None:
    alone = replace(COMPUTES, wait_seconds=0.0001, step_seconds=0.01)
    said = describe("train.py", [[alone], [WAITS]])
    assert said.startswith("rank 1 of train.py waits for data")
    assert said.endswith("The other ranks wait for data at most 1% of the time.")


def test_a_notebook_runs_it_beside_itself_and_goes_on(script: Path) -> None:
    pytest.importorskip("IPython")
    script.write_text(f"{LOOP}\ntrain()\nimport sys; sys.exit(0)\n")
    cells = f"value = 1\n%run -m etl run {script.name}\nprint('value', value, __name__)"
    output = output_of("-m", "IPython", "--no-banner", "--quick", "-c", cells, cwd=script.parent)
    assert VERDICT.findall(output) == ["train.py"]
    assert output.splitlines()[-1] == "value 1 __main__"
