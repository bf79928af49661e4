"""The command line, `etl`: one file for each command.

Exit codes: 0 done, 1 the requested check failed, or an error within `etl`, shown with its traceback; 2 the call or its
input was wrong, 130 interrupted, 143 terminated, 129 if the terminal was closed.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import re
import sys
import textwrap
import traceback
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import etl
from etl.commands.output import LiveProgress, checked_outputs, open_standard_streams, show_error, show_warning, shown
from etl.temporary import Terminated, ending_in_order

# The commands by question, each with its summary, so that only the command that is run has to be imported.
QUESTIONS = {
    "Does my training wait for data?": {
        "run": "run a training script, and say whether it waits for data, why, and what to do.",
        "doctor": "find what makes training slow here, and the one change to make first.",
    },
    "Which way of loading is faster?": {
        "compare": "compare ways of loading SOURCE: which one to use, what it gains, and how sure that is.",
        "tune": "find the settings of each strategy that are best for it.",
    },
    "How do I load from a store?": {
        "presave": "decode once and keep the arrays on disk.",
        "inspect": "show what a store holds, and which pipeline made it.",
        "verify": "compare every byte of a store with its manifest; exit code 1 if something has changed.",
        "convert": "rewrite a store in another format.",
    },
    "What can I try it on?": {
        "dataset": "make the demonstration data, real photographs or real handwritten digits.",
    },
}
COMMANDS = {name: summary for commands in QUESTIONS.values() for name, summary in commands.items()}

UNKNOWN_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(.*?)'")

# Their messages say what is wrong with the call, its input or the machine. Others are defects, a KeyError for one.
INPUT_ERRORS = (ValueError, OSError, RuntimeError, MemoryError)

# Shown by `etl` alone.
FIRST_STEPS = """\
etl loads training data, and measures what that costs in training time.

  etl run train.py                  does this script wait for data, and why
  etl compare photos/               the fastest way to load, in about a minute
  etl tune photos/                  the best settings of each way
  etl presave photos/ photos.store  decode once, and train from the store
  etl doctor photos/                what slows training down
  etl dataset photos/               photographs to try it on, if you have none

photos/ has a folder of images for each class. Tables, sequences, tar files and
data sets of your own are sources, too. `etl --help` lists all commands, and
`etl COMMAND --help` the options of one.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage of thirty options, and that completes no abbreviations."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        chosen = UNKNOWN_COMMAND.search(message)
        if chosen is not None:
            close = difflib.get_close_matches(chosen[1], COMMANDS, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(COMMANDS)}"
            message = f"there is no command {chosen[1]!r}: {hint}"
        show_error(f"{message}; see `{self.prog} --help`", self.prog)
        self.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write the help or the version."""
        with shown():
            print(message, end="", file=file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line on `arguments`, by default those of this program, and return the exit code."""
    is_open = open_standard_streams()
    given = sys.argv[1:] if arguments is None else arguments
    wanted = next((each for each in given if not each.startswith("-")), None)
    chosen: Any = None
    try:
        if wanted in COMMANDS:
            chosen = importlib.import_module(f"etl.commands.{wanted}")
    except RuntimeError as error:
        show_error(str(error))
        return 2
    parser = _Parser(
        prog="etl",
        description="Load training data, and measure what it costs.",
        epilog=_describe_commands(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    debug_help, quiet_help = "show the traceback of an error", "show no progress"
    parser.add_argument("--debug", action="store_true", help=debug_help)
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet_help)
    parser.add_argument("-V", "--version", action="version", version=f"fair-etl {etl.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, summary in COMMANDS.items():
        subparser = commands.add_parser(name, description=summary)
        # Also accepted after the command. A default would override the option given before the command.
        subparser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug_help)
        subparser.add_argument("-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help=quiet_help)
        if name == wanted:
            chosen.add_arguments(subparser)
    parsed = argparse.Namespace(debug=False, quiet=False, command=None)
    try:
        parsed, unknown = parser.parse_known_args(arguments)
        if unknown:
            commands.choices.get(parsed.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
        if parsed.command is None:
            with shown() as console:
                console.print(FIRST_STEPS, end="")
            return 0
        if parsed.command == "run":  # with signals, warnings and streams as the script would have them
            chosen.run(parsed)
        from etl.commands.source_arguments import image_settings  # reads sources

        LiveProgress.is_quiet = parsed.quiet

        outputs = checked_outputs(parsed, is_open, getattr(chosen, "ONLY_SHOWS", False))
        with ending_in_order(), image_settings(parsed), outputs, warnings.catch_warnings():
            warnings.showwarning = show_warning  # type: ignore[assignment]
            return int(chosen.run(parsed))
    except KeyboardInterrupt:
        show_error(f"interrupted; {getattr(chosen, 'INTERRUPTED', 'nothing was left')}")
        return 130
    except Terminated as end:
        return 128 + end.number
    except INPUT_ERRORS as error:
        if parsed.debug:
            _show_traceback()
        show_error(str(error) or type(error).__name__)
        return 2
    except Exception as error:  # noqa: BLE001 - shown
        _show_traceback()
        show_error(
            f"internal error, {type(error).__name__}: {error}; unless the traceback above ends in your own code, this "
            "is a defect of etl: please report it with that traceback"
        )
        return 1


def _describe_commands() -> str:
    """Return the commands by question, each on a line of 80 columns or two."""
    lines = []
    for question, commands in QUESTIONS.items():
        lines += ["", question]
        for name, summary in commands.items():
            lines += textwrap.wrap(summary, 79, initial_indent=f"  {name:<10}", subsequent_indent=" " * 12)
    return "\n".join([*lines[1:], "", "`etl COMMAND --help` lists the options of one."])


def _show_traceback() -> None:
    with contextlib.suppress(OSError):
        traceback.print_exc()
