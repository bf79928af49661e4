"""Backends: where compute runs. Importing this does not load torch; selecting a backend does."""

from etl.training.backends.selection import Backend, backend

__all__ = ["Backend", "backend"]
