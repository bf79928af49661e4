"""A fair comparison of strategies: `etl compare`."""

import os

if not hasattr(os, "sched_getaffinity"):
    raise RuntimeError(
        "etl measures on Linux only, where it can bind processes to CPUs and read what they wait for; loaders and "
        "stores work here, too"
    )
