"""`etl run SCRIPT`: run a training script, and say whether it waits for data, why, and what to do."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from etl.commands.output import STANDARD_OUTPUT, check_file_path, output_path, save_json, show_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("--epochs", type=int, metavar="N", help="end after so many epochs")
    parser.add_argument("--batches", type=int, metavar="N", help="end after so many batches")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after so many seconds")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="write what was found to FILE, as JSON")
    parser.add_argument("script", metavar="SCRIPT", help="a Python file; its own arguments follow it")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> NoReturn:
    """Run the script, and exit as it does."""
    from etl.watching.script import Script, describe, first_rank, is_rank, join_ranks, run_script

    limits = {name: getattr(arguments, name) for name in ("epochs", "batches", "seconds")}
    for name, limit in limits.items():
        if limit is not None and limit <= 0:
            raise ValueError(f"--{name} must be above 0, not {limit}")
    if arguments.seconds is not None and is_rank():
        raise ValueError("--seconds would end each rank at another step, and others wait for it: give --batches")
    first = first_rank()
    file = arguments.json
    if file is not None and first and not file.is_relative_to("/dev"):  # other machines may see the same folder
        file = file.with_name(f"{file.stem}-rank{first}{file.suffix}")
    if file not in (None, STANDARD_OUTPUT):  # refused now, not when the script has run for hours
        check_file_path(file, "--json")
    if hasattr(builtins, "__IPYTHON__"):
        _run_beside()
    script = Script(arguments.script, arguments.is_module, arguments.arguments, **limits)
    # The script may change the working folder.
    file = None if file is None else file.absolute()

    def report(found: list[Any]) -> bool:
        try:
            ranks = join_ranks(found)
            if ranks is not None:
                try:
                    with contextlib.suppress(ValueError):  # the script has closed standard error
                        print(f"\n{describe(Path(script.target).name, ranks, first)}", file=sys.stderr, flush=True)
                finally:
                    content = [[each.as_dict() for each in rank] for rank in ranks]
                    save_json(file, {"first_rank": first, "ranks": content})
        except OSError as error:  # said here, for an error would change how the script ends
            with contextlib.suppress(ValueError):
                if arguments.debug:
                    with contextlib.suppress(OSError):
                        traceback.print_exc()
                show_error(str(error))
            return False
        return True

    run_script(script, report)


def _run_beside() -> NoReturn:
    """Run this command in a process of its own and show its output: `%run -m etl run` must not change a notebook's."""
    command = [sys.executable, "-m", "etl", *sys.argv[1:]]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as process:
        while process.poll() is None:
            try:
                for line in process.stdout or ():
                    print(line, end="", flush=True)
            except KeyboardInterrupt:  # the script ends, and the report comes
                process.send_signal(signal.SIGINT)
    sys.exit(process.returncode)
