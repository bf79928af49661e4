"""Runtime settings, each a context manager that restores what it found."""

from etl.runtime.collections import Collections, CollectionWatch
from etl.runtime.gc_policy import GcPolicy
from etl.runtime.heap_policy import HeapPolicy
from etl.runtime.thread_policy import ThreadPolicy

__all__ = ["CollectionWatch", "Collections", "GcPolicy", "HeapPolicy", "ThreadPolicy"]
