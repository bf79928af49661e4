"""How many threads compute uses."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from etl.whole_number import whole_number

if TYPE_CHECKING:
    from typing_extensions import Self


# The policies in force in this process, the last entered at the end.
_in_force: list[ThreadPolicy] = []


def compute_threads_in_force() -> int:
    """The compute threads of the policy in force; 0 where there is none."""
    return _in_force[-1].compute if _in_force else 0


class ThreadPolicy:
    """A context manager: `compute` threads for BLAS, OpenMP and torch's operations, restored on leaving.

    torch is set only where it is loaded already. Raises `ValueError` for fewer than 1, `RuntimeError` when entered
    twice.
    """

    def __init__(self, compute: int) -> None:
        self.compute = whole_number("compute threads", compute, least=1)
        self._limits: Any = None
        self._torch_threads: int | None = None

    def __enter__(self) -> Self:
        if self._limits is not None:
            raise RuntimeError("this ThreadPolicy is in force already")
        torch = sys.modules.get("torch")
        if torch is not None:
            self._torch_threads = torch.get_num_threads()
            torch.set_num_threads(self.compute)
        self._limits = threadpool_limits(limits=self.compute)
        _in_force.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        limits, self._limits = self._limits, None
        _in_force.remove(self)
        limits.restore_original_limits()
        torch = sys.modules.get("torch")
        if torch is not None and self._torch_threads is not None:
            torch.set_num_threads(self._torch_threads)
