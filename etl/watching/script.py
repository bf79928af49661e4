"""A script that runs as it would without etl, while its loops are watched, and what they wait for at its end."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.util
import json
import os
import runpy
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import psutil

from etl.runtime.resources import rank_cpus
from etl.watching.diagnosis import NOTICEABLE, Diagnosis, diagnose
from etl.watching.hooks import watch_all
from etl.watching.session import Session
from etl.watching.times import LoopTimes

# Results of ranks that are older are those of an attempt before a restart.
BEGAN = time.monotonic()
# Seconds that the first rank waits for the others' results.
RANKS_SECONDS = 10.0
# Ends the main thread when another one reaches a limit. A script may handle SIGINT, and a shell starts programs in the
# background with SIGINT ignored, so SIGINT is only for systems that have no such signal.
END_SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGINT)
# Folders in which ranks meet are left behind if they are older than this.
LEFT_SECONDS = 86400.0


@dataclass(frozen=True)
class Script:
    """A script to run. It ends early after so many epochs of a loader, batches of all loaders, or seconds of loops."""

    # The path of the file, or the name of the module.
    target: str
    is_module: bool
    # What the script finds in `sys.argv` after its own name.
    arguments: Sequence[str]
    epochs: int | None = None
    batches: int | None = None
    seconds: float | None = None


def run_script(script: Script, report: Callable[[list[Diagnosis]], bool]) -> NoReturn:
    """Run a script, call `report` with the diagnosis of each of its loops when it ends, and exit as it does.

    However it ends: by an exception, a signal of the terminal or `os._exit`, but not if it is killed. `report`
    returns False if it has failed, after saying so: a script that has ended well then exits with 2.

    Raises
    ------
    OSError
        If the script cannot be read.
    ValueError
        If there is no such module.
    """
    run = _prepared(script)
    session = Session(lambda times, _: _end_if_enough(script, session, times))
    is_reported: list[bool] = []
    reporting = threading.RLock()  # a signal handler of the script may call `os._exit` in the midst of it

    def end() -> bool:
        if not session.is_here:  # a fork may have inherited the lock
            return True
        with reporting:
            if is_reported:
                return True
            is_reported.append(True)
            session.is_over = True
            session.stop()
            return report(diagnoses(session))

    leave = os._exit

    def leave_at_once(code: int) -> NoReturn:
        leave(code if end() else code or 2)

    def end_main_thread(*_: object) -> None:
        if not is_reported:
            raise SystemExit(0)

    os._exit = leave_at_once  # type: ignore[assignment]
    if END_SIGNAL != signal.SIGINT:
        signal.signal(END_SIGNAL, end_main_thread)
    watch_all(session)
    session.start()
    try:
        run()
        sys.exit(0)
    except SystemExit as error:
        if not end() and error.code in (None, 0):
            sys.exit(2)
        raise
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it
        if session.is_over and isinstance(error, KeyboardInterrupt):  # of `_end_if_enough`
            sys.exit(0 if end() else 2)
        session.is_over = True  # a limit that another thread reaches now must not end what shows the error
        trace = _within(error, run)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        with contextlib.suppress(OSError, ValueError):  # the script may have closed it
            sys.stderr.flush()
        end()
        if isinstance(error, KeyboardInterrupt):  # as Python ends: when all is done, and so that a shell sees it
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        sys.exit(1)


def _prepared(script: Script) -> Callable[[], object]:
    """Return a function that runs the script, with `sys.argv`, `sys.path` and `__main__` as Python sets them."""
    sys.argv = [script.target, *script.arguments]
    if script.is_module:
        _search_first(Path.cwd())
        try:
            spec = importlib.util.find_spec(script.target)
        except ImportError as error:  # of the package around it
            raise ValueError(f"module {script.target!r} cannot be found: {error}") from error
        if spec is None:
            raise ValueError(f"there is no module {script.target!r}")
        return lambda: runpy.run_module(script.target, run_name="__main__", alter_sys=True)
    path = Path(script.target).absolute()
    text = path.read_bytes()
    main = types.ModuleType("__main__")
    main.__file__ = str(path)
    main.__dict__["__builtins__"] = builtins
    _search_first(path.resolve().parent)

    def run() -> None:
        sys.modules["__main__"] = main
        exec(compile(text, str(path), "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the user's script

    return run


def _search_first(folder: Path) -> None:
    """Let modules be found in `folder` instead of in the folder of this command."""
    if not sys.flags.safe_path:  # with PYTHONSAFEPATH, neither is searched, and the first is one of PYTHONPATH
        sys.path[0] = str(folder)


def _within(error: BaseException, run: Callable[[], object]) -> Any:
    """Return the traceback of an error from the script's first frame on: None for an error of its syntax.

    It is whole if it is not from the script.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not getattr(run, "__code__", None):
        trace = trace.tb_next
    if trace is None:
        return error.__traceback__
    trace = trace.tb_next
    while trace is not None and trace.tb_frame.f_code.co_filename in (runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    return trace


def _end_if_enough(script: Script, session: Session, times: LoopTimes) -> None:
    """End the script if a loop asks for more than it should."""
    if (
        (script.epochs is not None and times.epochs >= script.epochs)
        or (script.batches is not None and _batches(session, times) >= script.batches)
        or (script.seconds is not None and session.seconds > script.seconds)
    ):
        if threading.current_thread() is not threading.main_thread() and not session.is_over:
            session.is_over = True
            os.kill(os.getpid(), END_SIGNAL)  # Python raises it in the main thread, which may wait for this one
        raise SystemExit(0)


def _batches(session: Session, times: LoopTimes) -> int:
    """Return the batches that count against the limit: of all loops, or of this one, since ranks may have others."""
    return times.batches if is_rank() else sum(each.batches for each in session.loops)


def is_rank() -> bool:
    """Return True if this process trains together with others, on this machine or on others."""
    return any(int(os.environ.get(name, 1)) > 1 for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))


def diagnoses(session: Session) -> list[Diagnosis]:
    """Return the diagnosis of each loop, the longest first."""
    loops = sorted((each for each in session.loops if each.batches), key=lambda each: -each.waited - each.stepped)
    return [_of_training(each, diagnose(each, rank_cpus(), session.memory.notes)) for each in loops]


def _of_training(times: LoopTimes, found: Diagnosis) -> Diagnosis:
    """Return what was found; of waits of another thread than the main one, that they may not be those of the training.

    A thread that works in its steps trains. One that waits in them, or has hardly any, may hand batches on.
    """
    trains = times.thread == threading.main_thread().ident or times.step_waits < times.step_samples / 2
    if trains or found.verdict != "waits" or found.cause == "memory":
        return found
    why = "another thread than the main one takes these batches, perhaps to hand them on to the training"
    remedy = "if so, wrap what the training iterates in etl.watch, which tells how long that waits"
    return replace(found, verdict="cannot tell", low=0.0, high=1.0, cause="unknown", why=why, remedy=remedy, gain=None)


def join_ranks(found: list[Diagnosis]) -> list[list[Diagnosis]] | None:
    """Return the diagnoses of all ranks on this machine, to the first of them; None to the others.

    Torchrun names a rank in LOCAL_RANK; without it this process is the only one. A rank that has written nothing after
    `RANKS_SECONDS` has none.
    """
    rank, count = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if count == 1:
        return [found]
    _remove_leftovers()
    folder = ranks_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    unfinished = folder / f"{rank}.unfinished"
    unfinished.write_text(json.dumps([time.monotonic(), [each.as_dict() for each in found]]))
    unfinished.rename(folder / f"{rank}.json")
    if rank:
        return None
    files = [folder / f"{each}.json" for each in range(count)]
    until = time.monotonic() + RANKS_SECONDS
    while None in (everyone := list(map(_result, files))) and time.monotonic() < until:
        time.sleep(0.05)
    for file in files:
        file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # a late rank has written meanwhile
        folder.rmdir()
    return [each or [] for each in everyone]


def _result(file: Path) -> list[Diagnosis] | None:
    """Return what a rank has found; None if it has written nothing in this attempt."""
    if not file.exists():
        return None
    ended, found = json.loads(file.read_text())
    return [Diagnosis(**each) for each in found] if ended > BEGAN else None


def ranks_folder() -> Path:
    """Return the folder in which the ranks meet that this one's launcher has started, on this machine."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT")  # not its count of restarts, which stays when ranks come or go
    run = "-".join(os.environ.get(name, "") for name in names).replace("/", "_")
    # Containers, or machines, that share the temporary folder may have launchers with the same run and process id.
    namespace = Path("/proc/self/ns/pid")
    container = f"{socket.gethostname()}-{namespace.stat().st_ino if namespace.exists() else 0}"
    return Path(tempfile.gettempdir()) / f"etl-run-{os.getuid()}-{run}-{container}-{os.getppid()}"


def _remove_leftovers() -> None:
    """Remove folders whose first rank was killed, if they are old: the launcher may be in another container."""
    for folder in Path(tempfile.gettempdir()).glob(f"etl-run-{os.getuid()}-*"):
        with contextlib.suppress(OSError, ValueError):
            is_old = time.time() - folder.lstat().st_mtime > LEFT_SECONDS
            if is_old and not psutil.pid_exists(int(folder.name.rpartition("-")[2])):
                shutil.rmtree(folder)


def first_rank() -> int:
    """Return the number, among all ranks of a training, of the first one of this machine."""
    rank, count = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return rank if count == 1 else max(0, rank - int(os.environ.get("LOCAL_RANK", 0)))


def describe(subject: str, ranks: Sequence[Sequence[Diagnosis]], first: int = 0) -> str:
    """Return what the loops of a script wait for, on one rank or several, which are numbered from `first`."""
    if not any(ranks):
        return (
            f"{subject}: no loop over a torch DataLoader or an iterator of etl was seen in this process. Those that it "
            "starts are not watched: start ranks with `torchrun -m etl run`."
        )
    slowest = max(range(len(ranks)), key=lambda rank: ranks[rank][0].share if ranks[rank] else -1.0)
    if len(ranks) == 1:
        longest, *others = ranks[0]
        lines = [longest.describe(subject)]
        lines += [
            f"Besides, {each.describe(f'its loop over {each.loader}')}" for each in others if each.verdict == "waits"
        ]
        return "\n".join(lines)
    found = ranks[slowest][0]
    others = [each[0] for rank, each in enumerate(ranks) if each and rank != slowest]
    most = max((each.share for each in others), default=1.0)
    if found.verdict == "waits" and found.share - most > NOTICEABLE:
        name = f"rank {first + slowest}"
        said = f"{found.describe(f'{name} of {subject}')}\nThe other ranks wait for data at most {most:.0%} of the time"
        # Ranks that wait for each other take as long for a batch. Others with such steps take less by the difference.
        least = min(each.wait_seconds + each.step_seconds for each in others)
        if least > (1 - NOTICEABLE) * (found.wait_seconds + found.step_seconds):
            said += f", and in their steps for {name}: a slow rank"
        return f"{said}."
    said = found.describe(f"the slowest rank of {subject}")
    missing = ", ".join(str(rank) for rank, each in enumerate(ranks, first) if not each)
    return f"{said}\nNothing was found of rank {missing}." if missing else said
