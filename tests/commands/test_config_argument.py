"""`--config FILE`: what the file says need not be said on the command line, and must not be contradicted there."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import etl
import presave
from etl.commands import main
from etl.configuration import Configuration
from tests.programs import run_python
from tests.refusals import refusal
from tests.user_modules import user_module

SIZE = 32
QUICK = "--rounds=1", "--records=24", "--cpus=1", "--budget=2s"

LOADERS = """
    from pathlib import Path

    import numpy as np

    def declared(source, pipeline, batch_size, seed, dtype, window=1):
        import etl
        with open("windows.txt", "a") as file:
            print(window, file=file)
        return etl.RawIterator(source, pipeline, batch_size, shuffle=True, seed=seed, dtype=dtype)

    declared.settings = {"window": (1, 4)}

    def prepared(folder):
        return [np.load(Path(folder) / "labels.npy")]

    def write(source, folder):
        np.save(Path(folder) / "labels.npy", np.array([record["label"] for record in source]))

    prepared.prepare = write
"""

KILLED = """
    import os
    import signal
    from pathlib import Path

    def prepared(folder):
        return [(Path(folder) / "shard").read_bytes()]

    def write(folder):
        (Path(folder) / "shard").write_bytes(b"whole")
        if Path("first").exists():
            Path("first").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    prepared.prepare = write
"""


@pytest.fixture
def folder(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with photographs in it, and a configuration for a store of them."""
    (tmp_path / "photos").symlink_to(photographs)
    monkeypatch.chdir(tmp_path)
    settings = {"stage": "resize", "format": "npy", "prefetch_size": 1, "loading_threads": 1, "compute_threads": 1}
    write("async-presaved", store="photos.store", settings=settings)
    return tmp_path


def write(strategy: str, **more: Any) -> None:
    Configuration("photos", strategy, size=SIZE, batch_size=4, **more).write("photos.toml")


@pytest.mark.parametrize(
    "call",
    [
        ["--config", "photos.toml"],
        ["photos.store", "--config", "photos.toml"],
        ["--config", "photos.toml", "./photos.store", "--jobs", "1"],
        ["photos", "--config", "photos.toml", "photos.store", "--size", "32", "--until", "resize"],
    ],
    ids=" ".join,
)
def test_the_store_that_a_file_names_is_the_one_that_is_loaded(call: list[str], folder: Path) -> None:
    assert main(["presave", *call]) == 0
    with presave.open_store("photos.store") as store, etl.from_config("photos.toml", threads=False) as loaded:
        assert store.manifest.stage == "resize"
        assert store.fields["features"].shape == (SIZE, SIZE, 3)
        assert sum(batch.records for batch in loaded) == len(store) == 40


def test_a_store_is_written_as_its_settings_say(folder: Path) -> None:
    settings = {"stage": "decode", "decoder": "turbo", "format": "hdf5", "compression": "lzf"}
    write("presaved", store="stores/one", settings=settings)
    (folder / "stores").mkdir()
    assert main(["presave", "--config", "photos.toml"]) == 0
    with presave.open_store("stores/one") as store:
        assert (store.manifest.format, store.manifest.stage) == ("hdf5", "decode")
        assert store.manifest.options["compression"] == "lzf"
        assert store.manifest.fingerprint == etl.image_pipeline(SIZE, "turbo").until("decode").fingerprint
    with etl.from_config("photos.toml") as loaded:
        assert len(list(loaded)) == 10


def test_a_file_somewhere_else_names_files_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["presave", "--config", "../photos.toml"]) == 0
    assert (folder / "photos.store").is_dir()


def test_options_of_the_source_come_from_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("".join(f"{number};{number % 2}\n" for number in range(8)))
    options = {"label": 1, "header": False, "delimiter": ";"}
    Configuration("table.csv", "presaved", store="s", table_options=options).write("table.toml")
    assert main(["presave", "--config", "table.toml", "--no-header", "--label", "1"]) == 0
    with etl.from_config("table.toml") as loaded:
        (batch,) = loaded
    assert batch.features.shape == (8, 1)
    assert sorted(batch.labels) == [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["presave", "other"], "STORE other contradicts photos.toml, which says photos.store"),
        (["presave", "others", "photos.store"], "SOURCE others contradicts photos.toml, which says photos"),
        (["presave", "--size", "64"], "--size 64 contradicts photos.toml, which says 32"),
        (["presave", "--format", "hdf5"], "--format hdf5 contradicts photos.toml, which says npy"),
        (["presave", "--until", "decode"], "--until decode contradicts photos.toml, which says resize"),
        (["presave", "--decoder", "turbo"], "--decoder turbo contradicts photos.toml, which says pillow"),
        (["presave", "--follow-links"], "--follow-links contradicts photos.toml, which says nothing about it"),
        (["compare", "others"], "SOURCE others contradicts photos.toml, which says photos"),
        (["compare", "--batch-size", "8"], "--batch-size 8 contradicts photos.toml, which says 4"),
        (["compare", "--dtype", "float64"], "--dtype float64 contradicts photos.toml, which says float32"),
        (["compare", "--pipeline", "my:pipeline"], "--pipeline my:pipeline contradicts photos.toml"),
        (["compare", "--classes", "a", "b"], "--classes a b contradicts photos.toml, which says nothing about it"),
        (["compare", "--no-header"], "--no-header contradicts photos.toml, which says nothing about it"),
        (["compare", "--strategies", "raw,configured=raw"], "has the same name twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_option_that_contradicts_the_file_is_refused(
    call: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(capsys, *call, "--config", "photos.toml")
    assert not (folder / "photos.store").exists()


def test_a_wrong_file_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "photos.toml" not in refusal(capsys, "compare", "--config", "nowhere.toml")
    (folder / "photos.toml").write_text('[data]\nsource = "photos"\n[loader]\nstrategy = "rwa"\n')
    for command in ("presave", "compare"):
        line = refusal(capsys, command, "--config", "photos.toml")
        assert "photos.toml: [loader] strategy: no strategy is called 'rwa'" in line


def test_a_comparison_needs_the_dtype_that_a_model_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write("raw", dtype=None)
    said = refusal(capsys, "compare", "--config", "photos.toml")
    assert 'photos.toml says dtype = "unchanged"' in said
    assert "--dtype float32" in said


def test_there_is_nothing_to_presave_for_a_strategy_without_a_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("raw")
    assert "photos.toml: raw reads no store" in refusal(capsys, "presave", "--config", "photos.toml")


def test_a_loader_of_the_user_prepares_its_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with user_module(folder, "my_loaders", LOADERS):
        write("my_loaders:prepared", store="files")
        for option in ("--jobs 2", "--format hdf5", "--on-error skip", "--allow-random"):
            line = refusal(capsys, "presave", "--config", "photos.toml", *option.split())
            assert f"{option.split()[0]} is for stores" in line
        assert main(["presave", "--config", "photos.toml", "--json", "files.json"]) == 0
        assert "my_loaders:prepared" in capsys.readouterr().out
        assert json.loads(Path("files.json").read_text())["nbytes"] == (folder / "files/labels.npy").stat().st_size
        (labels,) = etl.from_config("photos.toml")
        assert len(labels) == 40
        write("my_loaders:declared", store="files2")
        assert "has no `prepare`" in refusal(capsys, "presave", "--config", "photos.toml")


def test_what_a_killed_preparation_leaves_is_removed_by_the_next_one(folder: Path) -> None:
    with user_module(folder, "my_shards", KILLED):
        write("my_shards:prepared", store="files")
        (folder / "first").touch()
        killed = run_python("-m", "etl", "presave", "--config", "photos.toml", cwd=folder)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert list(folder.glob(".files.*"))
        assert main(["presave", "--config", "photos.toml"]) == 0
        assert etl.from_config("photos.toml") == [b"whole"]
    assert not list(folder.glob(".files.*"))


def compared(*call: str) -> dict[str, Any]:
    """The report of a comparison."""
    assert main(["compare", "--config", "photos.toml", *QUICK, *call, "--json", "report.json"]) == 0
    report: dict[str, Any] = json.loads(Path("report.json").read_text())
    return report


@pytest.mark.slow
def test_a_configured_strategy_is_compared_with_raw_and_with_itself_as_given(folder: Path) -> None:
    report = compared()
    assert [each["name"] for each in report["strategies"]] == ["raw", "async-presaved", "configured"]
    found = report["strategies"][-1]
    assert (found["stage"], found["format"], found["disqualified"]) == ("resize", "npy", [])
    assert (found["compute_threads"], found["loading_threads"]) == (1, 1)
    assert (report["settings"]["batch_size"], report["settings"]["source"]) == (4, "photos")
    assert not (folder / "photos.store").exists()


@pytest.mark.slow
def test_a_configured_loader_of_the_user_is_compared_with_its_settings(folder: Path) -> None:
    with user_module(folder, "my_loaders", LOADERS):
        write("my_loaders:declared", settings={"window": 4})
        report = compared("--strategies", "raw")
    assert [each["name"] for each in report["strategies"]] == ["raw", "configured"]
    assert report["strategies"][1]["sameness"]["level"] == "identical"
    first, *others = (folder / "windows.txt").read_text().split()
    assert (first, set(others)) == ("1", {"4"})  # it is tried without settings
