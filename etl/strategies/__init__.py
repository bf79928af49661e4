"""Strategies: ways to get from data to batches, found by name; and user loaders, which a `Task` is given to."""

from etl.measuring.epochs import close_loader
from etl.strategies.open_loader import find_prepare, open_loader
from etl.strategies.settings import canonical, declared_settings
from etl.strategies.strategy import Strategy, default_names, find, names, register

__all__ = [
    "Strategy",
    "canonical",
    "close_loader",
    "declared_settings",
    "default_names",
    "find",
    "find_prepare",
    "names",
    "open_loader",
    "register",
]
