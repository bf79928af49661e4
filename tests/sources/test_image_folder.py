"""ImageFolder: the files that are records, their order, and errors for missing ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import etl
import presave
from etl.images import pillow
from etl.sources import RecordError
from tests.readers import descriptors_below


def write_files(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


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
    for wrong in (-1, 2):
        with pytest.raises(IndexError, match=f"record {wrong} of .*, which holds 2"):
            etl.ImageFolder(tmp_path)[wrong]


def test_every_suffix_of_the_formats_that_are_decoded_is_found_in_any_case(tmp_path: Path) -> None:
    names = [f"a/{number:02d}{suffix}" for number, suffix in enumerate(pillow.suffixes())]
    names += [f"b/{number:02d}{suffix.upper()}" for number, suffix in enumerate(pillow.suffixes())]
    write_files(tmp_path, *names)
    assert etl.ImageFolder(tmp_path).files == names
    assert set(pillow.suffixes()) >= {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
    }


def test_no_suffix_is_of_a_format_that_is_not_decoded() -> None:
    registered = Image.registered_extensions()
    assert {registered[suffix] for suffix in pillow.suffixes()} == {*pillow.FORMATS, "MPO"}
    assert not {".eps", ".pdf", ".psd", ".ico", ".svg"} & set(pillow.suffixes())


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_images_of_each_format_are_listed_and_decoded(decoder: str, tmp_path: Path) -> None:
    grey = np.repeat(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6, 1), 3, 2)
    suffixes = (".bmp", ".gif", ".jfif", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
    folder = tmp_path / "scans"
    folder.mkdir()
    for suffix in suffixes:
        image = Image.fromarray(grey)
        (image.convert("L") if suffix == ".pgm" else image).save(folder / f"image{suffix}", **_lossless(suffix))
    source = etl.ImageFolder(tmp_path)
    assert source.files == [f"scans/image{suffix}" for suffix in suffixes]
    assert source.classes == ["scans"]
    for number, suffix in enumerate(suffixes):
        pixels = etl.image_pipeline(4, decoder).until("decode")(source[number])["features"]
        np.testing.assert_allclose(pixels.astype(int), grey, atol=6 if suffix in (".jpg", ".jfif") else 0)


@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
@pytest.mark.parametrize("suffix", [".gif", ".tif", ".png", ".webp"])
def test_of_several_frames_the_first_is_decoded(suffix: str, decoder: str, tmp_path: Path) -> None:
    frames = [Image.new("RGB", (6, 4), (shade, shade, shade)) for shade in (10, 200, 90)]
    (tmp_path / "a").mkdir()
    frames[0].save(tmp_path / f"a/1{suffix}", save_all=True, append_images=frames[1:], **_lossless(suffix))
    with Image.open(tmp_path / f"a/1{suffix}") as image:
        assert image.n_frames == 3  # type: ignore[attr-defined]
    decode = etl.image_pipeline(4, decoder).until("decode")
    assert (decode(etl.ImageFolder(tmp_path)[0])["features"] == 10).all()


def _lossless(suffix: str) -> dict[str, Any]:
    return {"lossless": True} if suffix == ".webp" else {}


def test_hidden_files_and_those_of_file_managers_are_left_out_without_a_word(tmp_path: Path) -> None:
    write_files(
        tmp_path, "a/1.jpg", "a/.2.jpg", "a/.DS_Store", "a/Thumbs.db", "a/desktop.ini", ".git/4.jpg", "a/.b/5.jpg"
    )
    write_files(tmp_path, "README", "dataset.json", "labels.csv")
    source = etl.ImageFolder(tmp_path)
    assert source.files == ["a/1.jpg"]
    assert source.classes == ["a"]


def test_what_else_is_left_out_is_said_once_and_counted_by_suffix(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "a/2.heic", "a/x/3.HEIC", "b/1.png", "b/3.jpg.txt", "b/jpg", "4.jpg", "5.PNG")
    with pytest.warns(UserWarning, match="leaves out") as caught:
        source = etl.ImageFolder(tmp_path)
    assert [str(each.message) for each in caught] == [
        f"{tmp_path} leaves out 1 .jpg, 1 .png (outside of the class folders) and 2 .heic, 1 .txt, 1 without a suffix "
        "(not images)"
    ]
    assert caught[0].filename == __file__
    assert source.files == ["a/1.jpg", "b/1.png"]
    assert [source[number]["label"] for number in range(2)] == [0, 1]  # a further warning would be an error


def test_of_many_suffixes_the_most_frequent_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", *(f"a/{kind}-{copy}.kind{kind}" for kind in range(9) for copy in range(9 - kind)))
    with pytest.warns(UserWarning, match=r"leaves out 9 \.kind0, 8 \.kind1, .*, 4 \.kind5, 6 others \(not images\)$"):
        etl.ImageFolder(tmp_path)


def test_a_warning_steers_no_terminal(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "a/1.\x1b[2Jx")
    with pytest.warns(UserWarning, match="leaves out") as caught:
        etl.ImageFolder(tmp_path)
    assert str(caught[0].message).isprintable()


def test_nested_folders_belong_to_the_class_at_the_top(tmp_path: Path) -> None:
    write_files(tmp_path, "a/x/y/1.jpg", "a/2.jpg", "b/x/1.jpg")
    source = etl.ImageFolder(tmp_path)
    assert source.files == ["a/2.jpg", "a/x/y/1.jpg", "b/x/1.jpg"]
    assert source.labels.tolist() == [0, 0, 1]


def test_a_class_folder_without_images_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_files(tmp_path, "b/1.heic", "c/1.jpg", "d/.hidden.jpg")
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"no images in class folders a, b, d; remove .*allow_empty=True") as caught:
        etl.ImageFolder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert str(caught.value).endswith("left out of all folders: 1 .heic (not images)")


def test_of_many_class_folders_without_images_some_are_named(tmp_path: Path) -> None:
    write_files(tmp_path, "z/1.jpg")
    for number in range(7):
        (tmp_path / f"{number}").mkdir()
    with pytest.raises(ValueError, match=r"no images in class folders 0, 1, 2 and 4 more"):
        etl.ImageFolder(tmp_path)


def test_with_allow_empty_a_class_without_images_keeps_its_number(tmp_path: Path) -> None:
    write_files(tmp_path, "c/1.jpg")
    (tmp_path / "a").mkdir()
    source = etl.ImageFolder(tmp_path, allow_empty=True)
    assert source.classes == ["a", "c"]
    assert source[0]["label"] == 1


def test_allow_empty_does_not_allow_a_folder_without_any_image(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match=r"holds no images"):
        etl.ImageFolder(tmp_path, allow_empty=True)


def test_no_images_is_an_error_that_names_the_folder_and_what_was_found_instead(tmp_path: Path) -> None:
    write_files(tmp_path, "flat.jpg", "a/notes.txt")
    with pytest.raises(ValueError, match=r"holds no images: expected .*\.jpg.*one sub-folder for each class") as caught:
        etl.ImageFolder(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "1 .txt (not images) and 1 .jpg (outside of the class folders)" in str(caught.value)


@pytest.mark.parametrize(("make", "message"), [(False, "does not exist"), (True, "is not a folder")])
def test_a_path_that_is_no_folder_is_an_error_that_says_so(tmp_path: Path, make: bool, message: str) -> None:
    path = tmp_path / "photos"
    if make:
        path.write_text("not a folder")
    with pytest.raises(ValueError, match=rf"photos {message}"):
        etl.ImageFolder(path)


def test_no_file_is_open_between_reads(tmp_path: Path) -> None:
    write_files(tmp_path, *(f"a/{i}.jpg" for i in range(20)))
    source = etl.ImageFolder(tmp_path)
    records = [source[i] for i in range(20)]
    assert descriptors_below(tmp_path) == []
    assert len(records) == 20


def test_a_file_that_has_gone_is_an_error_that_names_record_file_and_stage(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg", "a/2.jpg")
    source = etl.ImageFolder(tmp_path)
    (tmp_path / "a/2.jpg").unlink()
    iterator = etl.RawIterator(source, etl.Pipeline([]), batch_size=1)
    with pytest.raises(RecordError, match=r"record 1 of .*\(a/2\.jpg\): failed at stage 'read': .*No such file"):
        list(iterator)


def test_an_empty_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_files(tmp_path, "a/1.jpg")
    (tmp_path / "a/1.jpg").write_bytes(b"")
    with pytest.raises(RecordError, match=r"a/1\.jpg.*the file is empty"):
        etl.records(etl.ImageFolder(tmp_path), etl.image_pipeline(8))[0]


def test_files_that_a_subset_chooses_are_presaved_whatever_their_sizes(photographs: Path, tmp_path: Path) -> None:
    data = pytest.importorskip("torch.utils.data")
    source, chosen = etl.ImageFolder(photographs), [7, 30, 3]
    read, decode = etl.Pipeline([]), etl.image_pipeline().until("decode")
    # Files and images that have not the size of the first one would be left out.
    with presave.write(tmp_path / "files", etl.records(data.Subset(source, chosen), read), on_error="skip") as files:
        assert [each["features"].tobytes() for each in files] == [source[i]["features"].tobytes() for i in chosen]
        with presave.write(tmp_path / "pixels", etl.records(files, decode), on_error="skip") as pixels:
            found, expected = list(pixels), [decode(source[index])["features"] for index in chosen]
    assert len(found) == len(chosen)
    assert all(np.array_equal(each["features"], image) for each, image in zip(found, expected, strict=True))
