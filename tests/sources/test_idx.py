"""Idx: MNIST's files, plain and gzip, and errors for damaged ones."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest

import etl
from etl.sources.idx import IDX_DTYPES, read_idx, write_idx
from tests.readers import assert_threads_and_a_fork_read, descriptors_below

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 5, 4), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 10


def write_pair(folder: Path, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS, end: str = "") -> etl.Idx:
    write_idx(folder / f"images{end}", images)
    write_idx(folder / f"labels{end}", labels)
    return etl.Idx(folder / f"images{end}", folder / f"labels{end}")


@pytest.mark.parametrize("end", ["", ".gz"])
def test_records_are_the_images_and_labels_that_were_written(tmp_path: Path, end: str) -> None:
    source = write_pair(tmp_path, end=end)
    assert len(source) == 12
    for number in range(12):
        record = source[number]
        np.testing.assert_array_equal(record["features"], IMAGES[number])
        assert record["features"].dtype == np.uint8
        assert record["label"] == LABELS[number]
    for wrong in (-1, 12):
        with pytest.raises(IndexError, match=f"record {wrong} of .*, which holds 12"):
            source[wrong]


def test_gzip_is_known_by_its_content_and_not_by_its_name(tmp_path: Path) -> None:
    write_idx(tmp_path / "images.gz", IMAGES)
    (tmp_path / "images").write_bytes((tmp_path / "images.gz").read_bytes())
    np.testing.assert_array_equal(read_idx(tmp_path / "images"), IMAGES)


def test_equal_arrays_give_equal_gzip_bytes(tmp_path: Path) -> None:
    write_idx(tmp_path / "one.gz", IMAGES)
    write_idx(tmp_path / "another.gz", IMAGES)
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "another.gz").read_bytes()
    assert (tmp_path / "one.gz").read_bytes()[4:8] == bytes(4)  # no time of writing


@pytest.mark.parametrize("code", sorted(IDX_DTYPES))
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4)])
def test_every_type_of_the_format_is_read_as_big_endian(tmp_path: Path, code: int, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(IDX_DTYPES[code])
    values = (np.arange(np.prod(shape)).reshape(shape) * 5 + 1).astype(dtype)
    header = bytes([0, 0, code, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    path = tmp_path / "array"
    path.write_bytes(header + values.tobytes())
    np.testing.assert_array_equal(read_idx(path), values)
    if dtype == ">i2":
        assert path.read_bytes()[len(header) :][:4] == b"\x00\x01\x00\x06"


def test_batches_have_the_byte_order_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(bytes([0, 0, 0x0B, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 1, 1, 0]))
    write_idx(tmp_path / "labels", LABELS[:2])
    source = etl.Idx(tmp_path / "images", tmp_path / "labels")
    (batch,) = etl.RawIterator(source, etl.Pipeline([]), batch_size=2)
    assert batch.features.dtype.isnative
    assert batch.features.tolist() == [[1], [256]]


def header(*shape: int) -> bytes:
    return bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()


PLAIN = header(12, 5, 4) + IMAGES.tobytes()
PACKED = gzip.compress(PLAIN, mtime=0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", " is empty"),
        (PLAIN[:-1], r": 255 bytes, but its header says 256 \(shape \(12, 5, 4\)\)"),
        (PLAIN + b"x", r": 257 bytes, but its header says 256 \(shape \(12, 5, 4\)\)"),
        (bytes([0, 0, 8, 3, 0, 0]), ": 6 bytes, and its header alone says 16; it was cut off"),
        (PACKED[:5], ": damaged gzip file"),
        (PACKED[: len(PACKED) // 2], ": damaged gzip file"),
        (PACKED[:-1], ": damaged gzip file"),
        (PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:], ": damaged gzip file"),  # in its checksum
        (bytes.fromhex("ff d8 ff e0"), " is not an IDX file: it begins with ff d8 ff e0"),
        (bytes.fromhex("00 00 07 01"), " is not an IDX file: it begins with 00 00 07 01"),
        (bytes.fromhex("00 00 08 00"), " is not an IDX file: it begins with 00 00 08 00"),
        (bytes(2), " is not an IDX file: it begins with 00 00"),
        (header(*[0] * 100), " is not an IDX file: it begins with 00 00 08 64"),
        (header(0, 2**32 - 1, 2**32 - 1), ": no array is of shape"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_kind_is_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(ValueError, match=f"images{said}"):
        read_idx(tmp_path / "images")


@pytest.mark.parametrize(
    ("images", "labels", "said"),
    [
        (IMAGES, LABELS[:11], r"has 12 images and .*labels 11 labels; they are not of the same set"),
        (IMAGES, IMAGES, r"is not a file of labels: .* of shape \(12, 5, 4\)"),
        (IMAGES[:0], LABELS[:0], "images holds no images"),
    ],
)
def test_files_that_are_no_pair_are_refused(images: np.ndarray, labels: np.ndarray, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        write_pair(tmp_path, images, labels)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        etl.Idx(tmp_path / "nowhere", tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is not a file"):
        etl.Idx(tmp_path, tmp_path)
    with pytest.raises(ValueError, match=r"neither t10k-images-idx3-ubyte nor t10k-images-idx3-ubyte\.gz"):
        etl.Idx.from_folder(tmp_path, "test")


def test_an_unknown_split_lists_the_known_ones(digits: Path) -> None:
    with pytest.raises(ValueError, match="unknown split 'valid'; known: train, test"):
        etl.Idx.from_folder(digits, "valid")


def test_a_pickled_source_is_small_and_reads_the_same(tmp_path: Path) -> None:
    images = np.random.default_rng(1).integers(0, 256, (500, 28, 28), dtype=np.uint8)
    for end in ("", ".gz"):
        source = write_pair(tmp_path, images, np.zeros(500, np.uint8), end)
        pickled = pickle.dumps(source)
        assert len(pickled) < 2000
        np.testing.assert_array_equal(pickle.loads(pickled)[499]["features"], images[499])


def test_threads_and_a_forked_process_read_their_own_records_and_no_file_stays_open(tmp_path: Path) -> None:
    source = write_pair(tmp_path)
    assert_threads_and_a_fork_read(
        lambda number: source[number]["features"].tobytes(), [image.tobytes() for image in IMAGES]
    )
    assert descriptors_below(tmp_path) == []


def test_records_cannot_be_written_through(tmp_path: Path) -> None:
    for end in ("", ".gz"):
        with pytest.raises(ValueError, match="read-only"):
            write_pair(tmp_path, end=end)[0]["features"][...] = 0


def test_a_folder_with_digits_is_opened_as_idx(digits: Path) -> None:
    assert isinstance(etl.open_source(digits), etl.Idx)
    assert len(etl.open_source(digits, "test")) < len(etl.open_source(digits, "train"))
