"""The doctor: what makes training slow, on this machine and in this training, and the one change to make first."""

from etl.doctor.examination import Examination
from etl.doctor.examining import examine
from etl.doctor.finding import Finding, Severity, Trial

__all__ = ["Examination", "Finding", "Severity", "Trial", "examine"]
