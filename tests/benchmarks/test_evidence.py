"""README and docs take their measurements from journals; a figure from elsewhere is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.evidence import BLOCKS, Block, check, documents, figures, main, render_tries, rewrite

TEXT = """Some words.

<!-- evidence: speed -->
0.5 of it (0.4 to 0.6)
<!-- end of speed -->

More words.
"""


@pytest.fixture(autouse=True)
def speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be a block whose text is that of its journal."""
    monkeypatch.setitem(BLOCKS, "speed", Block("speed.jsonl", "benchmarks.studies.speed", Path.read_text))


def test_the_documents_are_those_that_the_journals_give(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_every_block_stands_in_a_document() -> None:
    text = "".join(path.read_text() for path in documents())
    for name in BLOCKS.keys() - {"speed"}:
        assert text.count(f"<!-- evidence: {name} -->\n") == 1, name
        assert text.count(f"<!-- end of {name} -->\n") == 1, name
    assert text.count("<!-- evidence: ") == len(BLOCKS) - 1


def test_a_block_is_written_from_its_journal(tmp_path: Path) -> None:
    (tmp_path / "speed.jsonl").write_text("| loader | ratio |\n| --- | --- |\n\nword " + "word " * 30)
    text = rewrite(TEXT, tmp_path)
    assert text.startswith("Some words.\n\n<!-- evidence: speed -->\n| loader | ratio |\n")
    assert text.endswith("word\n<!-- end of speed -->\n\nMore words.\n")
    assert max(map(len, text.splitlines())) <= 120
    assert rewrite(text, tmp_path) == text


def test_a_study_that_was_not_run_is_named(tmp_path: Path) -> None:
    assert "*Not measured yet with the present method: `python -m benchmarks.studies.speed`.*" in rewrite(
        TEXT, tmp_path
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("It is 0.43 (0.35 to 0.54) of ours.", "(0.35 to 0.54)"),
        ("It answers 3.4 times as many.", "3.4 times"),
        ("It loads 1,280 images a second.", "1,280 images a second"),
        ("In 8 of 100 comparisons it was wrong.", "8 of 100 comparisons"),
        ("It is 3% slower.", "3% slower"),
        ("An interval of 95% holds.", None),
        ("Pass `--rounds 8` for 2 of them.", None),
    ],
)
def test_what_looks_measured_is_found_outside_of_blocks_and_code(line: str, found: str | None) -> None:
    text = f"{TEXT}\n```\n{line}\n```\n{line}\n"
    assert list(figures(text)) == ([(len(text.splitlines()), found)] if found else [])


def test_what_is_wrong_is_named_with_file_and_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(evidence, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text(f"{TEXT}It is 3% slower.\n")
    (tmp_path / "speed.jsonl").write_text("0.7 of it")
    assert check([tmp_path / "README.md"], tmp_path) == [
        "README.md differs from the journals: python -m benchmarks.evidence writes its blocks",
        "README.md:8: 3% slower is not from a journal",
    ]


def test_tries_of_a_kind_are_one_line_with_their_outcomes(tmp_path: Path) -> None:
    path = tmp_path / "torture.json"
    disk = {"a disk, full": {"an error, at once": 2}, "a disk, slow": {"an error, late": 1, "read": 1}}
    path.write_text(json.dumps({"kills": {"the same, to the bit": 1000}, **disk}))
    lines = render_tries(path).splitlines()[2:]
    assert lines == ["| a disk | 4 | an error: 3; read: 1 |", "| kills | 1,000 | the same |"]
