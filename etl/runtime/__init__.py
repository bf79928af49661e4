"""Runtime settings, each a context manager that restores what it found."""

from etl.runtime.audit import Audit
from etl.runtime.boundaries import batch_boundary
from etl.runtime.device_memory_policy import DeviceMemoryPolicy
from etl.runtime.gc_policy import GcPolicy
from etl.runtime.gc_watch import Collections, CollectionWatch
from etl.runtime.heap_policy import HeapPolicy
from etl.runtime.policy import Policy
from etl.runtime.thread_policy import ThreadPolicy

__all__ = [
    "Audit",
    "CollectionWatch",
    "Collections",
    "DeviceMemoryPolicy",
    "GcPolicy",
    "HeapPolicy",
    "Policy",
    "ThreadPolicy",
    "batch_boundary",
]
