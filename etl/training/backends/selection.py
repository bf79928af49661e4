"""The protocol of a backend, the device on which compute runs, and the choice of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from etl.loading.batch import Batch

if TYPE_CHECKING:
    import torch

NAMES = ("cpu", "cuda")
# The variables of ND4J, "Deeplearning4j With GPUs": the backend with the highest number is used.
PRIORITY_VARIABLES = {"cpu": "BACKEND_PRIORITY_CPU", "cuda": "BACKEND_PRIORITY_GPU"}


class Sent(Protocol):
    """A batch on its way to the device."""

    def receive(self) -> Batch:
        """The batch of tensors; what is computed with it from now on waits for the copy, the caller does not."""


class Backend(Protocol):
    """A device, the way batches reach it, and the way to wait for it."""

    name: str

    @property
    def device(self) -> torch.device: ...

    def put(self, batch: Batch) -> Batch:
        """The batch with tensors on the device in place of arrays; tensors that are there already stay there."""

    def send(self, batch: Batch) -> Sent:
        """Begin to copy `batch` to the device, beside what it computes."""

    def allocate(self, nbytes: int) -> np.ndarray:
        """Memory from which the device copies fastest: uint8 of shape `(nbytes,)`, with any content."""

    def place(self, model: torch.nn.Module, dtype: str) -> torch.nn.Module:
        """Move `model` to the device and its floating parameters to `dtype`, in place; returns it."""

    def synchronize(self) -> None:
        """Wait until all work given to the device is done, so that a clock read after it is honest."""


def backend(name: str = "auto") -> Backend:
    """The backend called "cpu" or "cuda"; "auto" chooses.

    "auto" takes the one whose variable, BACKEND_PRIORITY_CPU or BACKEND_PRIORITY_GPU, is the higher integer (one that
    is not set counts 0); where they are equal or none is set, cuda if there is a device, otherwise cpu. Raises
    `ValueError` for an unknown name or a variable that is no integer, `RuntimeError` where the backend asked for, or
    preferred by the variables, is not available here.
    """
    if name not in ("auto", *NAMES):
        raise ValueError(f"unknown backend {name!r}; known: auto, {', '.join(NAMES)}")
    torch = import_torch()
    chosen, reason = _choose(torch.cuda.is_available()) if name == "auto" else (name, "asked for")
    if chosen == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(f"backend 'cuda' was {reason}, but torch {torch.__version__} finds no CUDA device here")
        from etl.training.backends.cuda import CudaBackend

        return CudaBackend()
    from etl.training.backends.cpu import CpuBackend

    return CpuBackend()


def import_torch() -> Any:
    """The torch module, imported when it is first needed; raises `RuntimeError` that says how to install it."""
    try:
        import torch
    except ImportError as error:
        raise RuntimeError("training needs torch: pip install 'fair-etl[torch]'") from error
    return torch


def _choose(has_cuda: bool) -> tuple[str, str]:
    cpu, cuda = (_priority(PRIORITY_VARIABLES[name]) for name in NAMES)
    if cpu == cuda:
        return ("cuda" if has_cuda else "cpu"), "found"
    winner = "cpu" if cpu > cuda else "cuda"
    values = " and ".join(f"{variable}={os.environ.get(variable, 'unset')}" for variable in PRIORITY_VARIABLES.values())
    return winner, f"preferred by {values}"


def _priority(variable: str) -> int:
    text = os.environ.get(variable, "0")
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{variable} must be an integer, not {text!r}") from None
