"""Memory and bytes read include this process and its children."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from etl.measuring import process_tree
from etl.measuring.process_tree import PeakMemory, children_nbytes, mapped_nbytes, read_nbytes
from tests.programs import output_of

MEGABYTE = 1 << 20
# Megabytes of what is mapped or shared: several times what a child takes itself.
SIZE = 64
HOLD_100_MB = "import sys; data = b'x' * (100 << 20); print('ready', flush=True); sys.stdin.readline()"


def test_memory_that_was_freed_again_is_in_the_peak() -> None:
    with PeakMemory() as before:
        pass
    with PeakMemory() as during:
        held = np.ones(SIZE * MEGABYTE, np.uint8)
        during.look()
        del held
    assert_megabytes(during.nbytes - before.nbytes, SIZE)


def test_the_memory_of_a_child_is_in_the_peak() -> None:
    with PeakMemory() as before:
        pass
    with PeakMemory() as during, another_process(HOLD_100_MB):
        during.look()
    assert 100 * MEGABYTE < during.nbytes - before.nbytes < 160 * MEGABYTE


@pytest.mark.parametrize("missing", ["status", "smaps_rollup"])
def test_memory_that_a_kernel_does_not_tell_is_an_error_and_not_left_out(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = process_tree._values
    monkeypatch.setattr(process_tree, "_values", lambda file: read(file.replace(missing, "missing")))
    with pytest.raises(RuntimeError, match=f"/proc/self/{missing} has no .*; measuring needs Linux"):
        PeakMemory()


def write_file(path: Path, megabytes: int = SIZE) -> Path:
    """Write random bytes to a file, and return its path."""
    path.write_bytes(os.urandom(MEGABYTE) * megabytes)
    return path


@contextmanager
def mapped(path: Path, access: int = mmap.ACCESS_READ) -> Iterator[mmap.mmap]:
    """Map a file, and read all of its pages."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=access) as memory:
        memory.find(b"not there")
        yield memory


@contextmanager
def another_process(script: str, *arguments: object) -> Iterator[int]:
    """Run a script that prints "ready" and is ended by the end of its input; yields its id."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child.pid
        child.stdin.close()


def memory_now() -> int:
    memory = PeakMemory()
    memory.look()
    return memory.nbytes


def assert_megabytes(nbytes: int, expected: int, tolerance: int = 20) -> None:
    assert abs(nbytes - expected * MEGABYTE) < tolerance * MEGABYTE


MAP_ALL = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
first, last = (int(each) << 20 for each in sys.argv[2:])
memory.find(b"not there", first, last)
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_library_that_is_mapped_does_not_count(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    shutil.copy(sys.executable, library)
    with library.open("ab") as file:
        file.write(os.urandom(MEGABYTE) * SIZE)
    before = memory_now()
    with mapped(library):
        assert_megabytes(memory_now() - before, 0)
        assert not any("library.so" in each for each in mapped_nbytes())


def test_a_file_of_a_package_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    before = memory_now()
    with mapped(write_file(tmp_path / "site-packages" / "table")):
        assert_megabytes(memory_now() - before, 0)


def test_a_data_file_counts_once_whether_one_process_maps_it_or_two_even_if_it_was_removed(tmp_path: Path) -> None:
    data = write_file(tmp_path / "data")
    before = memory_now()
    with mapped(data):
        assert_megabytes(memory_now() - before, SIZE)
        with another_process(MAP_ALL, data, 0, SIZE):
            for _ in range(2):
                assert_megabytes(memory_now() - before, SIZE)
                (nbytes,) = (nbytes for file, nbytes in mapped_nbytes().items() if f"{tmp_path}/data" in file)
                assert_megabytes(nbytes, SIZE, tolerance=1)
                data.unlink(missing_ok=True)


def test_two_parts_of_a_data_file_that_two_children_map_add_up(tmp_path: Path) -> None:
    data = write_file(tmp_path / "data", 128)
    before = memory_now()
    with another_process(MAP_ALL, data, 0, 50), another_process(MAP_ALL, data, 78, 128):
        assert_megabytes(memory_now() - before, 100, tolerance=30)  # read-ahead maps some more


def test_a_data_file_counts_fully_if_a_process_that_is_no_child_maps_it_too(tmp_path: Path) -> None:
    data = write_file(tmp_path / "data")
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {MAP_ALL!r}, *sys.argv[1:]])"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_tree, "children", list)
        before = memory_now()
        with mapped(data), another_process(script, data, 0, SIZE):
            assert_megabytes(memory_now() - before, SIZE)


def test_pages_of_a_data_file_that_were_written_to_privately_count_once(tmp_path: Path) -> None:
    before = memory_now()
    with mapped(write_file(tmp_path / "data"), mmap.ACCESS_COPY) as memory:
        memory[: SIZE // 2 * MEGABYTE] = bytes(SIZE // 2 * MEGABYTE)
        assert_megabytes(memory_now() - before, SIZE)


def test_a_file_in_shared_memory_is_shared_memory() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        data = write_file(Path(folder) / "data")
        before = memory_now()
        with mapped(data):
            assert_megabytes(memory_now() - before, SIZE)
            assert not any(folder in each for each in mapped_nbytes())


def test_memory_that_a_forked_child_has_from_this_process_does_not_count_for_each() -> None:
    # In a process of its own: children of earlier tests would have a share of its memory, too.
    script = "import tests.measuring.test_process_tree as tests; tests.print_memory_around_forks()"
    before, during, before_shared, during_shared = map(int, output_of("-c", script).split())
    # Private memory counts fully for this process, and half of it for the child, which may copy it.
    assert during - before == pytest.approx(before / 2, abs=20 * MEGABYTE)
    private = before_shared - SIZE * MEGABYTE
    assert during_shared - before_shared == pytest.approx(private / 2, abs=20 * MEGABYTE)


def print_memory_around_forks() -> None:
    """Print what `memory_around_a_fork` returns, for private and for shared memory."""
    print(*memory_around_a_fork(is_shared=False), *memory_around_a_fork(is_shared=True))


def memory_around_a_fork(is_shared: bool) -> tuple[int, int]:
    """Return the memory of this process with `SIZE` MB, before and while it has a forked child that has read them."""
    kind = mmap.MAP_SHARED if is_shared else mmap.MAP_PRIVATE
    flags = kind | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    (waits, wakes), (is_ready, ready) = os.pipe(), os.pipe()
    with mmap.mmap(-1, SIZE * MEGABYTE, flags=flags) as memory:
        before = memory_now()
        child = os.fork()
        if child == 0:
            os.close(wakes)
            memory.find(b"not there")
            os.write(ready, b"!")
            os.read(waits, 1)
            os._exit(0)
        os.read(is_ready, 1)
        during = memory_now()
        os.close(wakes)
        os.waitpid(child, 0)
    for each in (waits, is_ready, ready):
        os.close(each)
    return before, during


def test_memory_of_children_is_theirs_alone() -> None:
    before = children_nbytes()
    with another_process(HOLD_100_MB):
        assert 100 * MEGABYTE < children_nbytes() - before < 130 * MEGABYTE


def test_shared_memory_that_children_have_from_this_process_is_not_theirs() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        data = write_file(Path(folder) / "data")
        before = children_nbytes()
        with mapped(data), another_process(MAP_ALL, data, 0, SIZE):
            assert children_nbytes() - before < 30 * MEGABYTE


def test_bytes_that_are_read_are_counted_and_again_when_they_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "read"
    path.write_bytes(bytes(5 << 20))
    before = read_nbytes()
    path.read_bytes()
    once = read_nbytes() - before
    path.read_bytes()
    assert 5 << 20 <= once < 6 << 20
    assert read_nbytes() - before >= 10 << 20


def test_bytes_that_a_child_has_read_are_counted_when_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "read"
    path.write_bytes(bytes(5 << 20))
    before = read_nbytes()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    assert read_nbytes() - before >= 5 << 20
