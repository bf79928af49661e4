"""When CPython's garbage collector runs."""

from __future__ import annotations

import gc
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

POLICIES = ("default", "off", "freeze")


class GcPolicy:
    """A context manager that sets the garbage collector and restores what it found.

    `default` leaves it as it is; `off` stops automatic collections; `freeze` collects once and then takes every object
    alive out of later collections (`gc.freeze`), so that they walk only what is new. Reference counting goes on in all.
    Raises `ValueError` for another name, `RuntimeError` when entered twice.
    """

    def __init__(self, policy: str = "default") -> None:
        if policy not in POLICIES:
            raise ValueError(f"unknown GC policy {policy!r}; known: {', '.join(POLICIES)}")
        self.policy = policy
        self._was_enabled: bool | None = None
        self._was_frozen = False

    def __enter__(self) -> Self:
        if self._was_enabled is not None:
            raise RuntimeError("this GcPolicy is in force already")
        self._was_enabled = gc.isenabled()
        if self.policy == "off":
            gc.disable()
        elif self.policy == "freeze":
            self._was_frozen = gc.get_freeze_count() > 0
            gc.collect()
            gc.freeze()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        was_enabled, self._was_enabled = self._was_enabled, None
        if self.policy == "off":
            (gc.enable if was_enabled else gc.disable)()
        elif self.policy == "freeze" and not self._was_frozen:
            # What somebody else had frozen cannot be told apart from what was frozen here, so all of it stays frozen.
            gc.unfreeze()
