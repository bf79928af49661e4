"""asv's configuration takes effect, and `benchmarks/` keeps to the public interface."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import asv
import pytest
from asv.config import Config
from asv.plugins.regressions import _GraphDataFilter
from packaging.requirements import Requirement

import benchmarks
import etl
import presave
from benchmarks.publish.front_page import LARGER_IS_BETTER
from tests.scratch import ENVIRONMENTS, make_scratch

ROOT = Path(__file__).parents[2]
MODULES = sorted(Path(benchmarks.__file__).parent.rglob("*.py"))
# Runs with the working tree's `etl` only, as `etl compare` does. asv imports no folder without an __init__.py.
PEERS = Path(benchmarks.__file__).parent / "peers"
SUITES = ("decode.py", "end_to_end.py", "gather.py", "overlap.py", "serving.py", "suites.py", "write.py")
# asv takes any function or method of such a name, in any module of the folder, for a benchmark.
BENCHMARK_NAMES = re.compile(r"(time|timeraw|mem|peakmem|track)_")


@pytest.fixture(scope="module")
def conf() -> Config:
    return Config.load(str(ROOT / "asv.conf.json"))


def test_asv_builds_with_the_pins_of_the_constraints_file(conf: Config) -> None:
    lines = (ROOT / ".ci/constraints.txt").read_text().splitlines()
    requirements = [Requirement(line) for line in lines if not line.startswith("#")]
    pins = {
        each.name: str(each.specifier).removeprefix("==")
        for each in requirements
        if each.marker is None or each.marker.evaluate({"python_version": "3.11"})
    }
    required = {name.removeprefix("pip+"): versions for name, versions in conf.matrix["req"].items()}
    assert required == {name: [pins[name]] for name in required}


@pytest.mark.slow
def test_asv_makes_an_environment_with_these_versions(conf: Config, tmp_path: Path) -> None:
    """Make it beside other tests, for those that run alone and measure: pip runs once for each requirement."""
    scratch = make_scratch(tmp_path)
    scratch.commit("As it is")
    made = scratch.asv("setup")  # exits with 1 whatever happened: asv hands its list of environments to sys.exit
    pins = {name.removeprefix("pip+"): version for name, (version,) in conf.matrix["req"].items()}
    program = (  # a version without its build, such as "+cpu"
        "import importlib.metadata as m, json, sys; "
        "print(json.dumps({name: m.version(name).partition('+')[0] for name in sys.argv[1:]}))"
    )
    found = [
        subprocess.run([python, "-c", program, *pins], capture_output=True, check=False).stdout
        for python in ENVIRONMENTS.glob("*/bin/python")  # earlier configurations have others
    ]
    assert pins in [json.loads(versions) for versions in found if versions], made.stdout


def test_asv_has_every_dependency_of_the_package_and_of_the_benchmarks(conf: Config) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *extras["torch"], *extras["fast"], *extras["demo"]]
    wanted = {re.split(r"[><=]", each)[0] for each in required}
    assert wanted <= {name.removeprefix("pip+") for name in conf.matrix["req"]}


def test_every_setting_is_one_that_asv_knows(conf: Config) -> None:
    text = (ROOT / "asv.conf.json").read_text()
    # asv ignores a key that it does not know, such as a misspelt one.
    source = "\n".join(path.read_text() for path in Path(asv.__file__).parent.rglob("*.py"))
    for setting in re.findall(r'^    "(\w+)":', text, re.MULTILINE):
        assert re.search(rf"\b{setting}\b", source), f"asv reads no setting called {setting}"
    assert conf.regressions_thresholds == {".*": 0.10}
    assert conf.launch_method == "forkserver"


def test_asv_takes_no_rise_of_a_metric_for_which_larger_is_better_for_a_regression(conf: Config) -> None:
    graph = SimpleNamespace(params={"branch": "main"})
    looked_for = {
        name: _GraphDataFilter(conf, None, {"a commit": 7})._get_start_revision(graph, {}, f"suite.{name}('raw')")
        for name in (*LARGER_IS_BETTER, "track_wall", "track_over_decoder")
    }
    assert looked_for == {**dict.fromkeys(LARGER_IS_BETTER), "track_wall": 7, "track_over_decoder": 7}


def test_other_commits_are_measured_without_the_peers() -> None:
    assert not (PEERS / "__init__.py").exists()
    others = [module.read_text() for module in MODULES if not module.is_relative_to(PEERS)]
    assert not any(re.search(r"^\s*(from|import) benchmarks\.peers", each, re.MULTILINE) for each in others)


@pytest.mark.parametrize(
    "module", [each for each in MODULES if not each.is_relative_to(PEERS)], ids=lambda path: path.name
)
def test_benchmarks_import_only_the_public_interface(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in ("etl", "presave"), f"from {node.module} import ..."
        elif isinstance(node, ast.Import):
            assert not any(name.name.startswith(("etl.", "presave.")) for name in node.names)
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("etl", "presave")
        ):
            assert node.attr in {"etl": etl, "presave": presave}[node.value.id].__all__


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_only_benchmarks_have_names_that_asv_discovers(module: Path) -> None:
    named = [
        node.name
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.FunctionDef) and BENCHMARK_NAMES.match(node.name)
    ]
    assert all(name.startswith("track_") for name in named)
    assert not named or module.name in SUITES


def test_asv_finds_the_suites_and_loads_no_torch() -> None:
    program = (
        "import sys; from asv_runner.discovery import disc_modules; [*disc_modules('benchmarks')]; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
