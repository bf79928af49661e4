"""A console for names and messages from outside, which might control the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from etl.arguments import printable
from etl.tables import encodable


class PrintableConsole(Console):
    """A console that shows characters that are unprintable, or that its encoding lacks, as ASCII."""

    def render_str(self, text: str, **arguments: Any) -> Text:
        """Make `text` printable and encodable. Rich calls this for each string that it shows."""
        shown = "\n".join(map(printable, text.split("\n")))
        return super().render_str(encodable(shown, self.encoding), **arguments)
