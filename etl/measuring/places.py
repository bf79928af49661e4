"""Places in a user's files, found in tracebacks and in what `faulthandler` writes."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:,? in (?P<function>.+))?$', re.MULTILINE)
# The standard library and installed packages, of any interpreter.
LIBRARY = re.compile(r"/lib(64)?/python\d|/(site|dist)-packages/")
# Code without a file, such as importlib's; that of a notebook or an interactive session is the user's.
NO_FILE = re.compile(r"<(?!ipython|stdin)")
THIS_PACKAGE = Path(__file__).parents[1]
# In a checkout, presave is not an installed package either.
OWN_FOLDERS = (f"{THIS_PACKAGE}/", f"{THIS_PACKAGE.with_name('presave')}/")
TRACEBACK = "Traceback (most recent call last)"


def describe_error(error: BaseException) -> str:
    """Return one line: the text of `error`, with its class if the user's code raised it, and the place.

    If several exceptions caused each other, the place is that of the first one. A message that quotes the traceback of
    another process, such as torch's data loader has it, is reduced to its last line.
    """
    texts = ["".join(traceback.format_exception(each, chain=False)) for each in _chain(error)]
    place = next(filter(None, map(place_in, reversed(texts))), "")
    message = str(error).strip()
    if TRACEBACK in message:
        message = message.splitlines()[-1]
    elif place_in(texts[0]) or not isinstance(error, ValueError):  # else this package wrote all of the message
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    message = " ".join(message.split())
    return message if place in message else f"{message}, at {place}"


def place_in(text: str, newest_first: bool = False) -> str:
    """Return the innermost place in a user's file that `text` names, as "file.py:12 (function)"; "" if none.

    Parameters
    ----------
    newest_first : bool
        True if the innermost frame comes first, as `faulthandler` writes it.
    """
    frames = [each for each in FRAME.finditer(text) if is_users(each["file"])]
    if not frames:
        return ""
    found = frames[0 if newest_first else -1]
    function = f" ({found['function']})" if found["function"] else ""
    return f"{Path(found['file']).name}:{found['line']}{function}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, its cause, and so on; each once, because `raise error from error` makes it its own cause."""
    following: BaseException | None = error
    seen: set[int] = set()
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def is_users(file: str) -> bool:
    """Return True if `file` belongs neither to a library nor to this package or presave."""
    return not (LIBRARY.search(file) or NO_FILE.match(file) or file.startswith(OWN_FOLDERS))
