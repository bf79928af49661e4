"""Tables in real pseudo-terminals: at every width nothing is cut and nothing is lost."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

import presave
from etl.commands.output import PlainConsole
from etl.tables import Bar, print_table
from tests import comparison_reports
from tests.programs import output_of
from tests.terminal import ROOT, Shown, run_in_terminal
from tests.tuning_results import TUNINGS

WIDTHS = (60, 80, 100, 200)
SCRIPT = str(ROOT / "tests/every_table.py")
# Without that of strategies that all failed: it has no table.
TUNED = tuple(f"tune {name}" for name in TUNINGS if name != "all_failed")
TABLES = (
    *(f"compare {name}" for name in comparison_reports.REPORTS),
    *TUNED,
    *("doctor", "stores", "commits", "study", "settings", "peers", "history", "gather", "decode", "overlap", "scale"),
    *("writers", "formats", "collections", "what if"),
)
# Tables with names and notes that are longer than a column may be, so that they wrap.
WITH_LONG_TEXTS = ("compare many_with_long_names", "compare hostile", *TUNED, "settings", "peers", "what if")
# Several tables that name their rows alike.
SEVERAL_TABLES = ("peers", "compare everything", *TUNED)
HEADLINE = ["strategy", "wall, s", "ratio", "95% interval", "parts"]
QUICK = ("--rounds", "1", "--budget", "2s", "--records", "8", "--batch-size", "4", "--size", "32", "--cpus", "1")


def sections(text: str) -> dict[str, list[str]]:
    """Return the lines below each heading of every_table.py."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line[3:], [])
        else:
            lines.append(line)
    return found


@pytest.fixture(scope="module")
def in_terminals() -> dict[str, list[str]]:
    """Return the lines of each table, by width and name."""
    shown = run_in_terminal(80, SCRIPT, *map(str, WIDTHS))
    assert shown.code == 0, shown.errors
    return sections(shown.text)


@pytest.fixture(scope="module")
def in_a_pipe() -> dict[str, list[str]]:
    """Return the lines of each table in a pipe, by name."""
    return {name.removeprefix("a pipe "): lines for name, lines in sections(output_of(SCRIPT)).items()}


def cells(line: str) -> list[str]:
    """Return the cells of a heading, of a row, or of a line of a row that wraps."""
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]


def tables(lines: list[str]) -> list[list[list[str]]]:
    """Return the headings and rows of each table of boxes in `lines`."""
    found: list[list[list[str]]] = []
    for line in lines:
        if line.startswith(("┏", "┌")):
            found.append([])
        elif line.startswith(("│", "┃")):
            found[-1].append(cells(line))
    return found


def columns_of(lines: list[str]) -> list[list[str]]:
    """Return each column of all tables once, heading first.

    Bars are left out: their length depends on the width.
    """
    columns = [list(column) for table in tables(lines) for column in zip(*table, strict=True)]
    unique = [column for number, column in enumerate(columns) if column not in columns[:number]]
    return sorted(column for column in unique if not re.fullmatch("[█▒░ ]+", "".join(column[1:])))


def words(lines: list[str]) -> set[str]:
    """Return all words in the tables of `lines`."""
    return {
        word for table in tables(lines) for row in table for cell in row for word in re.sub("[█▒░]", "", cell).split()
    }


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("columns", WIDTHS)
def test_no_line_is_wider_than_the_terminal_and_nothing_is_cut(
    in_terminals: Mapping[str, list[str]], columns: int, name: str
) -> None:
    lines = in_terminals[f"{columns} {name}"]
    assert len(lines) > 3
    assert "…" not in "\n".join(lines)
    assert max(map(cell_len, lines)) <= columns


@pytest.mark.parametrize("name", [name for name in TABLES if name not in WITH_LONG_TEXTS])
@pytest.mark.parametrize("columns", WIDTHS)
def test_every_cell_of_the_whole_table_is_on_one_line_at_every_width(
    in_terminals: Mapping[str, list[str]], in_a_pipe: Mapping[str, list[str]], columns: int, name: str
) -> None:
    whole = columns_of(in_a_pipe[name])
    assert whole
    assert columns_of(in_terminals[f"{columns} {name}"]) == whole


@pytest.mark.parametrize("name", WITH_LONG_TEXTS)
@pytest.mark.parametrize("columns", WIDTHS)
def test_long_texts_lose_no_word(
    in_terminals: Mapping[str, list[str]], in_a_pipe: Mapping[str, list[str]], columns: int, name: str
) -> None:
    expected, found = words(in_a_pipe[name]), words(in_terminals[f"{columns} {name}"])
    numbers = {word for word in expected if re.match(r"[-+−(]?\d", word)}  # noqa: RUF001
    assert numbers <= found
    if "hostile" not in name:  # has words that are wider than a column
        assert expected <= found


@pytest.mark.parametrize("name", [name for name in TABLES if name not in SEVERAL_TABLES])
def test_a_pipe_gets_one_table_of_each(in_a_pipe: Mapping[str, list[str]], name: str) -> None:
    lines = in_a_pipe[name]
    assert "…" not in "\n".join(lines)
    headings = [table[0][0] for table in tables(lines)]
    assert len(headings) == len(set(headings))


@pytest.mark.parametrize("columns", WIDTHS)
def test_tune_shows_the_time_and_ratio_of_each_configuration_in_the_first_table_of_each_strategy(
    in_terminals: Mapping[str, list[str]], columns: int
) -> None:
    headings, *rows = tables(in_terminals[f"{columns} tune photographs"])[0]
    wanted = ["#", "epoch, s", "ratio", "95% interval"]
    assert [each for each in headings if each in wanted] == wanted
    (row,) = (dict(zip(headings, row, strict=True)) for row in rows if row[0] == "2 chosen")
    assert (row["epoch, s"], row["ratio"], row["95% interval"]) == ("3.37", "0.66", "0.63 to 0.69")
    assert ("settings" in headings) is (columns > 60)


def test_tune_has_one_table_for_each_strategy_in_a_pipe(in_a_pipe: Mapping[str, list[str]]) -> None:
    lines = in_a_pipe["tune photographs"]
    assert "…" not in "\n".join(lines)
    assert [len(table) - 1 for table in tables(lines)] == [8, 4, 5, 2]


@pytest.mark.parametrize("columns", WIDTHS)
def test_compare_shows_the_ratio_and_where_the_time_goes_in_its_first_table(
    in_terminals: Mapping[str, list[str]], columns: int
) -> None:
    headings, *rows = tables(in_terminals[f"{columns} compare photographs"])[0]
    assert [each for each in headings if each in HEADLINE] == HEADLINE
    (row,) = (dict(zip(headings, row, strict=True)) for row in rows if row[0] == "async-raw")
    assert (row["wall, s"], row["ratio"], row["95% interval"]) == ("4.42", "0.70", "0.67 to 0.73")
    assert re.fullmatch("█+▒+░*", row["parts"])
    if columns > 60:
        assert re.fullmatch("█+▒+░+", row["parts"])
    lines = in_terminals[f"{columns} compare photographs"]
    assert "parts of wall: █ compute alone, ▒ interference, ░ stall" in lines


def test_the_first_table_of_compare_keeps_its_columns_as_the_terminal_grows(
    in_terminals: Mapping[str, list[str]],
) -> None:
    shown = [set(tables(in_terminals[f"{columns} compare photographs"])[0][0]) for columns in WIDTHS]
    assert shown[0] <= shown[1] < shown[2] < shown[3]


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["ascii", "C", "latin-1"],
)
def test_a_terminal_without_block_characters_gets_ascii(environment: dict[str, str]) -> None:
    shown = run_in_terminal(60, "-c", REPORT, **environment)
    assert shown.code == 0, shown.errors
    assert shown.text.isascii()
    assert "parts of wall: # compute alone, + interference, . stall" in shown.lines
    assert max(map(len, shown.lines)) <= 60
    (row,) = (line for line in shown.lines if re.search(r"async-raw .*###\+", line))
    assert "0.70 | 0.67 to 0.73" in row


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "NO_COLOR"])
def test_a_terminal_without_colours_shows_the_same(
    in_terminals: Mapping[str, list[str]], environment: dict[str, str]
) -> None:
    shown = run_in_terminal(60, "-c", REPORT, **environment)
    assert shown.lines == in_terminals["60 compare photographs"]


REPORT = """
from tests import comparison_reports
from etl.comparison.show.report_table import show_report
from etl.commands.output import output_console
show_report(comparison_reports.photographs(), output_console())
"""


def assert_readable(shown: Shown, columns: int) -> None:
    assert "…" not in shown.text
    assert max(map(cell_len, shown.lines)) <= columns


@pytest.mark.slow
def test_the_command_compare(photographs: Path) -> None:
    shown = run_in_terminal(
        80, "-m", "etl", "compare", str(photographs), *QUICK, "--strategies", "raw,presaved", "--stages", "-v"
    )
    assert shown.code == 0, shown.errors
    assert_readable(shown, 80)
    (first, *_), *others = tables(shown.lines)
    assert [re.sub(", .*", "", each) for each in first] == ["strategy", "wall", "ratio", "95% interval", "parts"]
    further = {heading for table in others for heading in table[0]}
    assert {"verdict", "ETL alone", "compute", "stall", "samples/s", "pays off after"} < further
    assert {"CPU s/1,000", "peak MB", "read MB", "presaved after", "MB on disk"} < further


def test_the_command_doctor() -> None:
    shown = run_in_terminal(60, "-m", "etl", "doctor")
    assert shown.code in (0, 1), shown.errors
    assert_readable(shown, 60)
    assert re.search(r"not looked at  Size of the network: there\s+is\s+no\s+model", shown.text)


def test_commands_that_write_and_describe_stores(photographs: Path, tmp_path: Path) -> None:
    columns = WIDTHS[0]
    store = tmp_path / "a store with a name of more than fifty columns, 図書館の写真"
    written = run_in_terminal(columns, "-m", "etl", "presave", str(photographs), str(store), "--size", "8")
    assert written.code == 0, written.errors
    inspected = run_in_terminal(columns, "-m", "etl", "inspect", str(store))
    with presave.open_store(store) as opened:
        nbytes = f"{opened.manifest.nbytes:,}"
    for shown in (written, inspected):
        assert_readable(shown, columns)
        (facts,) = tables(shown.lines)
        assert ["bytes", nbytes] in facts
        assert ["field features", "uint8 (8, 8, 3)"] in facts
        assert "".join(shown.text.split()).startswith("".join(str(store).split()))


def printed(table: Table, columns: int, **options: object) -> list[str]:
    text = io.StringIO()
    print_table(table, PlainConsole(file=text, width=columns, height=25), **options)  # type: ignore[arg-type]
    return text.getvalue().splitlines()


def test_columns_of_the_first_table_keep_the_order_of_the_whole() -> None:
    table = Table()
    for name in ("name", "first number", "second number", "third number"):
        table.add_column(name, justify="left" if name == "name" else "right")
    table.add_row("x", "1", "2", "3")
    lines = printed(table, 42, first=("third number", "first number"))
    assert [each[0] for each in tables(lines)] == [["name", "first number", "third number"], ["name", "second number"]]
    assert [each[0] for each in tables(printed(table, 60))] == [
        ["name", "first number", "second number", "third number"]
    ]


def test_columns_that_do_not_fit_are_spread_over_tables_of_even_width() -> None:
    table = Table()
    table.add_column("name")
    for number in range(7):
        table.add_column(f"number {number}", justify="right")
    table.add_row("x", *map(str, range(7)))
    assert [len(each[0]) - 1 for each in tables(printed(table, 52))] == [4, 3]
    assert [len(each[0]) - 1 for each in tables(printed(table, 41))] == [3, 2, 2]


def test_keys_are_repeated_and_wrap_at_words_before_numbers_move_to_another_table() -> None:
    table = Table(title="A title that is wider than the table", caption="and a caption")
    table.add_column("strategy")
    table.add_column("format")
    table.add_column("seconds", justify="right")
    table.add_column("bytes", justify="right")
    table.add_row("a strategy with a long name", "npy", "1,234,567,890.123", "123,456")
    lines = printed(table, 42, keys=2)
    assert lines[0] == "A title that is wider than the table"
    assert lines.count("and a caption") == 1
    assert [each[0] for each in tables(lines)] == [["strategy", "format", "seconds"], ["strategy", "format", "bytes"]]
    assert "1,234,567,890.123" in "\n".join(lines)
    assert max(map(len, lines)) <= 42


@pytest.mark.parametrize("columns", [1, 10, 20, 30])
def test_a_number_is_whole_in_a_terminal_that_is_too_narrow_for_it(columns: int) -> None:
    table = Table()
    table.add_column("strategy")
    table.add_column("seconds", justify="right")
    table.add_row("async-presaved:safetensors", "1,234,567,890.123")
    assert any("1,234,567,890.123" in line for line in printed(table, columns))


def test_long_notes_wrap_so_that_names_and_numbers_stay_on_their_line() -> None:
    table = Table()
    table.add_column("loader")
    table.add_column("images/s", justify="right")
    table.add_column("note")
    table.add_row("a loader with a name of forty characters", "1,234", "a note that goes on " * 10)
    lines = printed(table, 100)
    assert any("a loader with a name of forty characters │    1,234 │ a note" in line for line in lines)
    assert max(map(len, lines)) == 100


def test_benchmarks_print_tables_beside_a_commit_that_has_no_such_file() -> None:
    code = "import sys; sys.modules['etl'] = None; import benchmarks.console; print(benchmarks.console.tables.__file__)"
    assert output_of("-c", code, cwd=ROOT).strip() == str(ROOT / "etl/tables.py")


def test_a_table_of_keys_alone_wraps_in_a_narrow_terminal() -> None:
    table = Table()
    table.add_column("strategy")
    table.add_column("format")
    table.add_row("async-presaved", "safetensors")
    lines = printed(table, 30, keys=2)
    assert [each[0] for each in tables(lines)] == [["strategy", "format"]]
    assert max(map(len, lines)) == 30


def test_a_table_without_rows_has_its_headings() -> None:
    table = Table()
    table.add_column("strategy")
    table.add_column("seconds", justify="right")
    assert tables(printed(table, 80)) == [[["strategy", "seconds"]]]


@pytest.mark.parametrize("width", range(5, 21))
def test_the_lengths_of_the_parts_of_a_bar_add_up(width: int) -> None:
    thirds = [("a", "", 1 / 3), ("b", "", 1 / 3), ("c", "", 1 / 3), ("d", "", -0.2)]
    console = Console(file=io.StringIO(), width=width, height=25)
    console.print(Bar(thirds))
    shown = console.file.getvalue().strip()  # type: ignore[attr-defined]
    assert len(shown) == width
    assert all(abs(shown.count(each) - width / 3) < 1 for each in "abc")
