"""Operations on arrays of any library: a view of the memory, the device, a copy.

No library is imported here: an array can only exist if its library was imported already.
"""

from __future__ import annotations

import copy
import functools
import numbers
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

# Values that are not arrays: they have no pages to read, but belong to the content of a batch.
SCALARS = (numbers.Number, str, bytes, os.PathLike, np.generic)
# DLPack's numbers of the memories that the CPU reads: its own, pinned for CUDA or ROCm, and managed by CUDA.
CPU_READABLE = (1, 3, 11, 13)
DLPACK_CUDA = 2


class ArrayLibrary:
    """Operations on arrays of one library; this class itself serves arrays that only `__array__` converts."""

    def view(self, array: Any) -> np.ndarray | None:  # noqa: ARG002
        """Wait until `array` is computed and copied, and return its memory as a numpy array.

        Return None if it is on a device, or can only be converted by a copy that the user's own loop might never make.
        Numbers that numpy does not know, such as bfloat16, are returned as integers of the same size.
        """
        return None

    def to_host(self, array: Any) -> np.ndarray:
        """Return the content of `array` as a numpy array: its view if there is one, or else a copy."""
        viewed = self.view(array)
        return np.asarray(array) if viewed is None else viewed

    def numbers_in(self, array: Any) -> np.ndarray:
        """Return the numbers in `array` with a dtype with which numpy can compute."""
        return self.to_host(array)

    def device_of(self, array: Any) -> str | None:  # noqa: ARG002
        """Return the name of the device that holds `array`; None if the CPU can read it."""
        return None

    def shape_of(self, array: Any) -> tuple[int, ...]:
        """Return the shape of `array`."""
        return tuple(array.shape) if hasattr(array, "shape") else self.to_host(array).shape

    def dtype_of(self, array: Any) -> str:
        """Return the name of the dtype as numpy has it, such as "float32"."""
        dtype = getattr(array, "dtype", None)
        return str(dtype if isinstance(dtype, np.dtype) else self.to_host(array).dtype)

    def objects_in(self, array: Any) -> Sequence[Any] | None:  # noqa: ARG002
        """Return the Python objects in `array`; None if it holds numbers."""
        return None

    def copy(self, array: Any) -> Any:
        """Return an equal array of the same library in memory of its own."""
        return array.copy() if callable(getattr(array, "copy", None)) else copy.deepcopy(array)


class _Numpy(ArrayLibrary):
    def view(self, array: Any) -> np.ndarray | None:
        return array  # type: ignore[no-any-return]

    def shape_of(self, array: Any) -> tuple[int, ...]:
        return array.shape  # type: ignore[no-any-return]

    def objects_in(self, array: Any) -> Sequence[Any] | None:
        return array.ravel().tolist() if array.dtype.hasobject else None

    def copy(self, array: Any) -> Any:
        return np.array(array, order="K", subok=not isinstance(array, np.memmap))


class _Buffer(ArrayLibrary):
    """Objects with the buffer protocol, such as `memoryview` and `array.array`."""

    def view(self, array: Any) -> np.ndarray | None:
        return np.asarray(memoryview(array))

    def copy(self, array: Any) -> Any:
        return np.array(array).data if isinstance(array, memoryview) else copy.copy(array)


class _Torch(ArrayLibrary):
    def view(self, array: Any) -> np.ndarray | None:
        torch = sys.modules["torch"]
        if not array.is_cpu:
            _wait_for_torch_device(torch, array.device)
            return None
        if array.layout is not torch.strided:
            return None
        detached = array.detach() if array.requires_grad else array
        try:
            viewed: np.ndarray = detached.numpy()
        except TypeError:  # numpy has no such dtype
            bits = {1: torch.uint8, 2: torch.int16}.get(array.element_size())
            return None if bits is None else np.asarray(detached.view(bits).numpy())
        except RuntimeError:  # conjugated or negated only when it is read, or nested
            return None
        return viewed

    def to_host(self, array: Any) -> np.ndarray:
        viewed = self.view(array)
        if viewed is None:
            detached = array.detach().cpu()
            strided = detached if array.layout is sys.modules["torch"].strided else detached.to_dense()
            viewed = self.view(strided.resolve_conj().resolve_neg())
        if viewed is None:
            raise TypeError(f"a tensor of {array.dtype} cannot be converted to numpy; yield dense tensors")
        return viewed

    def numbers_in(self, array: Any) -> np.ndarray:
        host = self.to_host(array)
        return host if str(host.dtype) == self.dtype_of(array) else self.to_host(array.float())

    def device_of(self, array: Any) -> str | None:
        return None if array.is_cpu else str(array.device)

    def shape_of(self, array: Any) -> tuple[int, ...]:
        return array.shape  # type: ignore[no-any-return]

    def dtype_of(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def copy(self, array: Any) -> Any:
        return array.detach().clone()


def _wait_for_torch_device(torch: Any, device: Any) -> None:
    synchronize = getattr(getattr(torch, device.type, None), "synchronize", None)
    if synchronize is None:
        raise TypeError(f"torch cannot wait for the device {device}, so loading onto it cannot be timed")
    synchronize(*([device] if device.type in ("cuda", "xpu") else []))


class _Jax(ArrayLibrary):
    def view(self, array: Any) -> np.ndarray | None:
        array.block_until_ready()
        # An array of a single CPU shares its memory with numpy, whatever its dtype.
        devices = array.devices()
        return np.asarray(array) if len(devices) == 1 and next(iter(devices)).platform == "cpu" else None

    def device_of(self, array: Any) -> str | None:
        return (
            ",".join(sorted(f"{each.platform}:{each.id}" for each in array.devices() if each.platform != "cpu")) or None
        )


class _TensorFlow(ArrayLibrary):
    def view(self, array: Any) -> np.ndarray | None:
        if self.device_of(array) is not None:
            sys.modules["tensorflow"].test.experimental.sync_devices()
            return None
        # Not `memoryview`, which knows no bfloat16 and takes ten times as long.
        return np.frombuffer(array, array.dtype.as_numpy_dtype).reshape(array.shape)

    def device_of(self, array: Any) -> str | None:
        return _tensorflow_device(array.device)

    def dtype_of(self, array: Any) -> str:
        return str(np.dtype(array.dtype.as_numpy_dtype))

    def objects_in(self, array: Any) -> Sequence[Any] | None:
        return array.numpy().ravel().tolist() if array.dtype == sys.modules["tensorflow"].string else None

    def copy(self, array: Any) -> Any:
        return array  # immutable


@functools.cache
def _tensorflow_device(name: str) -> str | None:
    spec = sys.modules["tensorflow"].DeviceSpec.from_string(name)
    return None if spec.device_type == "CPU" else f"{spec.device_type.lower()}:{spec.device_index}"


class _Dlpack(ArrayLibrary):
    def view(self, array: Any) -> np.ndarray | None:
        kind, index = array.__dlpack_device__()
        if kind not in CPU_READABLE:
            _wait_for_dlpack_device(array, kind, index)
            return None
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError):  # a dtype that numpy does not know, or read-only for numpy 1
            return None

    def to_host(self, array: Any) -> np.ndarray:
        if self.device_of(array) is not None and hasattr(array, "get"):
            return np.asarray(array.get())  # CuPy refuses implicit conversions
        return super().to_host(array)

    def device_of(self, array: Any) -> str | None:
        kind, index = array.__dlpack_device__()
        if kind in CPU_READABLE:
            return None
        return f"cuda:{index}" if kind == DLPACK_CUDA else f"DLPack device {int(kind)}:{index}"


def _wait_for_dlpack_device(array: Any, kind: int, index: int) -> None:
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if kind == DLPACK_CUDA and cupy is not None:
        cupy.cuda.Device(index).synchronize()
    elif kind == DLPACK_CUDA and torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize(index)
    else:
        raise TypeError(
            f"nothing that is imported can wait for a {type(array).__name__} on DLPack device {int(kind)}:{index}, so "
            "loading onto it cannot be timed; yield tensors of torch or JAX"
        )


def library_of(value: Any) -> ArrayLibrary | None:
    """Return the library that `value` is an array of; None if it is not an array."""
    kind = type(value)
    if kind not in _LIBRARIES:
        _LIBRARIES[kind] = _find_library(value)
    return _LIBRARIES[kind]


# By type, because the clock asks for every array of every batch.
_LIBRARIES: dict[type, ArrayLibrary | None] = {}


def _find_library(value: Any) -> ArrayLibrary | None:
    if isinstance(value, np.ndarray):
        return _Numpy()
    if isinstance(value, SCALARS):
        return None
    if isinstance(value, _class_of("torch", "Tensor")):
        return _Torch()
    if isinstance(value, _class_of("jax", "Array")):
        return _Jax()
    if isinstance(value, _class_of("tensorflow", "Tensor")):
        return _TensorFlow()
    if hasattr(value, "__dlpack__"):
        return _Dlpack()
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return ArrayLibrary()
    try:
        memoryview(value)
    except TypeError:
        return None
    return _Buffer()


def _class_of(module: str, name: str) -> Any:
    """Return a class of a library, or none at all if the library is not imported."""
    return getattr(sys.modules.get(module), name, ())
