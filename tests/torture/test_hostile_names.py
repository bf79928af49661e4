"""Names of files and fields that would steer a terminal or a page, and modules that nobody asked for."""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

import etl
import presave
from etl.arguments import printable
from etl.commands import main
from etl.commands.output import PlainConsole
from tests.programs import output_of
from tests.torture.conftest import Tally

NAMES = [
    "[bold]x[/bold]",
    "[/nothing]",
    "[link=https://example.org]x[/link]",
    "\x1b]0;title\x07\x1b[2J",
    "a\nb\r\x08c",
    "\u202egnp.1",
    ":warning:",
    "\x9b31m",
    "\udcff",
]


def _assert_plain(text: str, what: str) -> None:
    wrong = {each for each in text if not each.isprintable() and each != "\n"}
    assert not wrong, f"{what}: {wrong}"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_console_shows_any_text_as_it_is(name: str, capsys: pytest.CaptureFixture[str], tally: Tally) -> None:
    console = PlainConsole(width=200, force_terminal=True, color_system=None)
    table = Table(title=name, show_header=False)
    table.add_row(name)
    console.print(table)
    console.print(name)
    shown = capsys.readouterr().out
    _assert_plain(shown, name)
    assert shown.count(printable(name.split("\n")[0])) == 3
    tally("hostile input, name that steers a terminal", "shown as text")


@pytest.mark.parametrize("name", [name for name in NAMES if name.isascii()], ids=ascii)
def test_commands_show_what_is_in_a_store_as_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], tally: Tally
) -> None:
    records = UserList([{name: np.arange(3)}])
    records.stage, records.provenance = name, {"source": name}
    presave.write(tmp_path / "s", records).close()
    (tmp_path / "s" / name.replace("/", "|")).touch()
    assert main(["inspect", str(tmp_path / "s")]) == 0
    assert main(["verify", str(tmp_path / "s")]) == 1
    shown = capsys.readouterr()
    _assert_plain(shown.out + shown.err, name)
    assert printable(name) in shown.out
    tally("hostile input, name that steers a terminal", "shown as text", 2)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_errors_show_names_of_files_as_text(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], tally: Tally
) -> None:
    file = tmp_path / "photos" / name.replace("/", "|") / "x.jpg"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"no image")
    assert main(["presave", str(tmp_path / "photos"), str(tmp_path / "s")]) == 2
    error = capsys.readouterr().err
    _assert_plain(error, name)
    assert error.count("\n") == 1
    source = etl.ImageFolder(tmp_path / "photos")
    with pytest.raises(ValueError) as raised:
        etl.records(source, etl.image_pipeline(size=8))[0]
    _assert_plain(str(raised.value), name)
    tally("hostile input, name that steers a terminal", "shown as text", 2)


MODULES = ["etl", "json", "numpy", "torch", "multiprocessing", "sitecustomize", "etl.comparison", "evil"]
COMMANDS: dict[str, Callable[[Path], list[str]]] = {
    "compare": lambda _: ["compare", ".", "--strategies=raw", "--compute=simulated:1ms", "--rounds=1", "--budget=1s"],
    "presave": lambda folder: ["presave", ".", str(folder / "s")],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_module_in_the_folder_with_the_data_is_imported(
    command: str, photographs: Path, tmp_path: Path, tally: Tally
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for each in photographs.iterdir():
        if each.is_dir():
            (folder / each.name).symlink_to(each)
    for module in MODULES:
        path = folder / Path(*module.split("."))
        path.mkdir(exist_ok=True)
        (path / "__init__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({module!r})\n")
    (folder / "dataset.json").write_text('{"model": "evil:run", "source": "evil:run"}')
    start = "import sys; sys.path.remove(''); import etl.commands; sys.exit(etl.commands.main())"
    options = (*COMMANDS[command](tmp_path), "--follow-links", "--allow-empty")
    output_of("-c", start, *options, cwd=folder, timeout=300, PYTHONPATH=str(Path(etl.__file__).parents[1]))
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    tally(f"hostile input, modules in the folder with the data, etl {command}", "none was imported")
