"""A scenario of `--what-if`: other CPUs, compute or storage than those of the comparison."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from etl.arguments import parse_nbytes, parse_seconds, whole_number

OPTION = "--what-if"
KEYS = "cpus=8, compute=5ms, compute=2x, disk=200MB/s, cache=50%"
FACTOR = re.compile(r"(\d+(?:\.\d+)?)x")
RATE = re.compile(r"(.+)/s")
PERCENT = re.compile(r"(\d+(?:\.\d+)?)%")


@dataclass(frozen=True)
class WhatIf:
    """A scenario: what would be different. None for what stays as it was measured.

    Attributes
    ----------
    text : str
        The scenario as it was given.
    cpus : int or None
        CPUs of the whole training.
    compute_seconds : float or None
        Seconds per batch on a device that takes no CPU.
    compute_factor : float or None
        Factor by which compute takes longer, wherever it runs.
    disk_nbytes_per_second : float or None
        Bytes per second that the disk reads.
    cached_share : float or None
        Share of the files' bytes that are in the page cache.
    """

    text: str
    cpus: int | None = None
    compute_seconds: float | None = None
    compute_factor: float | None = None
    disk_nbytes_per_second: float | None = None
    cached_share: float | None = None

    @classmethod
    def parse(cls, text: str) -> WhatIf:
        """Return the scenario that a text such as "cpus=8,disk=200MB/s,cache=50%" describes.

        Raises
        ------
        ValueError
            If it is none. The message lists the keys.
        """
        found = cls(",".join("".join(part.split()) for part in text.split(",")))
        seen = set()
        for part in text.split(","):
            key, _, value = (each.strip() for each in part.partition("="))
            if key not in _READERS or not value:
                raise ValueError(f"{OPTION} takes any of {KEYS}, with commas between them, not {part.strip()!r}")
            if key in seen:
                raise ValueError(f"{OPTION} {text}: {key} is given twice; give {OPTION} twice for two scenarios")
            seen.add(key)
            found = _READERS[key](found, value)
        return found

    def check(self, is_cold: bool) -> None:
        """Raise `ValueError` if the scenario says too little, or nothing, about the storage.

        The comparison reads files from the disk if it `is_cold`.
        """
        cached = (0.0 if is_cold else 1.0) if self.cached_share is None else self.cached_share
        if cached == 1.0 and self.disk_nbytes_per_second is not None:
            raise ValueError(
                f"{OPTION} {self.text}: all files are in the page cache, so the disk has no effect; add cache=50%"
            )
        if cached < 1.0 and not is_cold and self.disk_nbytes_per_second is None:
            raise ValueError(
                f"{OPTION} {self.text}: this comparison does not read the disk, so its speed is unknown; add "
                "disk=200MB/s, or compare with --cache cold"
            )


def _cpus(found: WhatIf, value: str) -> WhatIf:
    if not value.isdecimal():
        raise ValueError(f"{OPTION} cpus={value}: give a whole number of CPUs, such as cpus=8")
    return replace(found, cpus=whole_number(f"{OPTION} cpus", int(value), least=1))


def _compute(found: WhatIf, value: str) -> WhatIf:
    factor = FACTOR.fullmatch(value)
    if factor is None:
        seconds = parse_seconds(value, f"{OPTION} compute (or a factor such as 2x)")
        return replace(found, compute_seconds=_above_zero(seconds, f"compute={value}"))
    return replace(found, compute_factor=_above_zero(float(factor[1]), f"compute={value}"))


def _disk(found: WhatIf, value: str) -> WhatIf:
    rate = RATE.fullmatch(value)
    if rate is None:
        raise ValueError(f"{OPTION} disk={value}: give bytes per second, such as disk=200MB/s")
    try:
        return replace(found, disk_nbytes_per_second=float(parse_nbytes(rate[1])))
    except ValueError as error:
        raise ValueError(f"{OPTION} disk={value}: {error}") from None


def _cache(found: WhatIf, value: str) -> WhatIf:
    share = PERCENT.fullmatch(value)
    if share is None or float(share[1]) > 100:
        raise ValueError(f"{OPTION} cache={value}: give a share from 0% to 100%, such as cache=50%")
    return replace(found, cached_share=float(share[1]) / 100)


def _above_zero(number: float, given: str) -> float:
    if not number > 0:
        raise ValueError(f"{OPTION} {given}: it must be above 0")
    return number


_READERS = {"cpus": _cpus, "compute": _compute, "disk": _disk, "cache": _cache}
