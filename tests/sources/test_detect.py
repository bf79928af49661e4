"""`open_source` chooses by what a folder holds: strays, hidden files and the order of entries do not decide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import etl
from tests.tar_files import write as write_tar

IMAGES = ["cat/1.jpg", "cat/2.PNG", "dog/deep/3.jpg"]
NUMBERS = "a,b\n1,2\n"


def fill(root: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".tar"):
            write_tar(path, [("1.jpg", b"image"), ("1.cls", b"0")])
        else:
            path.write_text(NUMBERS)
    return root


STRAYS = [
    ["metadata.csv"],
    ["labels.csv"],
    ["a.csv", "b.csv", "c.csv", "d.csv"],
    ["backup.tar"],
    ["backup.tar", "table.csv"],
    ["cat/notes.csv"],
    ["dog/deep/a.csv", "table.csv"],
    ["README.md", "classes.json", "table.tsv"],
]
HIDDEN = [
    "._metadata.csv",
    ".shard.tar",
    "._train-images-idx3-ubyte",
    "__MACOSX/._a.csv",
    "__MACOSX/cat/a.csv",
    ".git/a.csv",
    "Thumbs.db",
    "desktop.ini",
    ".DS_Store",
    "lost+found/x",
]


@pytest.mark.filterwarnings("ignore:.*leaves out:UserWarning")
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("strays", STRAYS, ids=", ".join)
def test_class_folders_of_images_are_images_whatever_is_beside_them(
    strays: list[str], is_first: bool, tmp_path: Path
) -> None:
    source = etl.open_source(fill(tmp_path, [*strays, *IMAGES] if is_first else [*IMAGES, *strays]))
    assert isinstance(source, etl.ImageFolder)
    assert (source.classes, len(source)) == (["cat", "dog"], len(IMAGES))


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (IMAGES, etl.ImageFolder),
        (["only/1.jpg"], etl.ImageFolder),
        (["1.csv", "2.csv"], etl.Sequences),
        (["walk/1.csv", "run/2.csv"], etl.Sequences),
        (["a.tar", "b.tar"], etl.Tar),
    ],
)
def test_hidden_files_never_count(files: list[str], kind: type, tmp_path: Path) -> None:
    expected = etl.open_source(fill(tmp_path / "clean", files))
    found = etl.open_source(fill(tmp_path / "strewn", [*files, *HIDDEN, f"{Path(files[0]).parent}/._1.csv"]))
    assert type(expected) is type(found) is kind
    assert len(found) == len(expected)
    assert getattr(found, "classes", None) == getattr(expected, "classes", None)


@pytest.mark.filterwarnings("ignore:.*leaves out:UserWarning")
@pytest.mark.parametrize(
    ("files", "kind"),
    [
        (["1.csv", "2.csv", "plot.png"], etl.Sequences),
        (["walk/1.csv", "walk/plot.png", "run/2.csv"], etl.Sequences),
        (["a.tar", "b.tar", "index.csv"], etl.Tar),
        (["a.tar", "b.tar", "preview.jpg"], etl.Tar),
    ],
)
def test_a_stray_does_not_decide_for_other_kinds_either(files: list[str], kind: type, tmp_path: Path) -> None:
    for number, order in enumerate((files, files[::-1])):
        assert isinstance(etl.open_source(fill(tmp_path / str(number), order)), kind)


@pytest.mark.parametrize(
    ("files", "kinds"),
    [
        (["1.jpg", "2.jpg", "metadata.csv"], ["images in no sub-folder ('1.jpg')", "CSV files ('metadata.csv')"]),
        (["1.jpg", "shard.tar"], ["images in no sub-folder", "tar files ('shard.tar')"]),
        (["cat/1.jpg", "metadata.csv"], ["images in 'cat'", "CSV files ('metadata.csv')"]),
        (["preview/1.jpg", "a.tar", "b.tar"], ["images in 'preview'", "tar files ('a.tar')"]),
        (["cat/1.jpg", "cat/a.csv"], ["images in 'cat'", "CSV files in 'cat'"]),
        (["cat/1.jpg", "dog/a.csv"], ["images in 'cat'", "CSV files in 'dog'"]),
        (["a.tar", "1.csv", "2.csv"], ["tar files", "CSV files"]),
        (
            ["train-images-idx3-ubyte", "cat/1.jpg", "dog/2.jpg"],
            ["the files of MNIST", "images in the sub-folder 'cat'"],
        ),
        (["data_batch_1.bin", "cat/1.jpg"], ["the files of CIFAR-10", "images in the sub-folder 'cat'"]),
    ],
)
def test_two_kinds_in_a_folder_are_an_error_that_names_both(files: list[str], kinds: list[str], tmp_path: Path) -> None:
    messages = set()
    for order in (files, files[::-1]):
        root = tmp_path / str(len(messages))
        with pytest.raises(ValueError, match=r"holds .* and only one kind can be the source") as caught:
            etl.open_source(fill(root, order))
        messages.add(str(caught.value).replace(str(root), "ROOT"))
    (message,) = messages
    assert all(kind in message for kind in kinds)
    assert message.count("etl.") == 2


def test_an_empty_name_as_of_a_shell_variable_that_is_not_set_is_refused() -> None:
    with pytest.raises(ValueError, match="the source has an empty name"):
        etl.open_source("")
