"""Strategies: ways to get from data to batches, by name. Their properties are attributes, never parsed from names."""

from etl.strategies.strategy import Strategy, default_names, find, names, register

__all__ = ["Strategy", "default_names", "find", "names", "register"]
