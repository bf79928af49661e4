"""Memory and large arrays that processes share."""

from __future__ import annotations

import contextlib
import os

import numpy as np
import pytest

from etl.prefetch.shared_memory import SharedMemory, SharedObject, SharedView, load_shared


def test_large_arrays_of_a_source_are_shared_and_copied_where_they_are_changed() -> None:
    array = np.arange(100_000.0)
    shared = SharedObject({"large": array, "small": np.arange(3)})
    assert len(shared.parts) == 2
    first, second = (load_shared(shared.fd, shared.parts) for _ in range(2))
    first["large"][7] = -1
    assert first["large"][7] == -1
    assert np.array_equal(second["large"], array)
    assert np.array_equal(second["small"], [0, 1, 2])
    shared.close()


def test_shared_memory_is_seen_where_it_is_and_used_again() -> None:
    memory = SharedMemory("test")
    with contextlib.closing(memory):
        view = SharedView(memory.fd)
        kept = [memory.allocate(400_000).view(np.float32).reshape(-1, 10) for _ in range(9)]
        for number, array in enumerate(kept):
            array[...] = number
            assert (view.array(memory.place(array[3:5])) == number).all()
            assert view.array(memory.place(array[3:5])).shape == (2, 10)
        before = os.fstat(memory.fd).st_blocks
        addresses = {array.ctypes.data for array in kept}
        del array, kept
        assert os.fstat(memory.fd).st_blocks * 512 < before * 512 - 8 * 390_000
        again = memory.allocate(400_000)
        assert again.ctypes.data in addresses
        assert not again.any()
        with pytest.raises(ValueError, match="not in this shared memory"):
            memory.place(np.zeros(3))
