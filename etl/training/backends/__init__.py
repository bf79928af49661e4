"""Backends: where compute runs. Importing this loads no torch; choosing a backend does."""

from etl.training.backends.selection import Backend, backend

__all__ = ["Backend", "backend"]
