"""One of two that are compared in turns: the process that runs it, and what that is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from benchmarks.server_process import NoAnswer, ServerProcess

if TYPE_CHECKING:
    from typing_extensions import Self

TIMEOUT_SECONDS = 120.0


class Failed(Exception):  # noqa: N818 - the word the reader looks for
    """The process of a side did not answer, or answered with an error."""


class Side:
    """A context manager around the process of `module`, a server of turns (turn_server.py). `name` is for errors, the
    rest is as `ServerProcess` takes it.

    `tell`, `hear` and `ask` raise `Failed` where the process has an error, has ended or does not answer.
    """

    def __init__(
        self,
        name: str,
        module: str,
        hash_seed: int,
        packages: Path | None = None,
        environment: Mapping[str, str | None] | None = None,
    ) -> None:
        self.name = name
        self._process = ServerProcess(module, hash_seed, packages, environment)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to `request`."""
        self.tell(request)
        return self.hear()

    def tell(self, request: dict[str, Any]) -> None:
        """Send `request` without waiting for the answer."""
        try:
            self._process.tell(request)
        except NoAnswer as error:
            raise self._failed(error) from None

    def hear(self) -> dict[str, Any]:
        """The answer to what it was told."""
        try:
            answer = self._process.hear(TIMEOUT_SECONDS)
        except NoAnswer as error:
            raise self._failed(error) from None
        if "error" in answer:
            raise Failed(f"{self.name} cannot be measured: {answer['error'].strip()}")
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close()

    def _failed(self, error: NoAnswer) -> Failed:
        return Failed(f"the process of {self.name} {error}")
