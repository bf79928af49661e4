"""Real files are read into and dropped from the page cache, as the kernel confirms page by page."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from etl.measuring.page_cache import (
    absent_pages,
    drop_from_page_cache,
    pages_outside,
    read_into_page_cache,
    reports_pages,
)

PAGES = 64
NOBODY = 65534


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file on a disk, in the page cache, of `PAGES` pages of which the last is not full."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom((PAGES - 1) * mmap.PAGESIZE + 100))
    if drop_from_page_cache([path]):
        pytest.skip("files here are kept in memory")
    read_into_page_cache([path])
    return path


def test_dropped_files_are_outside_and_read_ones_inside(file: Path) -> None:
    assert pages_outside([file]) == 0
    assert drop_from_page_cache([file]) == 0
    assert [pages_outside([file]) for _ in range(3)] == [PAGES] * 3  # looking for pages reads none
    read_into_page_cache([file])
    assert pages_outside([file]) == 0


def test_pages_that_were_not_read_are_counted_one_by_one(file: Path) -> None:
    drop_from_page_cache([file])
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for page in (3, 40):
        os.pread(descriptor, 1, page * mmap.PAGESIZE)
    os.close(descriptor)
    assert pages_outside([file]) == PAGES - 2


def test_pages_that_were_just_written_are_dropped_and_not_lost(file: Path) -> None:
    content = os.urandom(PAGES * mmap.PAGESIZE)
    file.write_bytes(content)
    assert drop_from_page_cache([file]) == 0
    assert file.read_bytes() == content


READER = """
import mmap, sys
with open(sys.argv[1], "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
    content = bytes(mapped)
    print("read", flush=True)
    sys.stdin.readline()
    from etl.measuring.page_cache import release_pages
    release_pages()
    assert bytes(mapped) == content
    release_pages()
    print("released", flush=True)
    sys.stdin.readline()
"""


def test_pages_that_this_process_maps_are_dropped_and_read_again_by_the_map(file: Path) -> None:
    content = file.read_bytes()
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert bytes(mapped) == content
        assert drop_from_page_cache([file]) == 0
        assert pages_outside([file]) == PAGES
        assert bytes(mapped) == content


def test_pages_that_another_process_maps_stay_and_are_counted_until_it_releases_them(file: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "read\n"
        assert drop_from_page_cache([file]) == PAGES
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "released\n"
        assert drop_from_page_cache([file]) == 0
        reader.communicate("\n", timeout=60)
    assert reader.returncode == 0


def test_pages_of_several_files_are_added_up(file: Path, tmp_path: Path) -> None:
    other, empty = tmp_path / "other", tmp_path / "empty"
    other.write_bytes(bytes(3 * mmap.PAGESIZE))
    empty.touch()
    assert drop_from_page_cache([file, other, empty]) == 0
    assert pages_outside([file, other, empty]) == PAGES + 3
    read_into_page_cache([other, empty])
    assert pages_outside([file, other, empty]) == PAGES


def test_no_descriptor_stays_open(file: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        drop_from_page_cache([file])
        read_into_page_cache([file])
        pages_outside([file])
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.fixture
def stranger() -> Iterator[None]:
    """Run as a user who owns no file of the system."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_pages_of_a_mapped_array_are_absent_until_they_are_touched(file: Path) -> None:
    drop_from_page_cache([file])
    mapped = np.memmap(file, np.uint8, "r")
    assert 0 < absent_pages(mapped) <= PAGES
    assert int(mapped[::4096].sum()) >= 0
    assert absent_pages(mapped) == 0
    assert absent_pages(mapped[:0]) == 0


@pytest.mark.usefixtures("stranger")
def test_files_of_other_users_are_refused() -> None:
    theirs = Path("/etc/passwd")
    assert not reports_pages(theirs)
    assert pages_outside([theirs]) == 0
    with pytest.raises(PermissionError, match=r"/etc/passwd: .* only to its owner.* --cache warm"):
        drop_from_page_cache([theirs])


def test_pages_of_own_files_are_reported_even_if_they_are_read_only(file: Path) -> None:
    file.chmod(0o400)
    assert reports_pages(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has the rights of other owners")
def test_pages_of_other_users_files_are_reported_to_root_even_on_a_read_only_mount(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(file, NOBODY, NOBODY)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # as on such a mount
    assert reports_pages(file)
    assert drop_from_page_cache([file]) == 0
    assert pages_outside([file]) == PAGES


def test_a_file_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    for look in (drop_from_page_cache, read_into_page_cache, pages_outside):
        with pytest.raises(FileNotFoundError, match="missing"):
            look([tmp_path / "missing"])
