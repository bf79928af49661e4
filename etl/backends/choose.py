"""Which backend is used."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from etl.backends.backend import Backend

NAMES = ("cpu", "cuda")
# The variables of ND4J, "Deeplearning4j With GPUs": the backend with the highest number is used.
PRIORITY_VARIABLES = {"cpu": "BACKEND_PRIORITY_CPU", "cuda": "BACKEND_PRIORITY_GPU"}


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
        from etl.backends.cuda import CudaBackend

        return CudaBackend()
    from etl.backends.cpu import CpuBackend

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
