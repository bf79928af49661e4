"""ImageFolder: which files are records, in which order, and what happens when they are not there."""

from __future__ import annotations

import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest

import etl


def write_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def open_files_below(root: Path) -> list[Path]:
    # The descriptor of the listing itself is gone by the time it is looked at.
    targets = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for target in targets if target.is_relative_to(root)]


def test_classes_are_the_sorted_folder_names_and_number_the_labels(tmp_path: Path) -> None:
    write_files(tmp_path, "zebra/1.jpg", "Ant/1.jpg", "bee/2.jpg", "bee/1.jpg")
    source = etl.ImageFolder(tmp_path)
    assert source.classes == ["Ant", "bee", "zebra"]
    assert source.files == ["Ant/1.jpg", "bee/1.jpg", "bee/2.jpg", "zebra/1.jpg"]
    assert [source[i]["label"] for i in range(len(source))] == [0, 1, 1, 2]


def test_a_record_is_the_bytes_of_its_file(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "b/2.png")
    features = etl.ImageFolder(tmp_path)[1]["features"]
    assert features.dtype == np.uint8
    assert features.tobytes() == b"b/2.png"


def test_suffixes_are_found_in_any_case(tmp_path: Path) -> None:
    names = ["a/1.JPG", "a/2.Jpeg", "a/3.jpg", "a/4.PNG", "a/5.png", "a/6.WebP", "a/7.webp"]
    write_files(tmp_path, *names)
    assert etl.ImageFolder(tmp_path).files == names


def test_hidden_and_other_files_are_left_out(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "a/.2.jpg", "a/Thumbs.db", "a/3.jpg.txt", "a/jpg", ".git/4.jpg", "a/.b/5.jpg")
    write_files(tmp_path, "outside_a_class.jpg")
    source = etl.ImageFolder(tmp_path)
    assert source.files == ["a/1.jpg"]
    assert source.classes == ["a"]


def test_nested_folders_belong_to_the_class_at_the_top(tmp_path: Path) -> None:
    write_files(tmp_path, "a/x/y/1.jpg", "a/2.jpg", "b/x/1.jpg")
    source = etl.ImageFolder(tmp_path)
    assert source.files == ["a/2.jpg", "a/x/y/1.jpg", "b/x/1.jpg"]
    assert source.labels.tolist() == [0, 0, 1]


def test_a_class_folder_without_images_is_left_out_and_takes_no_label(tmp_path: Path) -> None:
    write_files(tmp_path, "b/notes.txt", "c/1.jpg")
    (tmp_path / "a").mkdir()
    source = etl.ImageFolder(tmp_path)
    assert source.classes == ["c"]
    assert source[0]["label"] == 0


def test_no_images_is_an_error_that_names_the_folder_and_what_was_expected(tmp_path: Path) -> None:
    write_files(tmp_path, "flat.jpg", "a/notes.txt")
    with pytest.raises(ValueError, match=r"holds no images: expected \.jpg.*one sub-folder for each class") as caught:
        etl.ImageFolder(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("make", "message"), [(False, "does not exist"), (True, "is not a folder")])
def test_a_path_that_is_no_folder_is_an_error_that_says_so(tmp_path: Path, make: bool, message: str) -> None:
    path = tmp_path / "photos"
    if make:
        path.write_text("not a folder")
    with pytest.raises(ValueError, match=rf"photos {message}"):
        etl.ImageFolder(path)


def test_a_pickled_source_reads_the_same_records(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "b/2.jpg")
    source = etl.ImageFolder(tmp_path)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.classes == source.classes
    assert [copy[i]["features"].tobytes() for i in range(2)] == [source[i]["features"].tobytes() for i in range(2)]


def test_no_file_is_open_between_reads(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"a/{i}.jpg" for i in range(20)))
    source = etl.ImageFolder(tmp_path)
    records = [source[i] for i in range(20)]
    assert open_files_below(tmp_path) == []
    assert len(records) == 20


def test_a_hundred_thousand_files_are_listed() -> None:
    # In memory where that can be had: disks take long to make so many.
    shared_memory = Path("/dev/shm")  # noqa: S108 - a new folder in it, as anywhere
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as root:
        for name in ("a", "b"):
            (Path(root) / name).mkdir()
            folder = os.open(f"{root}/{name}", os.O_RDONLY)
            for number in range(50_000):
                os.close(os.open(f"{number:05d}.jpg", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
            os.close(folder)
        source = etl.ImageFolder(root)
    assert len(source) == 100_000
    assert np.bincount(source.labels).tolist() == [50_000, 50_000]
    assert source.files[50_000] == "b/00000.jpg"


def test_a_file_that_has_gone_is_an_error_that_names_record_file_and_stage(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "a/2.jpg")
    source = etl.ImageFolder(tmp_path)
    (tmp_path / "a/2.jpg").unlink()
    iterator = etl.RawIterator(source, etl.Pipeline([]), batch_size=1)
    with pytest.raises(etl.RecordError, match=r"record 1 of .*\(a/2\.jpg\): failed at stage 'read': .*No such file"):
        list(iterator)


def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg")
    (tmp_path / "a/1.jpg").write_bytes(b"")
    with pytest.raises(etl.RecordError, match=r"a/1\.jpg.*the file is empty"):
        etl.records(etl.ImageFolder(tmp_path), etl.image_pipeline(8))[0]


def test_a_record_beyond_the_last_is_an_index_error(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg")
    with pytest.raises(IndexError):
        etl.ImageFolder(tmp_path)[1]
