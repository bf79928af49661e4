"""Strategies: ways to get from data to batches, by name. Their properties are attributes, never parsed from names."""

from etl.strategies.registry import default_names, find, names, register
from etl.strategies.strategy import Strategy

__all__ = ["Strategy", "default_names", "find", "names", "register"]
