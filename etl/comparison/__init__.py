"""A fair comparison of strategies: `etl compare`."""

import os

if not hasattr(os, "sched_getaffinity"):
    raise RuntimeError(
        "etl measures on Linux only: it binds processes to CPUs and reads the kernel's times of their threads; loaders "
        "and stores can be imported here"
    )
