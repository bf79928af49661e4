"""asv's suites of runtime settings: each in turns with the default. `setup_cache` measures all of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from benchmarks.cells import chosen_profile
from benchmarks.settings.setting import ALLOCATORS_HERE, AXES
from benchmarks.settings.settings_turns import Key, SettingPairs, take_turns
from benchmarks.suite import Suite, as_samples, attributes, explained

PROFILE = chosen_profile()
PAIR_SECONDS = 0.5
MEASURING_TIMEOUT_SECONDS = 3 * 3600


class AgainstDefault(Suite, ABC):
    """Time and memory of an epoch under a setting, over those of the default. A subclass chooses the axis."""

    param_names = ["workload", "value"]
    page_note = (
        "Below 1 the setting is better than the default, above it worse; the value default is the default against "
        "itself, which shows what is due to chance."
    )

    @attributes(timeout=MEASURING_TIMEOUT_SECONDS)
    def setup_cache(self) -> dict[Key, SettingPairs]:
        return take_turns(AXES, range(PROFILE.setting_rounds), PAIR_SECONDS)

    @property
    @abstractmethod
    def axis(self) -> str:
        """Field of `Setting`."""

    @attributes(unit="ratio")
    def track_time_ratio(self, cache: dict[Key, SettingPairs], *values: str) -> dict[str, Any]:
        """Seconds of an epoch under the setting over those under the default: medians of turns, pair by pair."""
        return as_samples(math.exp(each) for each in self._measured(cache, *values).log_ratios)

    @attributes(unit="ratio")
    def track_memory_ratio(self, cache: dict[Key, SettingPairs], *values: str) -> dict[str, Any]:
        """Peak memory above that of the process before, over the same under the default."""
        return as_samples(other / base for base, other in self._measured(cache, *values).memory)

    def _measured(self, cache: dict[Key, SettingPairs], workload: str, value: str) -> SettingPairs:
        each = cache[self.axis, workload, value]
        if each.missing:
            raise NotImplementedError(each.missing)  # asv's n/a
        if each.failure:
            raise RuntimeError(each.failure)
        return each


def _params(axis: str) -> list[list[str]]:
    return [list(AXES[axis].workloads), list(AXES[axis].values)]


# A suite whose values are all n/a would be a blank chart.
if PROFILE.setting_rounds:

    @explained
    class GarbageCollection(AgainstDefault):
        """CPython's garbage collector: `annotations` parses text beside half a million objects."""

        axis = "garbage_collection"
        params = _params(axis)

    @explained
    class Heap(AgainstDefault):
        """glibc's allocator: `new batches` allocates 38 MB for every batch."""

        axis = "heap"
        params = _params(axis)

    @explained
    class Threads(AgainstDefault):
        """Threads of `ThreadPolicy`. The default is no policy, so that the libraries choose their threads."""

        axis = "threads"
        params = _params(axis)

    @explained
    class Dtypes(AgainstDefault):
        """The type of features and weights, against float32; `product` multiplies 512 x 512 matrices."""

        axis = "dtype"
        params = _params(axis)

    if "device_memory" in AXES:

        @explained
        class DeviceMemory(AgainstDefault):
            """torch's allocators of device memory, as `DeviceMemoryPolicy` sets them."""

            axis = "device_memory"
            params = _params(axis)

    if ALLOCATORS_HERE:

        @explained
        class Allocator(AgainstDefault):
            """Another `malloc` than glibc's, preloaded."""

            axis = "allocator"
            params = _params(axis)
