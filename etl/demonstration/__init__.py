"""Demonstration data: real photographs and handwritten digits, made from images that packages ship."""

from etl.demonstration.digits import digits
from etl.demonstration.photographs import photographs

__all__ = ["digits", "photographs"]
