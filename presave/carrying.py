"""Pickling of functions and objects for other processes, with what they use of the program's main script."""

from __future__ import annotations

import sys
from typing import Any


def dumps(thing: Any, **options: Any) -> bytes:
    """Return `thing` pickled by cloudpickle, which takes `options`. What the main script defines is in the pickle.

    In a process that multiprocessing has started, the main script has another name, which no other process knows.
    """
    import cloudpickle  # not in environments that only load

    main = sys.modules.get("__mp_main__")
    if main is not None:
        cloudpickle.register_pickle_by_value(main)
    data: bytes = cloudpickle.dumps(thing, **options)
    return data
