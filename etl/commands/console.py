"""A terminal that shows texts from outside as text: names of files and fields may hold anything."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from etl.arguments import printable
from etl.tables import encodable, output_size


class PlainConsole(Console):
    """Takes no markup or emoji codes in strings, wherever they stand, and shows only what is printable.

    What the encoding of the terminal does not have is shown in ASCII.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(markup=False, emoji=False, **arguments)

    def render_str(self, text: str, **arguments: Any) -> Text:
        """Rich asks for this with each string that it is to show."""
        shown = "\n".join(map(printable, text.split("\n")))
        return super().render_str(encodable(shown, self.encoding), **arguments)


def output_console() -> PlainConsole:
    """Return the console of standard output, as wide as the terminal, or wide enough for every table."""
    width, height = output_size()
    return PlainConsole(width=width, height=height)
