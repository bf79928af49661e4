"""A wrong call exits with 2 and one line that says what is wrong and where; with --debug also a traceback."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import presave
from etl.commands import main
from etl.commands.output import show_error
from tests.programs import run_python
from tests.refusals import refusal
from tests.user_modules import user_module

ROOT = Path(__file__).parents[2]
BadInput = Callable[[Path, Path], tuple[list[str], list[str]]]


def _copy(photographs: Path, to: Path) -> Path:
    """Copy the first photographs of two classes to `to`, and return it."""
    for name in ("cat", "coffee"):
        (to / name).mkdir(parents=True)
        for file in sorted((photographs / name).iterdir())[:2]:
            shutil.copy(file, to / name)
    return to


def _store(folder: Path) -> Path:
    presave.write(folder, [{"x": np.arange(3), "label": 1}]).close()
    return folder


def no_images(home: Path, photographs: Path) -> tuple[list[str], list[str]]:
    (home / "empty" / "cat").mkdir(parents=True)
    (home / "empty" / "cat" / "notes.txt").write_text("no image")
    return ["presave", "empty", "target"], ["empty holds no images", "one sub-folder for each class"]


def text_among_images(home: Path, photographs: Path) -> tuple[list[str], list[str]]:
    (_copy(photographs, home / "photos") / "cat" / "a.jpg").write_text("not an image")
    return ["presave", "photos", "target"], ["record 2 of photos (cat/a.jpg)", "stage 'decode'", "not an image"]


def truncated_jpeg(home: Path, photographs: Path) -> tuple[list[str], list[str]]:
    file = sorted((_copy(photographs, home / "photos") / "coffee").iterdir())[1]
    file.write_bytes(file.read_bytes()[:5000])
    return ["presave", "photos", "target"], [f"record 3 of photos (coffee/{file.name})", "stage 'decode'", "truncated"]


def idx_of_the_wrong_length(home: Path, photographs: Path) -> tuple[list[str], list[str]]:
    assert main(["dataset", str(home / "mnist"), "--kind", "digits", "--samples", "20", "--plain"]) == 0
    file = home / "mnist" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    return ["presave", "mnist", "target"], ["train-images-idx3-ubyte: 12,559 bytes", "its header says 12,560"]


def file_as_source(home: Path, photographs: Path) -> tuple[list[str], list[str]]:
    (home / "photos.zip").touch()
    return ["presave", "photos.zip", "target"], ["photos.zip is a file; a source is a folder"]


def store_half_written(home: Path, photographs: Path) -> tuple[list[str], list[str]]:
    (home / ".target.partial").mkdir()
    return ["inspect", "target"], ["a write of it was interrupted and left .target.partial; write again to continue"]


BAD_INPUTS = [
    no_images,
    text_among_images,
    truncated_jpeg,
    idx_of_the_wrong_length,
    file_as_source,
    store_half_written,
]


# Calls in a folder with photographs in `photos`, and what is said of them.
BAD_CALLS = {
    "presave nowhere target": "nowhere does not exist",
    "dataset target --samples 0": "samples must be at least 10, one for each class, not 0",
    "dataset target --kind digits --samples 0": "samples must be from 10 to 1797, not 0",
    "dataset target --plain": "--plain is for --kind digits",
    "presave photos target --until crop": "no stage 'crop'; it has decode, resize, channels_first",
    "presave photos target --size 0": "cannot be resized to 0 x 0",
    "presave photos target --jobs 0": "jobs must be at least 1",
}


@pytest.mark.parametrize("make", [*BAD_INPUTS, *BAD_CALLS], ids=lambda make: getattr(make, "__name__", make))
def test_bad_input_is_one_line_that_names_it_and_leaves_nothing_at_the_target(
    make: BadInput | str,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if isinstance(make, str):
        _copy(photographs, tmp_path / "photos")
        call, said = make.split(), [BAD_CALLS[make]]
    else:
        call, said = make(tmp_path, photographs)
    before = sorted(tmp_path.rglob("*"))
    line = refusal(capsys, *call)
    assert all(words in line for words in said), line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["presave", "convert", "dataset"])
def test_an_existing_target_is_refused_and_kept(
    command: str, photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    call = {
        "presave": ["presave", str(photographs), str(target)],
        "convert": ["convert", str(_store(tmp_path / "s")), str(target), "--format", "npy"],
        "dataset": ["dataset", str(target), "--samples", "10"],
    }[command]
    line = refusal(capsys, *call)
    assert line.startswith(f"etl: {target} ")
    assert "choose another" in line
    assert [file.name for file in target.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (["convert", "s", "t", "--format", "zip"], "etl convert: argument --format: invalid choice: 'zip'"),
        (["presave", "s", "t", "--decoder", "magic"], "etl presave: argument --decoder: invalid choice: 'magic'"),
        (["compare"], "etl compare: the following arguments are required: SOURCE; see `etl compare --help`"),
        (["presave"], "etl presave: the following arguments are required: SOURCE, STORE; see"),
        (["presave", "photos"], "etl presave: the following arguments are required: STORE; see"),
        (
            ["dataset", "photos", "--records", "9"],
            "etl dataset: unrecognized arguments: --records 9; see `etl dataset --help`",
        ),
        (["doctr"], "etl: there is no command 'doctr': did you mean 'doctor'?; see `etl --help`"),
        (
            ["fly"],
            "etl: there is no command 'fly': there are run, doctor, compare, tune, presave, inspect, verify, convert, ",
        ),
    ],
)
def test_a_call_that_argparse_refuses_is_one_line_too_and_exits_with_2(
    call: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(call)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(error)


def test_a_terminal_breaks_an_error_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    show_error("a folder of classes has a name-that-is-longer-than-the-whole-terminal-is-wide, which is not broken")
    assert capsys.readouterr().err.splitlines() == [
        "etl: a folder of classes has a",
        "name-that-is-longer-than-the-whole-terminal-is-wide,",
        "which is not broken",
    ]


@pytest.mark.parametrize("call", [["--debug", "inspect", "nowhere"], ["inspect", "nowhere", "--debug"]], ids=" ".join)
def test_debug_shows_the_traceback_before_and_after_the_command(
    call: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(call) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback (most recent call last):")
    assert errors.splitlines()[-1].startswith("etl: nowhere does not exist")


def test_a_process_that_fails_prints_no_traceback(tmp_path: Path) -> None:
    done = run_python("-m", "etl", "verify", "nowhere", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "etl: nowhere does not exist; write it with presave.write or `etl presave`\n"


def run_without_torch(call: list[str], photographs: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command; a module of that name on the path hides torch from all of its processes."""
    (folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    (folder / "photographs").symlink_to(photographs)
    return run_python("-m", "etl", *call, cwd=folder, PYTHONPATH=f"{folder}:{ROOT}")


WITHOUT_TORCH = "etl: training needs torch: pip install 'fair-etl[torch]'\n"


def test_without_torch_one_line_of_the_doctor_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == WITHOUT_TORCH


def test_without_torch_one_line_of_a_comparison_says_how_to_install_it(photographs: Path, tmp_path: Path) -> None:
    done = run_without_torch(["compare", "photographs"], photographs, tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines(keepends=True)
    assert line.startswith("etl: ")
    assert line.endswith(WITHOUT_TORCH.removeprefix("etl: "))


@pytest.mark.slow
def test_strategies_are_compared_without_torch_if_compute_is_simulated(photographs: Path, tmp_path: Path) -> None:
    few = ["--records", "24", "--batch-size", "4", "--size", "32", "--rounds", "1", "--budget", "2s"]
    call = ["compare", "photographs", "--compute", "simulated:1ms", "--strategies", "raw,async-presaved", *few]
    done = run_without_torch(call, photographs, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr
    assert "async-presaved" in done.stdout


@pytest.mark.parametrize("command", ["compare SOURCE --strategies raw", "tune SOURCE --strategy raw", "doctor SOURCE"])
def test_labels_that_no_model_can_be_trained_on_are_refused_in_one_line_before_anything_is_measured(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
        import numpy as np

        def records():
            return [{"features": np.zeros(3, np.float32), "label": np.full(2, n % 2, np.int16)} for n in range(24)]
    """
    with user_module(tmp_path, "two_labels", code):
        arguments = command.replace("SOURCE", "two_labels:records").split()
        line = refusal(capsys, *arguments, "--batch-size", "8", "--backend", "cpu")
    assert line.startswith("etl: labels of dtype int16 have shape (8, 2), ")
    assert "(--step)" in line
