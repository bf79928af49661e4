"""The report that `etl.compare` returns: all metrics, shown as tables, as a page, or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self

from etl.comparison.judge.report import ReportData
from etl.comparison.show.page import framed, render_page
from etl.comparison.show.report_table import as_text, show_report
from presave.files import usual_mode, write_atomically


@dataclass(frozen=True, repr=False)
class Report(ReportData):
    __doc__ = ReportData.__doc__

    @classmethod
    def of(cls, data: ReportData) -> Self:
        """Return the report with these metrics."""
        return cls(**{each.name: getattr(data, each.name) for each in fields(data)})

    def __str__(self) -> str:
        """Return the tables, as the terminal shows them."""
        return as_text(lambda console: show_report(self, console))

    def __repr__(self) -> str:
        return f"<Report of {self.title}: {', '.join(each.name for each in self.strategies)}>"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        return framed(render_page(self), "comparison")

    def save(self, path: str | Path) -> None:
        """Save the report to a file: a page for .html, or everything for programs for .json.

        An earlier file is replaced as a whole.

        Raises
        ------
        ValueError
            If the file has another suffix.
        """
        contents: dict[str, Callable[[], str]] = {".html": lambda: render_page(self), ".json": self.to_json}
        suffix = Path(path).suffix.lower()
        if suffix not in contents:
            raise ValueError(f"{path}: a report is saved as .html or .json")
        target = Path(path).resolve()  # a link stays a link
        write_atomically(target, contents[suffix]().encode(), mode=usual_mode(target))
