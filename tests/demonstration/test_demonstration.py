"""The demonstration data has the right content, and is made completely or not at all, and only once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import etl
from etl.demonstration.directory import make_once
from tests.forked_child import locks_in_a_fork


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_equal_seeds_give_equal_bytes_and_other_seeds_others(tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("same", 3), ("other", 4)):
        assert etl.demonstration.photographs(tmp_path / name, 12, seed=seed)
    assert contents(tmp_path / "one") == contents(tmp_path / "same")
    one, other = (
        {name: data for name, data in contents(tmp_path / folder).items() if name.endswith(".jpg")}
        for folder in ("one", "other")
    )
    assert one.keys() == other.keys()
    assert not set(one.values()) & set(other.values())


def test_more_photographs_begin_with_the_same_ones(tmp_path: Path) -> None:
    etl.demonstration.photographs(tmp_path / "few", 10)
    etl.demonstration.photographs(tmp_path / "more", 13)
    few, more = contents(tmp_path / "few"), contents(tmp_path / "more")
    assert {name: more[name] for name in few if name.endswith(".jpg")} == {
        name: data for name, data in few.items() if name.endswith(".jpg")
    }


def test_photographs_are_jpegs_of_ten_classes_about_500_by_375(photographs: Path) -> None:
    source = etl.ImageFolder(photographs)
    assert np.bincount(source.labels).tolist() == [4] * 10
    sizes = set()
    for file in source.files:
        with Image.open(photographs / file) as image:
            assert image.format == "JPEG"
            assert 450 <= image.width <= 550
            assert 337 <= image.height <= 413
            sizes.add(image.size)
            # Quality 90 scales the standard table's first step, 16, to 3.
            assert image.quantization[0][0] == 3
    assert len(sizes) > 20


def test_no_two_photographs_are_the_same(photographs: Path) -> None:
    images = [path.read_bytes() for path in photographs.rglob("*.jpg")]
    assert len(set(images)) == len(images) == 40


def test_existing_data_is_kept(tmp_path: Path) -> None:
    target = tmp_path / "photographs"
    assert etl.demonstration.photographs(target, 10) is True
    (target / "cat" / "000001.jpg").write_bytes(b"touched")
    assert etl.demonstration.photographs(target, 10) is False
    assert (target / "cat" / "000001.jpg").read_bytes() == b"touched"


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    for make in (etl.demonstration.photographs, etl.demonstration.digits):
        assert make(tmp_path / make.__name__, np.int64(10), seed=np.int64(3)) is True
        assert make(tmp_path / make.__name__, 10, seed=3) is False


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    assert etl.demonstration.digits(tmp_path / "digits", samples=10) is True
    assert len(etl.open_source(tmp_path / "digits")) == 8


def test_an_empty_directory_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "digits").symlink_to("disk")
    assert etl.demonstration.digits(tmp_path / "digits", samples=10) is True
    assert (tmp_path / "digits").is_symlink()
    assert len(etl.open_source(tmp_path / "digits")) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "disk"]


def test_a_directory_that_cannot_be_replaced_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made: list[int] = []
    with pytest.raises(ValueError, match="is the working folder, or where something is mounted"):
        etl.demonstration.photographs(".", 10, progress=lambda number, _: made.append(number))
    assert not made
    assert not list(tmp_path.iterdir())


def test_other_contents_are_refused_and_left_alone(tmp_path: Path) -> None:
    etl.demonstration.digits(tmp_path / "digits", samples=10)
    before = contents(tmp_path / "digits")
    with pytest.raises(
        ValueError, match=r"holds .*'samples': 10.*, not .*'samples': 11.*; delete it or choose another"
    ):
        etl.demonstration.digits(tmp_path / "digits", samples=11)
    assert contents(tmp_path / "digits") == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="holds files that were not made by this command"):
        etl.demonstration.digits(tmp_path / "mine")
    assert contents(tmp_path / "mine") == {"thesis.txt": b"years of work"}


def test_an_interrupted_fill_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(made: int, samples: int) -> None:
        assert samples == 200
        if made == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        etl.demonstration.photographs(tmp_path / "photographs", 200, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_up_to_all(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    etl.demonstration.photographs(tmp_path / "p", 11, progress=lambda made, samples: seen.append((made, samples)))
    assert seen == [(made, 11) for made in range(1, 12)]


def test_two_processes_at_once_both_end_well(tmp_path: Path) -> None:
    make = (
        "import sys; from etl.demonstration import photographs; print('ready', flush=True); sys.stdin.readline(); "
        "print(photographs(sys.argv[1], 20))"
    )
    together = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", make, str(tmp_path / "p")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in together:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in together:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60)[0].strip() for process in together]
    assert [process.returncode for process in together] == [0, 0]
    assert sorted(answers) == ["False", "True"]
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    assert len(etl.ImageFolder(tmp_path / "p")) == 20


def test_a_process_that_was_forked_meanwhile_keeps_no_folder_locked(tmp_path: Path) -> None:
    with locks_in_a_fork():
        assert etl.demonstration.digits(tmp_path / "one", samples=10)
        assert etl.demonstration.digits(tmp_path / "other", samples=10)


def test_gzip_and_plain_digits_hold_the_same(tmp_path: Path) -> None:
    etl.demonstration.digits(tmp_path / "gzip", samples=50)
    etl.demonstration.digits(tmp_path / "plain", samples=50, compress=False)
    assert (tmp_path / "plain" / "train-images-idx3-ubyte").is_file()
    assert (tmp_path / "gzip" / "train-images-idx3-ubyte.gz").is_file()
    for split, count in (("train", 40), ("test", 10)):
        packed, plain = (etl.Idx.from_folder(tmp_path / name, split) for name in ("gzip", "plain"))
        assert len(packed) == len(plain) == count
        for number in range(count):
            np.testing.assert_array_equal(packed[number]["features"], plain[number]["features"])
            assert packed[number]["label"] == plain[number]["label"]


def test_digits_are_mnists_layout_with_ink_in_the_middle(digits: Path) -> None:
    source = etl.open_source(digits)
    assert (len(source), len(etl.open_source(digits, "test"))) == (1438, 359)
    images = np.stack([source[number]["features"] for number in range(len(source))])
    assert images.shape[1:] == (28, 28)
    assert images.dtype == np.uint8
    assert images[:, :4].max() == images[:, :, :4].max() == images[:, -4:].max() == images[:, :, -4:].max() == 0
    assert images.max() > 250
    assert source.classes == [str(digit) for digit in range(10)]


@pytest.mark.parametrize(("samples", "seed"), [(9, 0), (-1, 0), (20.5, 0), (20, -1)])
def test_too_few_photographs_and_negative_seeds_are_refused(tmp_path: Path, samples: float, seed: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        etl.demonstration.photographs(tmp_path / "p", samples, seed=seed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("samples", [9, 1798])
def test_more_digits_than_there_are_and_too_few_are_refused(tmp_path: Path, samples: int) -> None:
    with pytest.raises(ValueError, match=f"samples must be from 10 to 1797, not {samples}"):
        etl.demonstration.digits(tmp_path / "d", samples)


@pytest.mark.usefixtures("network_file_system")
def test_what_another_machine_is_making_is_left_where_folders_are_locked_for_one_machine(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        assert make_once(tmp_path / "data", {}, lambda _: None)  # as the other machine does meanwhile
        (folder / "file").touch()

    assert not make_once(tmp_path / "data", {}, fill)
    assert list(contents(tmp_path)) == ["data/dataset.json"]
