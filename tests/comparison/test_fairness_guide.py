"""Each loader of docs/fairness.md breaks the rule that it is to break, and the report says so in the guide's words."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import etl
from tests.comparison_workloads import broken_rules

pytestmark = pytest.mark.slow

GUIDE = (Path(__file__).parents[2] / "docs" / "fairness.md").read_text()
COLD = ", with `--cache cold`"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in GUIDE.splitlines() if line.startswith("| same")
]


@pytest.fixture
def unfair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n# unfair.py\n(.*?)```", GUIDE, re.DOTALL)
    (tmp_path / "unfair.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "unfair", raising=False)


def compare(photographs: Path, names: list[str], cache: str) -> dict[str, list[str]]:
    """Return the rules that each loader broke."""
    report = etl.compare(
        str(photographs),
        {"raw": "raw", "honest": "unfair:honest", **{name: f"unfair:{name}" for name in names}},
        batch_size=4,
        size=32,
        threads=1,
        rounds=1,
        records=40,
        cache=cache,
    )
    return {each.name: broken_rules(each.disqualified) for each in report.strategies}


@pytest.mark.usefixtures("unfair")
@pytest.mark.parametrize("cache", ["warm", "cold"])
def test_every_loader_of_the_guide_breaks_its_rule_and_no_other(cache: str, photographs: Path) -> None:
    rows = [each for each in ROWS if (COLD in each[1]) == (cache == "cold")]
    names = [loader.removesuffix(COLD).strip("`") for _, loader, _ in rows]
    broken = compare(photographs, names, cache)
    assert broken.pop("raw") == broken.pop("honest") == []
    for (rule, _, says), name in zip(rows, names, strict=True):
        (reason,) = broken[name]
        assert reason.startswith(rule.split()[-1 if rule != "same cache state" else 1])
        assert says.strip("`") in reason


def test_the_guide_has_loaders_for_the_first_four_rules() -> None:
    assert len({rule for rule, _, _ in ROWS}) == 4
