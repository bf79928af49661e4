"""Strategies: the ways to get from data to batches, by name. What is asked of one is an attribute, never its name."""

from etl.strategies.registry import default_names, find, names, register
from etl.strategies.strategy import Strategy

__all__ = ["Strategy", "default_names", "find", "names", "register"]
