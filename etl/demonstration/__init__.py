"""Demonstration data: real photographs and handwritten digits, made from images that packages ship."""

from etl.demonstration.digit_files import digits
from etl.demonstration.photograph_files import photographs

__all__ = ["digits", "photographs"]
