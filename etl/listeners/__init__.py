"""Listeners: what follows a fit."""

from etl.listeners.listener import Iteration, Listener
from etl.listeners.performance import Performance, PerformanceListener

__all__ = ["Iteration", "Listener", "Performance", "PerformanceListener"]
