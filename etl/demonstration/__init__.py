"""Demonstration data: real photographs and real handwritten digits, made from what packages ship."""

from etl.demonstration.digits import digits
from etl.demonstration.photographs import photographs

__all__ = ["digits", "photographs"]
