"""The options for images of the command line, and what a comparison and its loaders see of Pillow's settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

import presave
from etl.commands import main
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.settings import Settings
from etl.comparison.run.measuring_processes import MeasuringProcesses
from etl.comparison.run.workload import Workload
from tests.comparison_workloads import make_workload
from tests.image_files import encode

pytestmark = pytest.mark.usefixtures("pillow_settings_kept")
SIDE = 40
# Of --max-image-pixels.
WRONG = ("0", "-1", "many", "1e9", "", "²")


@pytest.fixture
def truncated(tmp_path: Path) -> Path:
    """An image folder of three JPEG files of which the second is truncated."""
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), np.uint8))
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(encode(image, "JPEG").tobytes()[: 900 if number == 1 else None])
    return folder.parent


def test_a_comparison_reads_what_the_settings_permit(truncated: Path, tmp_path: Path) -> None:
    settings = Settings(source=str(truncated), batch_size=3, size=16, compute="simulated:1ms")
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    with MeasuringProcesses(Workload(settings, tmp_path, 1), [min(os.sched_getaffinity(0))]) as processes:
        assert processes.load(Candidate("raw")).etl_alone.total > 0


LOADER = """
import numpy as np
from PIL import Image, ImageFile

if (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) != (12345, True):
    raise ValueError(f"{Image.MAX_IMAGE_PIXELS}, {ImageFile.LOAD_TRUNCATED_IMAGES}")

def load(batch_size):
    return [np.ones((batch_size, 3), np.float32)] * 2
"""


def test_a_loader_in_another_python_finds_them_when_its_module_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "settings_loader.py").write_text(LOADER)
    monkeypatch.chdir(tmp_path)
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = 12_345, True
    workload = make_workload(
        tmp_path,
        strategies=("mine=settings_loader:load",),
        compute="simulated:1ms",
        pythons={"mine": sys.executable},
    )
    with MeasuringProcesses(workload, [min(os.sched_getaffinity(0))]) as processes:
        _, tried = processes.try_loader(workload.candidates()[0], 0.1)
    assert tried.batches == 2


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("decoder", ["pillow", "turbo"])
def test_the_command_line_has_an_option_for_each_limit_and_restores_it(
    decoder: str, truncated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["presave", str(truncated), str(tmp_path / "store"), "--size", "8", "--decoder", decoder]
    truncated_images = "--load-truncated-images"

    def error(*options: str) -> str:
        assert main([*command, *options]) == 2
        return capsys.readouterr().err

    refusal = error()
    assert "1.jpg" in refusal
    assert "image file is truncated" in refusal
    assert truncated_images in refusal
    assert "is truncated" in error("--max-image-pixels", "none")
    refusal = error(truncated_images, "--max-image-pixels", "900")
    assert "more than 900; set PIL.Image.MAX_IMAGE_PIXELS (--max-image-pixels)" in refusal
    Image.MAX_IMAGE_PIXELS = 900
    assert main([*command, truncated_images, "--max-image-pixels", "none"]) == 0
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (900, False)
    with presave.open_store(tmp_path / "store") as store:
        assert len(store) == 3


@pytest.mark.parametrize(
    ("command", "value"),
    [*((command, "0") for command in ("compare", "tune", "doctor")), *(("presave", value) for value in WRONG)],
)
def test_a_wrong_limit_is_one_line_and_exit_code_2(
    command: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "photos", f"--max-image-pixels={value}"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--max-image-pixels" in line
    assert "a whole number of at least 1" in line
