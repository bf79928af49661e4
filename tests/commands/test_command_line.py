"""The commands do what their help says, and exit with 0, or with 1 if a check failed."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import tempfile
import webbrowser
from pathlib import Path

import pytest

import etl
import presave
from etl.commands import COMMANDS, main
from etl.commands.output import save_page
from etl.sources import Record
from tests.presave.records import flip
from tests.programs import output_of


@pytest.fixture
def store(photographs: Path, tmp_path: Path) -> Path:
    presave.write(
        tmp_path / "photos.store", etl.records(etl.ImageFolder(photographs), etl.image_pipeline(8).until("resize"))
    ).close()
    return tmp_path / "photos.store"


def test_etl_alone_says_what_to_do_first_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in ("compare", "tune", "presave", "doctor", "dataset"):
        assert f"\n  etl {name} photos/" in shown
    assert all(len(line) < 80 for line in shown.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_says_of_a_command_what_its_module_says(name: str) -> None:
    documentation = importlib.import_module(f"etl.commands.{name}").__doc__ or ""
    assert documentation.splitlines()[0].partition(": ")[2] == COMMANDS[name]


def test_the_help_imports_no_command() -> None:
    code = "import sys; from etl.commands import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    shown = output_of("-c", code).split()
    assert "etl.commands" in shown
    assert not {"etl.comparison", "etl.sources", "etl.iterators", *(f"etl.commands.{name}" for name in COMMANDS)} & set(
        shown
    )


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"fair-etl {importlib.metadata.version('fair-etl')}\n"


@pytest.fixture
def browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A browser that writes the address that it is to show into the file that is returned."""
    program, shown = tmp_path / "browser", tmp_path / "shown"
    program.write_text(f'#!/bin/sh\necho "$1" > {shown}\n')
    program.chmod(0o755)
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    monkeypatch.setattr(webbrowser, "_browsers", {})
    webbrowser.register("test", None, webbrowser.GenericBrowser(str(program)))
    return shown


def test_a_page_is_opened_from_its_file_or_from_a_temporary_one(
    browser: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    save_page(tmp_path / "page.html", opens=True, render=lambda: "<p>one")
    assert browser.read_text() == f"file://{tmp_path}/page.html\n"
    save_page(None, opens=True, render=lambda: "<p>two")
    temporary = Path(browser.read_text().removeprefix("file://").strip())
    assert temporary.read_text() == "<p>two"
    assert f"The page is {temporary}" in capsys.readouterr().out


def test_without_a_browser_the_page_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "_tryorder", [])
    page = tmp_path / "page.html"
    save_page(page, opens=True, render=lambda: "<p>")
    assert capsys.readouterr().err == f"etl: no browser could be opened; the page is {page}\n"


def test_a_page_that_was_not_asked_for_is_not_made() -> None:
    def render() -> str:
        raise AssertionError

    save_page(None, opens=False, render=render)


@pytest.mark.parametrize(
    ("kind", "records", "classes"),
    [("photographs", 12, "astronaut"), ("digits", 10, "0")],
    ids=["photographs", "digits"],
)
def test_dataset_makes_the_data_once_and_reuses_it(
    kind: str, records: int, classes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["dataset", str(tmp_path / "d"), "--kind", kind, "--samples", "12", "--json", str(tmp_path / "made.json")]
    facts = []
    for _ in range(2):
        assert main(call) == 0
        facts.append(json.loads((tmp_path / "made.json").read_text()))
    assert [each["made"] for each in facts] == [True, False]
    assert facts[1]["records"] == records
    assert facts[1]["classes"][0] == classes
    assert facts[1]["nbytes"] == sum(f.stat().st_size for f in (tmp_path / "d").rglob("*") if f.is_file())
    shown = capsys.readouterr()
    assert "before, reused" in shown.out
    assert shown.err == ""


def test_presave_decodes_photographs_into_a_store_that_records_how(
    photographs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--size", "16", "--format", "hdf5", "--json", str(tmp_path / "s.json")]
    assert main(["presave", str(photographs), str(tmp_path / "s"), *options]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "uint8 (16, 16, 3)" in shown.out
    facts = json.loads((tmp_path / "s.json").read_text())
    assert (facts["records"], facts["format"], facts["stage"]) == (40, "hdf5", "resize")
    source, pipeline = etl.ImageFolder(photographs), etl.image_pipeline(16)
    with presave.open_store(tmp_path / "s") as store:
        assert store.manifest.fingerprint == pipeline.until("resize").fingerprint
        assert (store[17]["features"] == pipeline.until("resize")(source[17])["features"]).all()


@pytest.mark.parametrize(("split", "records"), [("train", 1438), ("test", 359)])
def test_presave_stores_digits_after_the_requested_stage(
    split: str, records: int, digits: Path, tmp_path: Path
) -> None:
    assert main(["presave", str(digits), str(tmp_path / "s"), "--split", split, "--until", "channels_first"]) == 0
    with presave.open_store(tmp_path / "s") as store:
        assert (len(store), store.fields["features"].shape, store.manifest.stage) == (
            records,
            (1, 28, 28),
            "channels_first",
        )


def test_inspect_shows_the_store_to_people_and_to_programs(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(store), "--json", str(tmp_path / "facts.json")]) == 0
    assert "uint8 (8, 8, 3)" in capsys.readouterr().out
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["fields"] == {
        "features": {"dtype": "uint8", "shape": [8, 8, 3]},
        "label": {"dtype": "int64", "shape": []},
    }
    assert facts["provenance"]["classes"][0] == "astronaut"


def test_verify_exits_with_1_and_names_the_file_after_a_flipped_bit(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(store)]) == 0
    assert "whole, every byte as written" in capsys.readouterr().out
    file = store / "features-00000.npy"
    flip(file)
    assert main(["verify", str(store), "--json", str(tmp_path / "faults.json")]) == 1
    assert f"{file}: its bytes have changed" in capsys.readouterr().out
    (fault,) = json.loads((tmp_path / "faults.json").read_text())["faults"]
    assert fault.startswith(f"{file}: ")


def test_convert_keeps_records_and_their_origin(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(store), str(tmp_path / "t"), "--format", "hdf5"]) == 0
    assert capsys.readouterr().err == ""
    with presave.open_store(store) as before, presave.open_store(tmp_path / "t") as after:
        assert after.manifest.format == "hdf5"
        assert after.manifest.provenance == before.manifest.provenance
        assert (after.gather(range(40))["features"] == before.gather(range(40))["features"]).all()
    assert main(["verify", str(tmp_path / "t")]) == 0


def test_an_interrupted_command_exits_with_130_and_leaves_nothing(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(self: etl.ImageFolder, index: int) -> Record:
        raise KeyboardInterrupt

    monkeypatch.setattr(etl.ImageFolder, "__getitem__", interrupt)
    assert main(["presave", str(photographs), str(tmp_path / "s")]) == 130
    assert capsys.readouterr().err.startswith("etl: interrupted")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_names_every_kind_of_source(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert f"usage: etl {command}" in shown
    reads_sources = command in ("compare", "tune", "presave", "doctor")
    assert all((each in shown) is reads_sources for each in ("package.module:function", "NAME://PATH"))
