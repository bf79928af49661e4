"""The doctor: it finds out what makes training slow, and names the one change to make first."""

from etl.doctor.check import Finding, Severity, Trial
from etl.doctor.examination import Examination, examine

__all__ = ["Examination", "Finding", "Severity", "Trial", "examine"]
