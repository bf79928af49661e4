"""Strategies: ways to get from data to batches, found by name."""

from etl.strategies.strategy import Strategy, default_names, find, names, register

__all__ = ["Strategy", "default_names", "find", "names", "register"]
