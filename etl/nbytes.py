"""Sizes as people write them."""

from __future__ import annotations

import math
import re

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_nbytes(text: str) -> int:
    """Bytes of a size such as "2GB", "512 MiB" or "65536", KB being 1,000 and KiB 1,024; `ValueError` for another text,
    and for less than a byte.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f"a size is a number with B, KB, MB, GB or KiB, MiB, GiB, such as 2GB, not {text!r}")
    nbytes: int = math.floor(float(match[1]) * (1024 if match[3] else 1000) ** POWERS[match[2].upper()])
    if nbytes < 1:
        raise ValueError(f"a size is at least one byte, not {text!r}")
    return nbytes
