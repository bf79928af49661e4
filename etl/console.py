"""A terminal that shows texts from outside as text: names of files and fields may hold anything."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from etl.printable import printable


class PlainConsole(Console):
    """Takes no markup or emoji codes in strings, wherever they stand, and shows only what is printable."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(markup=False, emoji=False, **arguments)

    def render_str(self, text: str, **arguments: Any) -> Text:
        """Rich asks for this with each string that it is to show."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), **arguments)
