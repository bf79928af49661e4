"""A fair comparison of strategies: `etl compare`."""

from etl.comparison.phases import ComparisonProgress, compare
from etl.comparison.publishing import ContradictionError
from etl.comparison.report import Report
from etl.comparison.settings import Settings
from etl.measuring.processes import MeasurementError

__all__ = ["ComparisonProgress", "ContradictionError", "MeasurementError", "Report", "Settings", "compare"]
