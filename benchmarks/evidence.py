"""Write what the journals of studies say into README and docs: `python -m benchmarks.evidence`.

A block stands between `<!-- evidence: NAME -->` and `<!-- end of NAME -->`. With `--check` nothing is written: it fails
if a block differs from its journal, or if something measured stands outside of blocks.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks import serving
from benchmarks.console import say_failure
from benchmarks.servers import ROOT
from benchmarks.settings import settings_table
from benchmarks.studies import (
    bare_loop,
    compute_times,
    coverage,
    gc_pauses,
    power,
    tuning,
    variances,
    watching,
    what_if,
)
from benchmarks.studies.study import FOLDER, as_markdown


@dataclass(frozen=True)
class Block:
    """A part of a document that is written from a journal, which `python -m ` and its `command` measure.

    `render` is called with the path of the journal, and returns Markdown. All but its tables is wrapped.
    """

    file: str
    command: str
    render: Callable[[Path], str]

    def text(self, folder: Path) -> str:
        """Return what stands between the marks, or which command measures it if it was not run."""
        path = folder / self.file
        if not path.is_file():
            return f"*Not measured yet with the present method: `python -m {self.command}`.*\n"
        return "\n\n".join(wrapped(each) for each in self.render(path).strip().split("\n\n")) + "\n"


def _of_peers(function: str) -> Callable[[Path], str]:
    # Other commits are measured without the peers, and asv imports this module with each.
    return lambda path: str(getattr(importlib.import_module("benchmarks.peers.peer_table"), function)(path))


def render_tries(path: Path) -> str:
    """Return what `make torture` tried and what came of it, a line for all that is the same up to the first comma."""
    tried: dict[str, Counter[str]] = defaultdict(Counter)
    for what, outcomes in json.loads(path.read_text()).items():
        for outcome, times in outcomes.items():
            tried[what.partition(",")[0]][outcome.partition(",")[0]] += times
    lines = [("what is tried", "times", "outcome")]
    for what, counts in sorted(tried.items()):
        said = (f"{outcome}: {times:,}" for outcome, times in counts.most_common())
        lines.append((what, f"{counts.total():,}", "; ".join(said) if len(counts) > 1 else next(iter(counts))))
    return as_markdown(lines)


BLOCKS = {
    "peers": Block("peers.jsonl", "benchmarks.peers", _of_peers("summarise")),
    "peers-all": Block("peers.jsonl", "benchmarks.peers", _of_peers("render")),
    "power": Block("power.jsonl", "benchmarks.studies.power", power.render),
    "power-sentence": Block("power.jsonl", "benchmarks.studies.power", power.sentence),
    "tuning": Block("tuning.jsonl", "benchmarks.studies.tuning", tuning.render),
    "coverage": Block("coverage.jsonl", "benchmarks.studies.coverage photos", coverage.render),
    "coverage-delayed": Block(
        "coverage-delayed.jsonl", "benchmarks.studies.coverage photos --delayed", coverage.render
    ),
    "what-if": Block("what-if.jsonl", "benchmarks.studies.what_if", what_if.render),
    "bare-loop": Block("bare-loop.jsonl", "benchmarks.studies.bare_loop photos", bare_loop.render),
    "compute-times": Block("compute-times.jsonl", "benchmarks.studies.compute_times photos", compute_times.render),
    "serving": Block("serving.jsonl", "benchmarks.serving", serving.render),
    "serving-sentence": Block("serving.jsonl", "benchmarks.serving", serving.sentence),
    "settings": Block("settings.jsonl", "benchmarks.settings", settings_table.render),
    "gc-pauses": Block("gc-pauses.jsonl", "benchmarks.studies.gc_pauses", gc_pauses.render),
    "watching": Block("watching.jsonl", "benchmarks.studies.watching", watching.render),
    "variances": Block("variances.jsonl", "benchmarks.studies.variances", variances.render),
    "torture": Block(
        "torture.json", "pytest tests/torture --torture --counts benchmarks/studies/results/torture.json", render_tries
    ),
}
MARKS = re.compile(r"(?<=<!-- evidence: )(?P<name>[\w-]+) -->\n(?P<text>.*?)(?=<!-- end of (?P=name) -->)", re.DOTALL)
FENCES = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
# A ratio with its interval, a rate, a count of comparisons.
FIGURE = re.compile(
    r"\(\d[\d.,]*%? to \d[\d.,]*%?\)|\d\.\d+ times|\b\d[\d,.]* (?:images|records|requests|answers)(?: a second|/s)"
    r"|\b\d+ of \d+ (?:comparisons|copies|predictions)|\d(?:\.\d+)?% (?:slower|faster)"
)


def documents() -> list[Path]:
    """Return README and docs."""
    pages = ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")
    return [*(ROOT / page for page in pages), *sorted(ROOT.glob("docs/*.md"))]


def rewrite(text: str, folder: Path) -> str:
    """Return `text` with all blocks as their journals in `folder` have them."""
    return MARKS.sub(lambda found: f"{found['name']} -->\n{BLOCKS[found['name']].text(folder)}", text)


def figures(text: str) -> Iterator[tuple[int, str]]:
    """Yield line number and text of all that looks measured, outside of blocks and code."""
    for pattern in (MARKS, FENCES):
        text = pattern.sub(lambda found: "\n" * found[0].count("\n"), text)
    for number, line in enumerate(text.splitlines(), 1):
        for found in FIGURE.finditer(line):
            yield number, found[0]


def wrapped(paragraph: str) -> str:
    """Return a paragraph in lines of 120 characters; a table as it is."""
    if paragraph.startswith("|"):
        return paragraph
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False)


def check(paths: Iterable[Path], folder: Path) -> list[str]:
    """Return what is wrong, naming file and line."""
    wrong = []
    for path in paths:
        text, name = path.read_text(), path.relative_to(ROOT)
        if rewrite(text, folder) != text:
            wrong.append(f"{name} differs from the journals: python -m benchmarks.evidence writes its blocks")
        wrong += [f"{name}:{line}: {figure} is not from a journal" for line, figure in figures(text)]
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the blocks, or check them and return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if anything would change")
    if parser.parse_args(arguments).check:
        wrong = check(documents(), FOLDER)
        for line in wrong:
            say_failure(line, Console(stderr=True))
        return int(bool(wrong))
    for path in documents():
        path.write_text(rewrite(path.read_text(), FOLDER))
    return 0


if __name__ == "__main__":
    sys.exit(main())
