"""`etl presave`, `inspect` and `convert`: options of formats, bad records, ragged fields and trust."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import etl
import presave
from etl.commands import main
from tests.refusals import refusal


def _facts(tmp_path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((tmp_path / "facts.json").read_text())
    return facts


@pytest.fixture
def damaged(photographs: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """Return a copy with five truncated photographs, and their names."""
    folder = tmp_path / "damaged"
    shutil.copytree(photographs, folder)
    files = etl.ImageFolder(folder).files
    names = [files[number] for number in (0, 7, 8, 20, 39)]
    for name in names:
        (folder / name).write_bytes((folder / name).read_bytes()[:2000])
    return folder, names


def test_on_error_skip_stores_the_rest_and_names_what_it_left_out(
    damaged: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, names = damaged
    store, facts = tmp_path / "s", ["--json", str(tmp_path / "facts.json")]
    assert main(["presave", str(folder), str(store), "--size", "8", "--on-error", "skip", *facts]) == 0
    shown = "".join(capsys.readouterr().out.split())
    assert "skipped(5)" in shown
    assert [name in shown for name in names] == [True, True, True, False, False]
    assert _facts(tmp_path)["records"] == 35
    assert main(["inspect", str(store), *facts]) == 0
    assert "skipped (5)" in capsys.readouterr().out
    skipped = _facts(tmp_path)["skipped"]
    assert [each["record"] for each in skipped] == [0, 7, 8, 20, 39]
    assert all(name in each["cause"] for name, each in zip(names, skipped, strict=True))


@pytest.mark.parametrize(("stage", "shape"), [("read", "ragged (*)"), ("decode", "ragged (*, *, *)")])
def test_until_an_early_stage_keeps_the_bytes_or_the_shape_of_each_photograph(
    stage: str, shape: str, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["presave", str(photographs), str(tmp_path / "s"), "--until", stage]) == 0
    assert f"uint8 {shape}" in capsys.readouterr().out
    expected = etl.records(etl.ImageFolder(photographs), etl.image_pipeline().split(stage)[0])
    with presave.open_store(tmp_path / "s") as store:
        for number in range(len(expected)):
            assert np.array_equal(store[number]["features"], expected[number]["features"])


def test_compression_is_used_and_shown(photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["presave", str(photographs), str(tmp_path / "s"), "--size", "32", "--format", "hdf5"]
    assert main([*call, "--compression", "gzip", "--json", str(tmp_path / "facts.json")]) == 0
    assert "hdf5, compression gzip" in capsys.readouterr().out
    facts = _facts(tmp_path)
    assert facts["options"] == {"compression": "gzip"}
    assert facts["nbytes"] < 40 * 32 * 32 * 3


def test_shard_mb_decides_the_number_of_shards(photographs: Path, tmp_path: Path) -> None:
    call = ["presave", str(photographs), str(tmp_path / "s"), "--size", "32", "--shard-mb", "0.031"]
    assert main([*call, "--json", str(tmp_path / "facts.json")]) == 0
    assert _facts(tmp_path)["shards"] == 4  # of 10 records of 3,080 bytes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--compression", "gzip"], "--compression is for --format hdf5, not npy"),
        (["--format", "hdf5", "--compression", "zip"], "unknown compression 'zip'; known: gzip, lzf, zstd"),
        (["--shard-mb", "0"], "--shard-mb must be above 0, not 0"),
        (["--shard-mb", "nan"], "--shard-mb must be above 0, not nan"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    options: list[str], said: str, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, "presave", str(photographs), str(tmp_path / "s"), *options)
    assert not list(tmp_path.iterdir())


def test_convert_reads_a_pickle_store_only_when_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    presave.write(tmp_path / "p", [{"x": np.arange(3)}], format="pickle").close()
    call = ["convert", str(tmp_path / "p"), str(tmp_path / "n"), "--format", "npy"]
    assert "runs any code that its author put into it" in refusal(capsys, *call)
    assert main([*call, "--trusted"]) == 0
    with presave.open_store(tmp_path / "n") as store:
        assert store[0]["x"].tolist() == [0, 1, 2]


def test_a_command_that_resumes_says_how_much_was_done_before(
    damaged: tuple[Path, list[str]], photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, names = damaged
    for name in names[:-1]:
        shutil.copy(photographs / name, folder / name)
    call = ["presave", str(folder), str(tmp_path / "s"), "--size", "8", "--jobs", "1", "--shard-mb", "0.002"]
    assert main(call) == 2
    shutil.copy(photographs / names[-1], folder / names[-1])
    capsys.readouterr()
    assert main([*call, "--json", str(tmp_path / "facts.json")]) == 0
    resumed = _facts(tmp_path)["resumed"]
    assert 0 < resumed < 40
    assert f"{resumed} records" in capsys.readouterr().out


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return two class folders with an image each, an empty one, and files that are not images."""
    for name in ("a", "b", "empty"):
        (tmp_path / "mixed" / name).mkdir(parents=True)
    Image.new("RGB", (20, 20)).save(tmp_path / "mixed" / "a" / "1.gif")
    Image.new("RGB", (20, 20)).save(tmp_path / "mixed" / "b" / "1.bmp")
    for name in ("a/1.heic", "b/2.heic", "b/notes.txt", "b/.DS_Store"):
        (tmp_path / "mixed" / name).touch()
    return tmp_path / "mixed"


@pytest.mark.parametrize("command", ["presave", "doctor", "compare"])
def test_a_class_folder_without_images_is_an_error_that_says_how_to_allow_it(
    command: str, mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refusal(capsys, command, str(mixed), *([str(tmp_path / "s")] if command == "presave" else []))
    assert f"{mixed}: no images in class folder empty" in error
    assert "--allow-empty" in error


@pytest.mark.filterwarnings("default::UserWarning")
def test_left_out_files_are_one_line_on_standard_error(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["presave", str(mixed), str(tmp_path / "s"), "--size", "8", "--allow-empty"]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"etl: {mixed} leaves out 2 .heic, 1 .txt (not images)\n"
    assert "leaves out" not in shown.out
    with presave.open_store(tmp_path / "s") as store:
        assert store.manifest.provenance["classes"] == ["a", "b", "empty"]
        assert store.gather(range(2))["label"].tolist() == [0, 1]


@pytest.mark.slow
@pytest.mark.filterwarnings("default::UserWarning")
def test_a_comparison_says_only_once_which_files_are_left_out(mixed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    quick = ["--rounds", "1", "--size", "32", "--batch-size", "2", "--compute", "simulated:1ms", "--budget", "2s"]
    assert main(["compare", str(mixed), "--allow-empty", "--strategies", "raw", *quick]) == 0
    assert capfd.readouterr().err.count("leaves out 2 .heic, 1 .txt (not images)") == 1


def test_a_killed_command_does_not_go_on_over_changed_photographs(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(photographs, tmp_path / "photos")
    files = etl.ImageFolder(folder).files
    last = folder / files[-1]
    command = ["presave", str(folder), str(tmp_path / "s"), "--size", "8", "--shard-mb", "0.0002"]
    whole = last.read_bytes()
    last.write_bytes(b"no photograph")  # ends the first command
    assert main(command) == 2
    assert list((tmp_path / ".s.partial").glob("*.done.json"))
    for file in (last, folder / files[0]):
        file.write_bytes(whole)
    assert f"record 0 was read from {files[0]}, " in refusal(capsys, *command)
    assert not (tmp_path / "s").exists()
