"""Cifar10: reading the binary files in order, and errors for other files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import etl
import presave
from etl.commands import main
from etl.sources.cifar10 import SPLIT_FILES
from tests.every_strategy import bits

RANDOM = np.random.default_rng(0)


def write_file(path: Path, labels: list[int]) -> None:
    """Write random images with `labels`."""
    planes = RANDOM.integers(0, 256, (len(labels), 3 * 32 * 32), dtype=np.uint8)
    records = np.concatenate([np.array(labels, np.uint8)[:, None], planes], axis=1)
    path.write_bytes(records.tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five training files of 1 to 5 images, and 2 test images."""
    root = tmp_path / "cifar-10-batches-bin"
    root.mkdir()
    for number, name in enumerate(SPLIT_FILES["train"]):
        write_file(root / name, [number] * (number + 1))
    write_file(root / "test_batch.bin", [9, 0])
    return root


def stored(folder: Path, split: str) -> np.ndarray:
    """The images as they are stored, uint8 of shape `(images, 3, 32, 32)`."""
    content = b"".join((folder / name).read_bytes() for name in SPLIT_FILES[split])
    return np.frombuffer(content, np.uint8).reshape(-1, 3073)[:, 1:].reshape(-1, 3, 32, 32)


@pytest.mark.parametrize(
    ("split", "labels"), [("train", [0, *[1] * 2, *[2] * 3, *[3] * 4, *[4] * 5]), ("test", [9, 0])]
)
def test_records_are_those_of_all_files_of_the_split(split: str, labels: list[int], folder: Path) -> None:
    source = etl.Cifar10(folder, split)
    planes = stored(folder, split)
    assert len(source) == len(planes)
    assert [source[number]["label"] for number in range(len(source))] == labels
    for number, image in enumerate(planes):
        pixels = source[number]["features"]
        assert (pixels.dtype, pixels.shape) == (np.uint8, (32, 32, 3))
        assert pixels[5, 7].tolist() == image[:, 5, 7].tolist()
        assert np.array_equal(pixels, image.transpose(1, 2, 0))
    with pytest.raises(IndexError):
        source[len(source)]


def test_records_name_their_file_and_position(folder: Path) -> None:
    source = etl.Cifar10(folder)
    assert [source.describe(number) for number in (0, 1, 14)] == [
        "data_batch_1.bin, image 0",
        "data_batch_2.bin, image 0",
        "data_batch_5.bin, image 4",
    ]


def test_files_may_be_chosen(folder: Path) -> None:
    assert len(etl.Cifar10(folder / "data_batch_3.bin")) == 3
    source = etl.Cifar10([folder / "test_batch.bin", folder / "data_batch_1.bin"])
    assert [source[number]["label"] for number in range(3)] == [9, 0, 0]


def test_classes_are_named_as_published_or_as_the_file_beside_says(folder: Path) -> None:
    assert etl.Cifar10(folder).classes[3] == "cat"
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert etl.Cifar10(folder).classes == list("abcdefghij")
    (folder / "batches.meta.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"batches\.meta\.txt names 2 classes, not 10"):
        etl.Cifar10(folder)


def test_the_stage_channels_first_gives_the_stored_planes_without_a_copy(folder: Path) -> None:
    source = etl.Cifar10(folder)
    planes = etl.cifar10_pipeline().until("channels_first")(source[4])["features"]
    assert planes.flags.c_contiguous
    assert np.shares_memory(planes, source[4]["features"])
    assert np.array_equal(planes, stored(folder, "train")[4])


@pytest.mark.parametrize("until", ["read", "channels_first"])
def test_a_store_after_any_stage_gives_the_batches_of_the_files(until: str, folder: Path, tmp_path: Path) -> None:
    source, pipeline = etl.Cifar10(folder), etl.cifar10_pipeline()
    before, after = pipeline.split(until)
    presave.write(tmp_path / "s", etl.records(source, before)).close()
    raw = etl.RawIterator(source, pipeline, batch_size=4, shuffle=True, seed=1)
    with presave.open_store(tmp_path / "s") as store:
        saved = etl.PresavedIterator(store, after, batch_size=4, shuffle=True, seed=1)
        assert bits(raw) == bits(saved)


@pytest.mark.parametrize("nbytes", [0, 3072, 3074, 2 * 3074])
def test_a_file_of_a_wrong_size_is_refused(nbytes: int, folder: Path) -> None:
    (folder / "data_batch_2.bin").write_bytes(bytes(nbytes))
    with pytest.raises(ValueError, match=rf"data_batch_2\.bin: {nbytes:,} bytes, not a multiple of 3,073"):
        etl.Cifar10(folder)


def test_a_label_above_9_is_refused_with_its_place(folder: Path) -> None:
    write_file(folder / "data_batch_1.bin", [9, 10])
    source = etl.Cifar10(folder)
    assert source[0]["label"] == 9
    with pytest.raises(ValueError, match=r"data_batch_1\.bin: image 1 has label 10, beyond 9; this is not CIFAR-10"):
        source[1]


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "data_batch_2.bin").unlink()
    (folder / "data_batch_5.bin").unlink()
    with pytest.raises(ValueError, match=r"has no data_batch_2\.bin, data_batch_5\.bin$"):
        etl.Cifar10(folder)
    with pytest.raises(ValueError, match=r"nowhere\.bin does not exist"):
        etl.Cifar10(folder / "nowhere.bin")


def test_the_version_for_python_is_told_from_the_binary_one(tmp_path: Path) -> None:
    for name in SPLIT_FILES["train"]:
        (tmp_path / name).with_suffix("").write_bytes(b"a pickle")
    for make in (etl.Cifar10, etl.open_source):
        with pytest.raises(ValueError, match=r"holds CIFAR-10.s Python version: unpack cifar-10-binary\.tar\.gz"):
            make(tmp_path)


def test_wrong_arguments_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="unknown split 'valid'; known: train, test"):
        etl.Cifar10(folder, "valid")
    with pytest.raises(ValueError, match="split='test' chooses among the files of a folder"):
        etl.Cifar10(folder / "test_batch.bin", "test")
    with pytest.raises(ValueError, match="no files were given"):
        etl.Cifar10([])


def test_records_cannot_be_written_through_and_a_pickled_source_is_small(folder: Path) -> None:
    source = etl.Cifar10(folder)
    with pytest.raises(ValueError, match="read-only"):
        source[0]["features"][...] = 0
    pickled = pickle.dumps(source)
    assert len(pickled) < 3000
    assert np.array_equal(pickle.loads(pickled)[9]["features"], source[9]["features"])


def test_the_command_finds_the_set_and_its_split(folder: Path, tmp_path: Path) -> None:
    assert isinstance(etl.open_source(folder), etl.Cifar10)
    call = ["presave", str(folder), str(tmp_path / "s"), "--split", "test", "--until", "channels_first"]
    assert main(call) == 0
    with presave.open_store(tmp_path / "s") as store:
        assert np.array_equal(store.gather([0, 1])["features"], stored(folder, "test"))
        assert store.manifest.provenance["classes"][9] == "truck"
