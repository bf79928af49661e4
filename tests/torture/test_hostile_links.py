"""Folders with links that lead out of them, or round in a circle."""

from __future__ import annotations

from pathlib import Path

import pytest

import etl
from etl.commands import main
from tests.torture.conftest import Tally
from tests.torture.hostile import attempt, refusal

SECRET = b"not yours"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder beside that of the data, with files that whoever made these data does not have."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "1.jpg").write_bytes(SECRET)
    (folder / "1.csv").write_bytes(b"a\n1\n")
    return folder


def _folder(root: Path) -> Path:
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
        (root / name / "1.jpg").write_bytes(name.encode())
    return root


LINKS = {
    "file, absolute": ("cat/2.jpg", "{secret}/1.jpg"),
    "file, relative": ("cat/2.jpg", "../../elsewhere/1.jpg"),
    "file that is not there yet": ("cat/2.jpg", "../../nowhere/1.jpg"),
    "by way of another link": ("cat/2.jpg", "../hop"),
    "a class": ("fox", "../elsewhere"),
    "a folder of a class": ("cat/more", "../../elsewhere"),
    "the folder above": ("fox", ".."),
    "the root": ("fox", "/"),
    "a name that begins as the root's": ("cat/2.jpg", "../../photos2/1.jpg"),
}


@pytest.mark.parametrize("name", LINKS)
def test_a_link_out_of_an_image_folder_is_refused_and_not_read(
    name: str, secret: Path, tmp_path: Path, tally: Tally
) -> None:
    root = _folder(tmp_path / "photos")
    (root / "hop").symlink_to(secret / "1.jpg")
    link, target = LINKS[name]
    (root / link).symlink_to(target.format(secret=secret))
    ending = attempt(lambda: etl.ImageFolder(root))
    assert ending.kind == "ValueError", ending
    assert str(root / link) in ending.message
    assert "follow_links=True (--follow-links)" in ending.message
    assert not [path for path in ending.opened if Path(path).is_relative_to(secret)]
    tally("hostile input, link out of an image folder", "refused, nothing outside was read")


def test_follow_links_reads_what_they_lead_to(secret: Path, tmp_path: Path) -> None:
    root = _folder(tmp_path / "photos")
    (root / "cat" / "2.jpg").symlink_to(secret / "1.jpg")
    (root / "fox").symlink_to(secret)
    with pytest.warns(UserWarning, match=r"leaves out 1 \.csv \(not images\)"):
        source = etl.ImageFolder(root, follow_links=True)
    assert source.files == ["cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "fox/1.jpg"]
    assert source[1]["features"].tobytes() == source[3]["features"].tobytes() == SECRET


def test_the_command_line_refuses_and_allows_them_too(
    secret: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = _folder(tmp_path / "photos")
    (root / "cat" / "2.jpg").symlink_to(secret / "1.jpg")
    arguments = ["presave", str(root), str(tmp_path / "s"), "--until", "read"]
    assert main(arguments) == 2
    assert "--follow-links" in capsys.readouterr().err
    assert not (tmp_path / "s").exists()
    assert main([*arguments, "--follow-links"]) == 0


def test_links_within_the_folder_are_read(tmp_path: Path) -> None:
    root = _folder(tmp_path / "photos")
    (root / "cat" / "2.jpg").symlink_to("../dog/1.jpg")
    (tmp_path / "by-link").symlink_to(root)
    source = etl.ImageFolder(tmp_path / "by-link")
    assert [source[number]["features"].tobytes() for number in range(3)] == [b"cat", b"dog", b"dog"]


@pytest.mark.parametrize("follow_links", [False, True])
@pytest.mark.parametrize("kind", ["circle", "itself", "doubling"])
def test_links_in_a_circle_are_refused_and_not_followed_for_ever(
    kind: str, follow_links: bool, tmp_path: Path, tally: Tally
) -> None:
    root = _folder(tmp_path / "photos")
    if kind == "circle":
        (root / "cat" / "more").symlink_to("..")
    elif kind == "itself":
        (root / "cat" / "more").symlink_to("more")
        (root / "cat" / "more.jpg").symlink_to("more.jpg")
    else:  # 2^40 ways through 40 folders
        for number in range(40):
            (root / "cat" / f"{number}").mkdir()
            (root / "cat" / f"{number}" / "a").symlink_to(f"../{number + 1}")
            (root / "cat" / f"{number}" / "b").symlink_to(f"../{number + 1}")
    if kind == "itself":
        message = f"Too many levels of symbolic links: '{root}/cat/more"
        refusal(lambda: etl.ImageFolder(root, follow_links=follow_links), message, kinds=("OSError",))
    else:
        refusal(lambda: etl.ImageFolder(root, follow_links=follow_links), str(root), "is the same folder as")
    tally("hostile input, links in a circle", "refused")


@pytest.mark.filterwarnings(r"ignore:.* leaves out 1 \.jpg \(not \.csv files\)")
@pytest.mark.parametrize("link", ["2.csv", "cat"])
def test_a_link_out_of_a_folder_of_sequences_is_refused(link: str, secret: Path, tmp_path: Path, tally: Tally) -> None:
    root = tmp_path / "steps"
    root.mkdir()
    (root / link).symlink_to(secret / "1.csv" if link.endswith(".csv") else secret)
    ending = attempt(lambda: etl.Sequences(root))
    assert ending.kind == "ValueError"
    assert "follow_links=True" in ending.message
    assert not [path for path in ending.opened if Path(path).is_relative_to(secret)]
    assert len(etl.Sequences(root, follow_links=True)) == 1
    tally("hostile input, link out of a folder of sequences", "refused, nothing outside was read")
