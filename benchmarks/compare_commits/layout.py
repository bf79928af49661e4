"""The same memory layout for the same code: without the kernel's randomisation of addresses.

Where its arrays, stacks and libraries lie decides about some percent of a process's speed for as long as it lives, and
of all that are forked from it. Two servers of the same commit were seen to differ by 15% in `async-raw`.
"""

from __future__ import annotations

import functools
import subprocess

SETARCH = ("setarch", "--addr-no-randomize")


@functools.cache
def with_fixed_layout() -> tuple[str, ...]:
    """What goes before a command, so that its addresses are not random; nothing where this system does not allow that,
    as in some containers, or has no setarch (util-linux).
    """
    try:
        tried = subprocess.run([*SETARCH, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return ()
    return SETARCH if tried.returncode == 0 else ()
