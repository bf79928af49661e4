"""A policy for device memory: how torch's allocators take, split and keep the memory of a CUDA device."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from etl.runtime.audit import Audit
from etl.runtime.policy import Policy

# torch reads the first of them that is set, when it is loaded.
VARIABLE, GENERAL_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
BACKEND, FRACTION, GARBAGE = "backend", "per_process_memory_fraction", "garbage_collection_threshold"
EXPANDABLE, SPLIT, ROUNDUP = "expandable_segments", "max_split_size_mb", "roundup_power2_divisions"
BACKENDS = ("native", "cudaMallocAsync")
BOOLEANS = ("True", "False")
MIB = 1 << 20
# As in torch: it keeps smaller blocks in segments of their own.
MIN_SPLIT_MIB = 20
# Larger than the segments that torch takes for small blocks, so it is in one of those that the policy is about.
PROBE_NBYTES = 64 * MIB
# torch keeps a share as a number of bytes.
SHARE_TOLERANCE = 1e-6


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
    GARBAGE: (lambda text: _is_share(text) and float(text) < 1, "a share between 0 and 1"),
    ROUNDUP: (_is_power_of_2, "a power of 2"),
    "pinned_use_cuda_host_register": (BOOLEANS.__contains__, "True or False"),
    "pinned_num_register_threads": (_is_power_of_2, "a power of 2"),
    "pinned_use_background_threads": (BOOLEANS.__contains__, "True or False"),
}
# What only the native backend does.
_NATIVE = (EXPANDABLE, SPLIT, GARBAGE, ROUNDUP)
# torch's separator of settings; values in brackets have commas of their own.
_SEPARATOR = re.compile(r",(?![^\[]*\])")
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
        are needed again and again, and has no effect on segments that grow.

        "per_process_memory_fraction:SHARE" limits this process to a share of the device's memory. Allocations beyond it
        fail with `torch.OutOfMemoryError`.

        "garbage_collection_threshold:SHARE" gives free blocks back once this share of such a limit is in use;
        "roundup_power2_divisions:N" rounds sizes up, so that more blocks can be used again.

        "pinned_use_cuda_host_register:True", "pinned_num_register_threads:N" and "pinned_use_background_threads:True"
        speed up the allocation of page-locked memory, which batches are copied from, and its reuse.
    device : int, str or torch.device, optional
        CUDA device that the limit is for; by default the current one. All other settings are for every device.

    Raises
    ------
    ValueError
        If a name is unknown, occurs twice or has an invalid value, or two settings exclude each other.
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
        # Number of the device, known on entering.
        self._index = 0

    def _put_in_force(self, stack: ExitStack) -> None:
        if self._settings:
            self._apply(self._load_torch(), stack)

    def audit(self) -> Audit:
        """Report what is in force and what it does; raise `RuntimeError` outside of the `with` block.

        Takes blocks of device memory to see what becomes of them, if there is room. If the limit is among the settings,
        one of them is larger than the limit. torch gives back the memory that it keeps meanwhile.
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
        self._index = torch.cuda.current_device() if device.index is None else device.index  # type: ignore[redundant-expr]
        return torch

    def _apply(self, torch: Any, stack: ExitStack) -> None:
        changed = {name: value for name, value in self._settings.items() if name not in (BACKEND, FRACTION)}
        if changed:
            # The last value of a name counts. What was there before is kept as it is: torch has more settings.
            former = _text(torch)
            defaults = _listed({name: _DEFAULTS[name] for name in changed if name in _DEFAULTS})
            stack.callback(_set, torch, ",".join(filter(None, (defaults, former))))
            try:
                _set(torch, ",".join(filter(None, (former, _listed(changed)))))
            except (RuntimeError, ValueError) as error:
                raise RuntimeError(
                    f"device memory policy {self.policy!r}: torch {torch.__version__}: {error}"
                ) from None
        if FRACTION in self._settings:
            former_share = _share(torch, self._index)
            stack.callback(
                torch.cuda.set_per_process_memory_fraction, 1.0 if former_share is None else former_share, self._index
            )
            torch.cuda.set_per_process_memory_fraction(float(self._settings[FRACTION]), self._index)

    def _in_force(self, torch: Any) -> dict[str, str]:
        """Return the settings of this policy's names, as torch reports them."""
        found = {BACKEND: torch.cuda.get_allocator_backend(), **_parts(_text(torch))}
        if FRACTION in self._settings:
            share, wanted = _share(torch, self._index), self._settings[FRACTION]
            is_equal = share is None or math.isclose(share, float(wanted), abs_tol=SHARE_TOLERANCE)
            found[FRACTION] = wanted if is_equal else f"{share:g}"
        return {name: found[name] for name in self._settings if name in found}

    def _effects(self, torch: Any) -> Iterator[tuple[str, bool]]:
        """Yield the effects that can be observed, each with True if it shows that a setting does nothing."""
        backend = torch.cuda.get_allocator_backend()
        ignored = [name for name in self._settings if name in _NATIVE and backend != BACKENDS[0]]
        if ignored:
            yield f"the backend {backend} ignores {', '.join(ignored)}", True
            return
        share = _share(torch, self._index)
        if GARBAGE in self._settings and share is not None and share >= 1:
            yield f"{GARBAGE} counts only below a {FRACTION} that is less than 1", True
        if self._settings.get(EXPANDABLE) == "True":
            yield _see_growth(torch, self._index)
        if SPLIT in self._settings:
            yield _see_splitting(torch, self._index, 2 * int(self._settings[SPLIT]) * MIB)
        if FRACTION in self._settings:
            total = torch.cuda.get_device_properties(self._index).total_memory
            nbytes = int(total * float(self._settings[FRACTION])) + MIB
            refuses = _take(torch, self._index, nbytes) is None
            yield f"{nbytes:,} bytes are {'refused' if refuses else 'given out'}", not refuses


def variables_of(policy: str) -> dict[str, str]:
    """Return the environment variable that a process needs before it loads torch, with its value; often none."""
    backend = _parse(policy).get(BACKEND)
    if backend is None:
        return {}
    present = os.environ.get(VARIABLE) or os.environ.get(GENERAL_VARIABLE) or ""
    others = [each for each in _SEPARATOR.split(present) if each and not each.startswith(f"{BACKEND}:")]
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
    if SPLIT in found and found.get(EXPANDABLE) == "True":
        raise ValueError(f"device memory policy {policy!r}: {SPLIT} has no effect on segments that grow: leave one out")
    return found


def _text(torch: Any) -> str:
    """Return the settings that torch's allocators were given last, as a text."""
    read = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    if read is not None:
        return str(read())
    # torch before 2.9 has it in its snapshots only, and those of its own backend only.
    if torch.cuda.get_allocator_backend() != BACKENDS[0]:
        return ""
    return str(torch.cuda.memory._snapshot()["allocator_settings"][VARIABLE])


def _parts(text: str) -> dict[str, str]:
    """Return the settings in a text of torch's, by name."""
    pairs = (pair.partition(":") for pair in _SEPARATOR.split(text) if ":" in pair)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _set(torch: Any, text: str) -> None:
    write = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
    write(text)


def _share(torch: Any, device: int) -> float | None:
    """Return the share of the device's memory that this process may take; None if this torch does not say."""
    read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    return None if read is None else read(device)


def _listed(settings: Mapping[str, str]) -> str:
    return ",".join(f"{name}:{value}" for name, value in settings.items())


def _take(torch: Any, device: int, nbytes: int) -> Any:
    """Return a tensor of `nbytes` on the device; None if there is too little memory."""
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device=torch.device("cuda", device))
    except torch.cuda.OutOfMemoryError:
        return None


def _new_segment(torch: Any, block: Any, before: set[int]) -> Any:
    """Return the segment that a block is in if it is not one of those `before`, by address; otherwise None."""
    for each in torch.cuda.memory_snapshot():
        if each["address"] <= block.data_ptr() < each["address"] + each["total_size"]:
            return None if each["address"] in before else each
    return None


def _see_growth(torch: Any, device: int) -> tuple[str, bool]:
    """Take a block that needs a new segment, and return what that is like, and True if it cannot grow."""
    torch.cuda.empty_cache()
    before = {each["address"] for each in torch.cuda.memory_snapshot()}
    block = _take(torch, device, PROBE_NBYTES)
    segment = None if block is None else _new_segment(torch, block, before)
    if segment is None:
        return "no new segment was needed, so its growth was not observed", False
    grows = bool(segment["is_expandable"])
    return f"a new segment can{'' if grows else 'not'} grow", not grows


def _see_splitting(torch: Any, device: int, nbytes: int) -> tuple[str, bool]:
    """Free a block of `nbytes` in a new segment, take a quarter of that, and return if it was split, twice."""
    torch.cuda.empty_cache()
    before = {each["address"] for each in torch.cuda.memory_snapshot()}
    free, _ = torch.cuda.mem_get_info(device)
    whole = _take(torch, device, nbytes) if nbytes < free / 2 else None
    if whole is None or _new_segment(torch, whole, before) is None:
        return f"no new block of {nbytes:,} bytes could be had, so splitting was not observed", False
    begin = whole.data_ptr()
    del whole
    part = _take(torch, device, nbytes // 4)
    splits = part is not None and begin <= part.data_ptr() < begin + nbytes
    return f"a free block of {nbytes:,} bytes is {'' if splits else 'not '}split", splits
