"""Tar: the member with the label, class names, and warnings about members that are left out."""

from __future__ import annotations

import json
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import etl
import presave
from etl.commands import main
from etl.sources import tar_index
from tests.tar_files import Members, contents, write

pytestmark = pytest.mark.usefixtures("user_cache")


def with_json(path: Path, values: Sequence[Any], key: str = "label", **more: str) -> Path:
    """A shard of images, each with a JSON member."""
    members: Members = []
    for number, value in enumerate(values):
        members.append((f"{number}.jpg", b"image %d" % number))
        members.append((f"{number}.json", json.dumps({"caption": "x", key: value}).encode()))
        members += [(f"{number}.{extension}", text.encode()) for extension, text in more.items()]
    return write(path, members)


def labels(source: etl.Tar) -> list[int]:
    return [label for _, label in contents(source)]


def test_without_label_members_it_is_said_that_records_have_none_and_what_was_left_alone(tmp_path: Path) -> None:
    for name in "ab":
        with_json(tmp_path / f"{name}.tar", [0, 1], txt="words")
    with pytest.warns(UserWarning, match="leaves out") as caught:
        source = etl.Tar(tmp_path)
    assert [str(each.message) for each in caught] == [
        f"{tmp_path} leaves out 4 .json, 4 .txt (members that are neither image nor label); records have no labels: "
        "pass label='json:KEY', or the extension of the member with the label (--label)"
    ]
    assert caught[0].filename == __file__
    assert source[3].keys() == {"features"}


def test_members_beside_image_and_label_are_counted_by_suffix(tmp_path: Path) -> None:
    path = with_json(tmp_path / "s.tar", [0, 1, 2], cls="7", **{"seg.png": "mask"})
    with tarfile.open(path, "a") as file:
        for name in ("README", ".hidden", "._0.jpg"):
            file.addfile(tarfile.TarInfo(name))
    with pytest.warns(UserWarning, match="leaves out") as caught:
        source = etl.Tar(path)
    assert [str(each.message) for each in caught] == [
        f"{path} leaves out 3 .json, 3 .png, 1 without a suffix (members that are neither image nor label)"
    ]
    assert contents(source) == [(b"image 0", 7), (b"image 1", 7), (b"image 2", 7)]


def test_the_count_is_kept_with_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tar_index, "MIN_CACHED_MEMBERS", 1)
    path = with_json(tmp_path / "s.tar", ["cat", "ape"])
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"leaves out 2 \.json"):
            etl.Tar(path)
        named = etl.Tar(path, label="json:label")
        assert (named.classes, labels(named)) == (["ape", "cat"], [1, 0])
        monkeypatch.setattr(tar_index, "_scan", None)


def test_labels_are_numbers_under_a_key_of_json(tmp_path: Path) -> None:
    path = with_json(tmp_path / "s.tar", [3, 0, -2])
    source = etl.Tar(path, label="json:label")
    assert labels(source) == [3, 0, -2]
    assert source.classes is None
    assert labels(pickle.loads(pickle.dumps(source))) == [3, 0, -2]


@pytest.mark.parametrize(("key", "content"), [("a.b", {"b": 1}), ("a.b.c", {"b": {"c": 1}}), ("a.b.c", {"b.c": 1})])
def test_a_key_leads_into_inner_objects(key: str, content: Any, tmp_path: Path) -> None:
    assert labels(etl.Tar(with_json(tmp_path / "s.tar", [content], key="a"), label=f"json:{key}")) == [1]


def test_a_key_with_a_dot_of_its_own_is_found(tmp_path: Path) -> None:
    assert labels(etl.Tar(with_json(tmp_path / "s.tar", [5], key="a.b"), label="json:a.b")) == [5]


def test_the_member_may_have_any_extension(tmp_path: Path) -> None:
    more = {"cls": "1", "id": " 42\n", "meta.json": '{"kind": 8}'}
    path = with_json(tmp_path / "s.tar", [0], **more)
    for label, expected in (("cls", 1), (".CLS", 1), ("id", 42), ("meta.json:kind", 8), ("json:label", 0)):
        with pytest.warns(UserWarning, match="members that are neither image nor label"):
            source = etl.Tar(path, label=label)
        assert labels(source) == [expected]


def test_names_of_classes_are_numbered_over_all_shards(tmp_path: Path) -> None:
    with_json(tmp_path / "a.tar", ["owl", "cat", "owl"])
    with_json(tmp_path / "b.tar", ["dog"])
    source = etl.Tar(tmp_path, label="json:label")
    assert source.classes == ["cat", "dog", "owl"]
    assert labels(source) == [2, 0, 2, 1]
    given = etl.Tar(tmp_path, label="json:label", classes=["owl", "dog", "cat", "ape"])
    assert labels(given) == [0, 2, 0, 1]
    (tmp_path / "classes.txt").write_text("dog\nowl\ncat\n")
    assert labels(etl.Tar(tmp_path, label="json:label")) == [1, 2, 1, 0]
    with pytest.raises(ValueError, match=r"b\.tar: 0\.jpg: label 'dog' is not one of the 2 classes"):
        etl.Tar(tmp_path, label="json:label", classes=["owl", "cat"])


def test_blanks_around_a_name_make_no_class_of_their_own(tmp_path: Path) -> None:
    with_json(tmp_path / "a.tar", ["dog", "cat "])
    with_json(tmp_path / "b.tar", [" dog", "cat"])
    source = etl.Tar(tmp_path, label="json:label")
    assert (source.classes, labels(source)) == (["cat", "dog"], [1, 0, 1, 0])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"kind": 1}', r"has no key 'label'; there are 'kind'"),
        ("{}", r"has no key 'label'; there are none"),
        ("[1]", r"has no key 'label'; it holds a list, not an object"),
        ('{"label": 1.5}', r"'label' is 1\.5, neither a whole number .* nor the name of a class"),
        ('{"label": true}', r"'label' is true, neither"),
        ('{"label": [3]}', r"'label' is a list, neither"),
        ('{"label": null}', r"'label' is null, neither"),
        ('{"label": " "}', r"'label' is \" \", neither"),
        ('{"label": "\\ud800"}', r"'label' is .*, neither a whole number"),
        ('{"label": 1000000000000000000}', r"'label' is 10*, neither a whole number of at most 18 digits"),
        ('{"label": ', r"is not JSON"),
        pytest.param("[" * 100_000, r"is not JSON", id="deep"),
        ("\xff", r"is not JSON"),
    ],
)
def test_what_is_no_label_is_named(content: str, said: str, tmp_path: Path) -> None:
    members = [
        ("a/1.jpg", b"x"),
        ("a/1.json", b'{"label": 0}'),
        ("a/2.jpg", b"x"),
        ("a/2.json", content.encode("latin1")),
    ]
    with pytest.raises(ValueError, match=rf"s\.tar: a/2\.json:? {said}"):
        etl.Tar(write(tmp_path / "s.tar", members), label="json:label")


def test_a_sample_without_the_member_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", [("1.jpg", b"x"), ("1.json", b'{"label": 0}'), ("2.jpg", b"x"), ("2.txt", b"0")])
    with pytest.raises(ValueError, match=r"s\.tar: sample 2 has no member \.json for its label; it has jpg, txt"):
        etl.Tar(path, label="json:label")
    with pytest.raises(ValueError, match=r"s\.tar: sample 1 has no member \.cls for its label"):
        etl.Tar(path, label="cls")


def test_numbers_and_names_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"m\.tar: 1\.json has label 'cat', and the first label is 3; they are either"):
        etl.Tar(with_json(tmp_path / "m.tar", [3, "cat"]), label="json:label")
    shards = [with_json(tmp_path / "a.tar", ["cat"]), with_json(tmp_path / "b.tar", [1])]
    with pytest.raises(ValueError, match=r"labels of .*a\.tar and of .*b\.tar are whole numbers in one, and names"):
        etl.Tar(shards, label="json:label")


@pytest.mark.parametrize("label", ["", ":key", "json:", "."])
def test_a_label_that_names_no_member_is_refused(label: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"label is the extension of a member, such as 'cls', or 'json:key', not"):
        etl.Tar(with_json(tmp_path / "s.tar", [0]), label=label)


def test_shards_of_a_folder_that_are_not_read_are_said(tmp_path: Path) -> None:
    members: Members = [("1.jpg", b"x"), ("1.cls", b"0")]
    for name in ("a.tar", "B.TAR", "._a.tar", "c.tar.gz", "d.tgz", "classes.txt", "README"):
        write(tmp_path / name, members)
    (tmp_path / "classes.txt").write_text("cat\n")
    (tmp_path / "val").mkdir()
    write(tmp_path / "val" / "a.tar", members)
    with pytest.warns(UserWarning, match="leaves out") as caught:
        source = etl.Tar(tmp_path)
    assert [shard.name for shard in source.shards] == ["B.TAR", "a.tar"]
    (said,) = (str(each.message) for each in caught)
    assert "1 .tar (shards in sub-folders)" in said
    assert (
        "1 .gz, 1 .tgz (compressed shards, which can be read once they are unpacked)" in said or "1 .tgz, 1 .gz" in said
    )


def test_the_command_takes_the_label_of_tar_files(tmp_path: Path) -> None:
    path = with_json(tmp_path / "s.tar", ["owl", "cat"])
    for name, extra, expected in (("a", [], [1, 0]), ("b", ["--classes", "owl", "cat"], [0, 1])):
        arguments = ["presave", str(path), str(tmp_path / name), "--until", "read", "--label", "json:label", *extra]
        assert main(arguments) == 0
        with presave.open_store(tmp_path / name) as store:
            assert store.gather(range(2))["label"].tolist() == expected
            assert store.manifest.provenance["options"] == {"label": "json:label"}


RULE = "a sample's key ends at the first dot of a file name"


def members(*names: str) -> list[tuple[str, bytes]]:
    return [(name, b"%d" % number) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("names", "options"),
    [
        (["22.05.jpg", "22.05.cls"], {}),
        (["22.05.jpg", "22.05.cls", "23.jpg", "23.cls"], {}),
        (["1.jpg", "1.cls", "22.05.jpg", "22.05.cls"], {}),
        (["22.05.jpg", "22.05.json"], {"label": "json:label"}),
        (["22.05.jpg", "22.06.jpg"], {}),
        (["photo.jpg", "photo.1.jpg", "photo.2.jpg"], {}),
        (["photo.1.jpg", "photo.jpg"], {}),
        (["photo.jpg", "photo.cls", "photo.1.jpg", "photo.1.cls"], {}),
        (["a.b/c.1.png", "a.b/c.jpg"], {}),
        (["IMG.2024.01.02.jpg", "IMG.2024.01.02.cls"], {}),
        (["left.a.jpg", "left.b.jpg"], {}),
    ],
)
def test_names_whose_dots_would_lose_samples_or_labels_are_errors_with_the_rule(
    names: list[str], options: dict[str, str], tmp_path: Path
) -> None:
    path = write(tmp_path / "s.tar", members(*names))
    with pytest.raises(ValueError, match=rf"s\.tar: .*{RULE}"):
        etl.Tar(path, **options)


@pytest.mark.parametrize(
    "names",
    [
        ["a.b/1.jpg", "a.b/1.cls", "a.b/2.jpg", "a.b/2.cls"],
        ["1.05.jpg", "2.05.jpg", "3.05.jpg"],
        ["./1.jpg", "./2.jpg", "./__MACOSX/1.jpg", ".cache/9.jpg", "Thumbs.db", "x/.DS_Store", "x/desktop.ini"],
    ],
)
def test_dots_in_folders_and_hidden_members_lose_nothing(names: list[str], tmp_path: Path) -> None:
    source = etl.Tar(write(tmp_path / "s.tar", members(*names)))
    hidden = ("__MACOSX", ".cache", "Thumbs", "x/")
    images = [name for name in names if name.endswith("jpg") and not any(each in name for each in hidden)]
    assert [source.describe(number).removeprefix("s.tar: ") for number in range(len(source))] == images


def test_a_further_image_of_a_sample_is_counted_as_one_with_the_rule(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tar", members("1.jpg", "1.cls", "1.copy.jpg", "1.seg.png"))
    with pytest.warns(UserWarning, match="leaves out") as caught:
        assert len(etl.Tar(path)) == 1
    assert str(caught[0].message) == (
        f"{path} leaves out 1 .png (members that are neither image nor label) and 1 .jpg (further images of a sample: "
        f"{RULE})"
    )
