"""A policy for device memory: how torch's allocators take, split and keep the memory of a CUDA device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from etl.runtime.audit import Audit
from etl.runtime.policy import Policy

# torch reads it when it is loaded.
VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
BACKEND, FRACTION = "backend", "per_process_memory_fraction"
EXPANDABLE, SPLIT = "expandable_segments", "max_split_size_mb"
BACKENDS = ("native", "cudaMallocAsync")
BOOLEANS = ("True", "False")
MIB = 1 << 20
# As in torch: it keeps smaller blocks in segments of their own.
MIN_SPLIT_MIB = 20
# Larger than the segments that torch takes for small blocks, so it is in one of those that the policy is about.
PROBE_NBYTES = 64 * MIB


def _is_share(text: str) -> bool:
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def _is_power_of_2(text: str) -> bool:
    return text.isdecimal() and int(text).bit_count() == 1


# What a value of each setting must be, in a check and in words.
_VALUES: Mapping[str, tuple[Callable[[str], bool], str]] = {
    BACKEND: (BACKENDS.__contains__, " or ".join(BACKENDS)),
    FRACTION: (_is_share, "a share above 0, and at most 1"),
    EXPANDABLE: (BOOLEANS.__contains__, "True or False"),
    SPLIT: (lambda text: text.isdecimal() and int(text) >= MIN_SPLIT_MIB, f"{MIN_SPLIT_MIB} or more whole MiB"),
    "garbage_collection_threshold": (lambda text: _is_share(text) and float(text) < 1, "a share between 0 and 1"),
    "roundup_power2_divisions": (_is_power_of_2, "a power of 2"),
    "pinned_use_cuda_host_register": (BOOLEANS.__contains__, "True or False"),
    "pinned_num_register_threads": (_is_power_of_2, "a power of 2"),
    "pinned_use_background_threads": (BOOLEANS.__contains__, "True or False"),
}
# Defaults of the settings that torch does not reset by itself whenever settings change.
_DEFAULTS = {
    EXPANDABLE: "False",
    "pinned_use_cuda_host_register": "False",
    "pinned_num_register_threads": "1",
    "pinned_use_background_threads": "False",
}


class DeviceMemoryPolicy(Policy):
    """A context manager that configures torch's allocators of device memory and of page-locked host memory.

    Parameters
    ----------
    policy : str
        "default" changes nothing. Otherwise `name:value` pairs, separated by commas, with the names and values of
        torch's variable PYTORCH_CUDA_ALLOC_CONF:

        "backend:cudaMallocAsync" lets CUDA's own allocator keep freed memory; "native" is torch's.

        "expandable_segments:True" lets a segment grow, instead of taking one for each larger size. It prevents
        fragmentation if sizes vary from batch to batch.

        "max_split_size_mb:N" does not split blocks of more than N MiB. It prevents fragmentation if a few large blocks
        are needed again and again.

        "per_process_memory_fraction:SHARE" limits this process to a share of the device's memory. Allocations beyond it
        fail with `torch.OutOfMemoryError`.

        "garbage_collection_threshold:SHARE" gives free blocks back once this share of the limit is in use;
        "roundup_power2_divisions:N" rounds sizes up, so that more blocks can be used again.

        "pinned_use_cuda_host_register:True", "pinned_num_register_threads:N" and "pinned_use_background_threads:True"
        speed up the allocation of page-locked memory, which batches are copied from, and its reuse.
    device : int, str or torch.device, optional
        CUDA device that the limit is for; by default the current one. All other settings are for every device.

    Raises
    ------
    ValueError
        If a name is unknown, occurs twice or has an invalid value.
    RuntimeError
        On entering, if the policy is in force already; torch finds no CUDA device, or `device` is none; the backend is
        another one than torch was loaded with; or this version of torch refuses a setting.

    Notes
    -----
    On exit, the former settings are restored. Memory that was taken under the policy stays as it is until it is freed.
    torch chooses its backend when it is loaded: if it is not yet, entering sets PYTORCH_CUDA_ALLOC_CONF and loads it.

    Source: "Memory management" in PyTorch's notes on CUDA semantics; "GPU memory caches" in "Deeplearning4j With GPUs".
    """

    def __init__(self, policy: str = "default", device: Any = None) -> None:
        self.policy = policy
        self.device = device
        self._settings = _parse(policy)

    def _put_in_force(self, stack: ExitStack) -> None:
        if self._settings:
            self._apply(self._load_torch(), stack)

    def audit(self) -> Audit:
        """Report what is in force and what it does; raise `RuntimeError` outside of the `with` block.

        Takes blocks of device memory to see what becomes of them. If the limit is among the settings, one of them is
        larger than the limit, and torch then gives back the memory that it keeps.
        """
        self._require_in_force()
        if not self._settings:
            return Audit("device memory", self.policy, "torch's own settings", "nothing was changed")
        torch = sys.modules["torch"]
        in_force = self._in_force(torch)
        missing = {name: value for name, value in self._settings.items() if in_force.get(name) != value}
        alarm = ""
        if missing:
            alarm = (
                f"device memory policy {self.policy} was asked for, and {_listed(missing)} is not in force any more: "
                "other code has changed torch's settings since. Remove that call."
            )
        effects = list(self._effects(torch))
        inert = "; ".join(effect for effect, is_inert in effects if is_inert)
        if inert and not alarm:
            alarm = f"device memory policy {self.policy} was asked for, but {inert}"
        observed = "; ".join(effect for effect, _ in effects) or "these settings have no effect that can be observed"
        return Audit("device memory", self.policy, _listed(in_force) or "nothing", observed, alarm)

    def _load_torch(self) -> Any:
        backend = self._settings.get(BACKEND)
        if "torch" not in sys.modules:
            os.environ.update(variables_of(self.policy))
        import torch

        device = torch.device("cuda" if self.device is None else self.device)
        if device.type != "cuda" or not torch.cuda.is_available():
            found = "no CUDA device here" if device.type == "cuda" else f"compute is on {device}"
            raise RuntimeError(f"device memory policy {self.policy!r} is for CUDA devices: {found}")
        if backend is not None and (loaded := torch.cuda.get_allocator_backend()) != backend:
            raise RuntimeError(
                f"device memory policy {self.policy!r}: torch was loaded with the backend {loaded}, which cannot be "
                f"changed any more; start Python with {VARIABLE}={BACKEND}:{backend}"
            )
        return torch

    def _apply(self, torch: Any, stack: ExitStack) -> None:
        changed = {name: value for name, value in self._settings.items() if name not in (BACKEND, FRACTION)}
        if changed:
            former = _texts(torch)
            restored = {**{name: _DEFAULTS[name] for name in changed if name in _DEFAULTS}, **former}
            stack.callback(_set, torch, restored)
            try:
                _set(torch, {**former, **changed})
            except (RuntimeError, ValueError) as error:
                raise RuntimeError(
                    f"device memory policy {self.policy!r}: torch {torch.__version__}: {error}"
                ) from None
        if FRACTION in self._settings:
            former_share = _share(torch, self.device)
            stack.callback(
                torch.cuda.set_per_process_memory_fraction, 1.0 if former_share is None else former_share, self.device
            )
            torch.cuda.set_per_process_memory_fraction(float(self._settings[FRACTION]), self.device)

    def _in_force(self, torch: Any) -> dict[str, str]:
        """Return the settings of this policy's names, as torch reports them."""
        found = {BACKEND: torch.cuda.get_allocator_backend(), **_texts(torch)}
        if FRACTION in self._settings:
            share, wanted = _share(torch, self.device), self._settings[FRACTION]
            found[FRACTION] = wanted if share is None or share == float(wanted) else f"{share:g}"
        return {name: found[name] for name in self._settings if name in found}

    def _effects(self, torch: Any) -> Iterator[tuple[str, bool]]:
        """Yield the effects that can be observed, each with True if it shows that a setting does nothing."""
        is_native = torch.cuda.get_allocator_backend() == BACKENDS[0]
        if is_native and self._settings.get(EXPANDABLE) == "True":
            expands = _is_expandable(torch, self.device)
            yield f"a new segment can{'' if expands else 'not'} grow", not expands
        if is_native and SPLIT in self._settings:
            nbytes = 2 * int(self._settings[SPLIT]) * MIB
            splits = _is_split(torch, self.device, nbytes)
            yield f"a free block of {nbytes:,} bytes is {'' if splits else 'not '}split", splits
        if FRACTION in self._settings:
            total = torch.cuda.get_device_properties(self.device or torch.cuda.current_device()).total_memory
            nbytes = int(total * float(self._settings[FRACTION])) + MIB
            refuses = _refuses(torch, self.device, nbytes)
            yield f"{nbytes:,} bytes are {'refused' if refuses else 'given out'}", not refuses


def variables_of(policy: str) -> dict[str, str]:
    """Return the environment variable that a process needs before it loads torch, with its value; often none."""
    backend = _parse(policy).get(BACKEND)
    if backend is None:
        return {}
    others = [each for each in os.environ.get(VARIABLE, "").split(",") if each and not each.startswith(f"{BACKEND}:")]
    return {VARIABLE: ",".join([f"{BACKEND}:{backend}", *others])}


def _parse(policy: str) -> dict[str, str]:
    """Return the settings in `policy`, or raise `ValueError`."""
    found: dict[str, str] = {}
    if policy == "default":
        return found
    for pair in policy.split(","):
        name, colon, value = (part.strip() for part in pair.partition(":"))
        if name not in _VALUES or not colon:
            raise ValueError(
                f"device memory policy {policy!r}: {pair.strip()!r} is not a setting; settings are default, or "
                f"name:value with {', '.join(_VALUES)}"
            )
        is_valid, wanted = _VALUES[name]
        if name in found:
            raise ValueError(f"device memory policy {policy!r}: {name} is given twice")
        if not is_valid(value):
            raise ValueError(f"device memory policy {policy!r}: {name} must be {wanted}, not {value!r}")
        found[name] = value
    return found


def _texts(torch: Any) -> dict[str, str]:
    """Return the settings that torch's allocators were given last."""
    # torch before 2.9 has it in its snapshots only.
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None) or (
        lambda: torch.cuda.memory._snapshot()["allocator_settings"][VARIABLE]
    )
    pairs = (pair.partition(":") for pair in read().split(",") if ":" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs if name.strip() in _VALUES}


def _set(torch: Any, settings: Mapping[str, str]) -> None:
    write = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    write(_listed(settings))


def _share(torch: Any, device: Any) -> float | None:
    """Return the share of the device's memory that this process may take; None if this torch does not say."""
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return None if read is None else read(device)


def _listed(settings: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in settings.items())


def _probe(torch: Any, device: Any, nbytes: int) -> Any:
    return torch.empty(nbytes, dtype=torch.uint8, device="cuda" if device is None else device)


def _is_expandable(torch: Any, device: Any) -> bool:
    """Return True if a new block is in a segment that can grow."""
    torch.cuda.empty_cache()  # otherwise the block could be in a segment from before
    block = _probe(torch, device, PROBE_NBYTES)
    return any(
        each["is_expandable"]
        for each in torch.cuda.memory_snapshot()
        if each["address"] <= block.data_ptr() < each["address"] + each["total_size"]
    )


def _is_split(torch: Any, device: Any, nbytes: int) -> bool:
    """Return True if a quarter of a free block of `nbytes` is given out."""
    torch.cuda.empty_cache()  # otherwise there could be a smaller free block that fits better
    whole = _probe(torch, device, nbytes)
    begin = whole.data_ptr()
    del whole
    part = _probe(torch, device, nbytes // 4)
    return bool(begin <= part.data_ptr() < begin + nbytes)


def _refuses(torch: Any, device: Any, nbytes: int) -> bool:
    """Return True if `nbytes` of device memory cannot be had."""
    try:
        _probe(torch, device, nbytes)
    except torch.cuda.OutOfMemoryError:
        return True
    return False
