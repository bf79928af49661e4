"""Comparing strategies fairly: `etl compare`."""

from etl.comparison.compare import Progress, compare
from etl.comparison.contradictions import ContradictionError
from etl.comparison.report import Report
from etl.comparison.settings import Settings
from etl.measuring.processes import MeasurementError

__all__ = ["ContradictionError", "MeasurementError", "Progress", "Report", "Settings", "compare"]
