"""The package as strangers install it: sdist and wheel, alone, with each extra, and with the lowest versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import etl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# What the tests and the benchmarks of a clone need, and torch, with which the other tests run.
OF_A_CLONE = {"bench", "docs", "peers", "test", "torch"}
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
MAX_CORE_MB = 170
PROGRAM = """
import io, sys
from pathlib import Path
import numpy as np
from PIL import Image
import etl, presave

folder = Path(sys.argv[1])
for kind in ("a", "b"):
    (folder / "photos" / kind).mkdir(parents=True)
    for number in range(4):
        Image.fromarray(np.full((40, 50, 3), 30 * number, np.uint8)).save(folder / "photos" / kind / f"{number}.png")
source, pipeline = etl.ImageFolder(folder / "photos"), etl.image_pipeline(size=32)
store = presave.write(folder / "s", etl.records(source, pipeline.until("resize")))
with etl.AsyncIterator(etl.PresavedIterator(store, pipeline.after("resize"), 4)) as saved:
    for ours, others in zip(etl.RawIterator(source, pipeline, 4), saved, strict=True):
        assert np.array_equal(ours.features, others.features)
print(etl.__version__)
"""


def run(*command: str | Path, cwd: Path) -> str:
    # Without the working folder on the path, so that nothing of the clone is imported.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment, timeout=900)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the paths of sdist and wheel; the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    # A copy: building leaves files beside the sources.
    for name in run("git", "ls-files", "etl", "presave", *FILES, cwd=ROOT).split():
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    run(sys.executable, "-m", "build", "--outdir", folder, folder / "source", cwd=folder)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def make_environment(folder: Path, *requirements: str | Path) -> Path:
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python = folder / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    run(*pip, *requirements, cwd=folder)
    return python


@pytest.mark.slow
def test_the_wheel_has_all_files_and_the_readme_of_an_index_has_absolute_links(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = wheel.read(metadata).decode()
    tracked = run("git", "ls-files", "etl", "presave", cwd=ROOT).split()
    assert set(tracked) <= names
    assert all(name.startswith(("etl/", "presave/", "fair_etl-")) for name in names)
    assert f"Version: {etl.__version__}" in text
    links = re.findall(r"\]\(([^)]+)\)", text.partition("\n\n")[2])
    assert len(links) > 20
    assert not [link for link in links if not link.startswith(("https://", "#"))]
    with tarfile.open(built["sdist"]) as sdist:
        assert {"README.md", "LICENSE", "setup.py"} <= {Path(name).name for name in sdist.getnames()}


@pytest.mark.slow
def test_the_wheel_alone_loads_and_says_what_training_needs(built: dict[str, Path], tmp_path: Path) -> None:
    python = make_environment(tmp_path, built["wheel"])
    assert run(python, "-c", PROGRAM, tmp_path / "data", cwd=tmp_path).strip() == etl.__version__
    assert run(python.with_name("etl"), "-V", cwd=tmp_path).strip() == f"fair-etl {etl.__version__}"
    compared = [python.with_name("etl"), "compare", "data/photos", "--strategies", "raw"]
    refused = subprocess.run(compared, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install 'fair-etl[torch]'" in refused.stderr
    packages = next((tmp_path / "env" / "lib").glob("python*")) / "site-packages"
    own = {"pip", "setuptools", "_distutils_hack"}
    size = sum(
        path.lstat().st_size
        for path in packages.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.relative_to(packages).parts[0].startswith(tuple(own))
    )
    assert size <= MAX_CORE_MB * 1e6


@pytest.mark.slow
def test_the_lowest_versions_of_all_dependencies_work(built: dict[str, Path], tmp_path: Path) -> None:
    lowest = [re.sub(r">=", "==", each) for each in PROJECT["dependencies"]]
    assert all("==" in each for each in lowest)
    python = make_environment(tmp_path, built["wheel"], *lowest)
    assert run(python, "-c", PROGRAM, tmp_path / "data", cwd=tmp_path).strip() == etl.__version__


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - OF_A_CLONE))
def test_the_wheel_with_an_extra_loads(extra: str, built: dict[str, Path], tmp_path: Path) -> None:
    python = make_environment(
        tmp_path, f"fair-etl[{extra}] @ {built['wheel'].as_uri()}", "-c", ROOT / ".ci/constraints.txt"
    )
    assert run(python, "-c", PROGRAM, tmp_path / "data", cwd=tmp_path).strip() == etl.__version__


def test_the_changelog_and_the_citation_have_the_version_and_the_address() -> None:
    changelog, citation = ((ROOT / name).read_text() for name in ("CHANGELOG.md", "CITATION.cff"))
    assert etl.__version__ in changelog
    assert f"version: {etl.__version__}" in citation
    urls = re.findall(r"https://github\.com/[\w-]+/[\w-]+", changelog + citation)
    assert set(urls) == {PROJECT["urls"]["Repository"]}


def test_the_hook_of_mypy_has_the_packages_that_make_test_installs() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert "entry: .venv/bin/mypy\n" in hooks
    assert "additional_dependencies" not in hooks
