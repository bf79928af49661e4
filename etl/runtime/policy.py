"""A runtime policy: settings that are in force inside a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from etl.runtime.audit import Audit

if TYPE_CHECKING:
    from typing import Self

Kind = TypeVar("Kind", bound="Policy")
# The policies whose settings are in force in this process, the innermost last.
_in_force: list[Policy] = []
# Those whose blocks have not ended, in the order in which they were entered.
_running: list[Policy] = []


class Policy(ABC):
    """A context manager that puts runtime settings in force, and restores the former ones on exit.

    If another one of its class was entered meanwhile and is still in force, as in another thread, that one's exit does.
    """

    _entered: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._entered is not None:
            raise RuntimeError(f"this {type(self).__name__} is in force already")
        with ExitStack() as stack:
            self._put_in_force(stack)
            _in_force.append(self)
            stack.callback(_in_force.remove, self)
            self._entered = stack.pop_all()
        _running.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        entered, self._entered = self._entered, None
        if entered is None:
            return
        place = next(place for place, each in enumerate(_running) if each is self)  # equal ones may be in force, too
        del _running[place]
        later = next((each for each in _running[place:] if type(each) is type(self)), None)
        if later is None or later._entered is None:
            entered.close()
            return
        both = ExitStack()  # what the later one found is what this one had set
        both.callback(entered.close)
        both.callback(later._entered.close)
        later._entered = both

    @abstractmethod
    def audit(self) -> Audit:
        """Report what is in force and what it does; raise `RuntimeError` outside of the `with` block."""

    @abstractmethod
    def _put_in_force(self, stack: ExitStack) -> None:
        """Change the settings; whatever restores them is put on `stack`, also if a later change fails."""

    def _require_in_force(self) -> None:
        if self._entered is None:
            raise RuntimeError(f"this {type(self).__name__} is not in force")


def policies_in_force(kind: type[Kind]) -> list[Kind]:
    """Return the policies of a class whose settings are in force in this process, the innermost last."""
    return [each for each in _in_force if isinstance(each, kind)]
