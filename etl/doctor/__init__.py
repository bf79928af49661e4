"""The doctor: it finds out what makes training slow, and names the one change to make first."""

from etl.comparison.judge.make_report import describe_machine, describe_versions
from etl.doctor.check import Finding, Severity, Trial
from etl.doctor.examination import Examination, examine

__all__ = ["Examination", "Finding", "Severity", "Trial", "describe_machine", "describe_versions", "examine"]
