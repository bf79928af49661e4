"""Backends: where compute runs. Importing this loads no torch; choosing a backend does."""

from etl.backends.backend import Backend
from etl.backends.choose import backend

__all__ = ["Backend", "backend"]
