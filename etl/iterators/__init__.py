"""Iterators: one interface, whatever the strategy."""

from etl.iterators.asynchronous import AsyncIterator
from etl.iterators.iterator import BatchIterator
from etl.iterators.presaved import PresavedIterator
from etl.iterators.raw import RawIterator
from etl.iterators.synthetic import SyntheticIterator

__all__ = ["AsyncIterator", "BatchIterator", "PresavedIterator", "RawIterator", "SyntheticIterator"]
