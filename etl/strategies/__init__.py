"""Strategies: ways to get from data to batches, found by name."""

from etl.strategies.registry import default_names, find, names, register
from etl.strategies.strategy import Strategy

__all__ = ["Strategy", "default_names", "find", "names", "register"]
