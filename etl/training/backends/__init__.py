"""The protocol of a backend, and the selection of one by name or by what is available."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from etl.loading.batch import Batch

if TYPE_CHECKING:
    import torch

NAMES = ("cpu", "cuda")
# ND4J's variables ("Deeplearning4j With GPUs"): the backend with the highest number is used.
PRIORITY_VARIABLES = {"cpu": "BACKEND_PRIORITY_CPU", "cuda": "BACKEND_PRIORITY_GPU"}


class Sent(Protocol):
    """A batch on its way to the device."""

    def receive(self) -> Batch:
        """Return the batch of tensors. Compute on them waits for the copy; the caller does not."""


class Backend(Protocol):
    """A device: moves batches to it, and waits for it."""

    name: str

    @property
    def device(self) -> torch.device: ...

    def put(self, batch: Any) -> Batch:
        """Return a batch, in any form that `etl.fit` accepts, as tensors on the device.

        Tensors that are already there are not copied.
        """

    def send(self, batch: Batch) -> Sent:
        """Begin to copy `batch` to the device while it computes."""

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocate memory from which the device copies fastest: uint8 of shape `(nbytes,)`, uninitialised."""

    def place(self, model: torch.nn.Module, dtype: str | None) -> torch.nn.Module:
        """Move `model` to the device and convert its floating-point parameters to `dtype`, in place; return it.

        None leaves their dtypes as they are.
        """

    def synchronize(self) -> None:
        """Wait until the device has finished all of its work, so that a clock can be read."""


def backend(name: str = "auto") -> Backend:
    """Return a backend: "cpu", "cuda" for the current CUDA device, "cuda:1" for another, or the choice of "auto".

    "auto" compares the environment variables BACKEND_PRIORITY_CPU and BACKEND_PRIORITY_GPU (0 if not set) and takes the
    backend with the higher integer. If they are equal, it takes "cuda" if there is a device, and otherwise "cpu".

    Raises
    ------
    ValueError
        If the name is unknown, or a variable is not an integer.
    RuntimeError
        If the backend that was asked for, or preferred by the variables, is not available, or there are fewer devices.

    Examples
    --------
    >>> backend = etl.backend("cpu")
    >>> features, labels = backend.put(etl.Batch(np.zeros((4, 3), np.float32), np.arange(4)))
    >>> features.device
    device(type='cpu')
    """
    torch = import_torch()
    kind, index, reason = choose_device(name)
    if kind == "cuda":
        if not torch.cuda.is_available():
            raise RuntimeError(
                f"backend {kind!r} was {reason}, but torch {torch.__version__} finds no CUDA device here"
            )
        if index is not None and index >= torch.cuda.device_count():
            raise RuntimeError(f"backend {name!r} was {reason}, but there are {torch.cuda.device_count()} CUDA devices")
        from etl.training.backends.cuda import CudaBackend

        return CudaBackend(index)
    from etl.training.backends.cpu import CpuBackend

    return CpuBackend()


def choose_device(name: str) -> tuple[str, int | None, str]:
    """Return the kind of device that `name` means, its index if `name` has one, and why it was chosen.

    `backend` lists the errors.
    """
    kind, colon, index = name.partition(":")
    if (colon and (kind != "cuda" or not index.isdecimal())) or kind not in ("auto", *NAMES):
        raise ValueError(f"unknown backend {name!r}; known: auto, {', '.join(NAMES)}, cuda:0, cuda:1 and so on")
    if kind == "auto":
        chosen, reason = _choose(import_torch().cuda.is_available())
        return chosen, None, reason
    return kind, int(index) if colon else None, "asked for"


def import_torch() -> Any:
    """Import torch; raise `RuntimeError` that says how to install it if it is missing."""
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
