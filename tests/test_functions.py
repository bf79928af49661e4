"""A user's functions are found by name, carried to other processes, and called with what their parameters name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from etl.functions import call_by_name, find_function, is_function_name, pickle_function
from tests.programs import output_of, run_python
from tests.user_modules import user_module

CODE = """
    number = 3

    def load(task):
        return "loaded", task

    class Loader:
        @staticmethod
        def of_images():
            return "images"
"""


@pytest.mark.parametrize("text", ["module:function", "a.b.c:Class.method", "pickled:/some folder/1.pickle"])
def test_names_of_functions(text: str) -> None:
    assert is_function_name(text)


@pytest.mark.parametrize(
    "text", ["raw", "async-raw", "module:", ":function", "C:\\photographs", "folder/file.py:load", "a b:c", "a:b:c", ""]
)
def test_what_is_no_name_of_a_function(text: str) -> None:
    assert not is_function_name(text)


def test_a_function_is_found_in_a_module_of_the_working_folder(tmp_path: Path) -> None:
    with user_module(tmp_path, "my_functions", CODE):
        assert find_function("my_functions:load", "--strategies")(1) == ("loaded", 1)
        assert find_function("my_functions:Loader.of_images", "--strategies")() == "images"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_functions:lead", "--step my_functions:lead: AttributeError: .*'lead'; give package.module:function"),
        ("my_functoins:load", "--step my_functoins:load: ModuleNotFoundError: No module named 'my_functoins'"),
        ("my_functions:number", "--step my_functions:number: it is a int, which is not callable"),
        ("pickled:gone.pickle", "--step gone: FileNotFoundError"),
    ],
)
def test_errors_name_the_option_the_function_and_what_was_raised(tmp_path: Path, name: str, message: str) -> None:
    with user_module(tmp_path, "my_functions", CODE), pytest.raises(ValueError, match=message):
        find_function(name, "--step")


@pytest.mark.parametrize("statement", ["raise RuntimeError('no licence')", "import sys; sys.exit('no licence')"])
def test_whatever_a_module_raises_is_quoted(tmp_path: Path, statement: str) -> None:
    with user_module(tmp_path, "stubborn", statement), pytest.raises(ValueError, match="no licence; give package"):
        find_function("stubborn:load", "--step")


def test_a_function_of_another_function_is_carried_with_what_it_uses(tmp_path: Path) -> None:
    factor = 3

    def times(number: int) -> int:
        return factor * number

    name = pickle_function(times, tmp_path / "times.pickle")
    assert is_function_name(name)
    assert find_function(name, "--strategies")(5) == 15


def test_a_function_of_a_script_is_carried_to_another_process(tmp_path: Path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "load.pickle"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from etl.functions import pickle_function\n"
        "PREFIX = 'loaded '\n"
        "def load(what): return PREFIX + what\n"
        "print(pickle_function(load, Path(sys.argv[1])))\n"
    )
    name = output_of(script, file).strip()
    assert find_function(name, "--strategies")("photographs") == "loaded photographs"


def test_an_error_names_a_carried_function_and_not_its_file(tmp_path: Path) -> None:
    file = tmp_path / "Loader.of_images.pickle"
    file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"^--strategies Loader.of_images: EOFError: Ran out of input$"):
        find_function(f"pickled:{file}", "--strategies")


def test_what_cannot_be_pickled_is_an_error_that_names_the_function(tmp_path: Path) -> None:
    lock = threading.Lock()

    def load() -> Any:
        return lock

    with pytest.raises(ValueError, match=r"load cannot be carried to another process: TypeError: .*lock"):
        pickle_function(load, tmp_path / "load.pickle")
    assert not (tmp_path / "load.pickle").exists()


def positional_only(one: int, /, two: int) -> tuple[int, int]:
    return one, two


@pytest.mark.parametrize(
    ("function", "returned"),
    [
        (lambda: "nothing", "nothing"),
        (lambda two, one: (two, one), (2, 1)),
        (lambda one, other=5: (one, other), (1, 5)),
        (lambda one=8: one, 1),
        (lambda whole: whole, "whole"),
        (lambda whole, one=8: (whole, one), ("whole", 8)),
        (lambda two, *more, one, **most: (two, more, one, most), (2, (), 1, {})),
        (lambda *more, **most: (more, most), ((), {})),
        (positional_only, (1, 2)),
        (partial(lambda one, two: (one, two), one=8), (8, 2)),
        (partial(lambda whole, one: (whole, one), one=8), ("whole", 8)),
        (dict, {}),
    ],
)
def test_a_function_gets_the_arguments_that_its_parameters_name(function: Callable[..., Any], returned: Any) -> None:
    assert call_by_name(function, {"one": lambda: 1, "two": lambda: 2}, "whole") == returned


def test_only_arguments_that_are_asked_for_are_made() -> None:
    def fail() -> int:
        raise AssertionError("not asked for")

    assert call_by_name(lambda one: one, {"one": lambda: 1, "two": fail}, None) == 1


def test_an_unknown_parameter_is_named_with_those_that_there_are_before_any_argument_is_made() -> None:
    def fail() -> int:
        raise AssertionError("made for nothing")

    def load(one: int, three: int) -> None:
        """Load."""

    with pytest.raises(ValueError, match=r"load has a parameter 'three'; it can ask for one, two$"):
        call_by_name(load, {"one": fail, "two": fail}, None)


def test_a_function_of_a_script_that_is_itself_a_child_process_is_carried(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import multiprocessing, subprocess, sys\n"
        "from pathlib import Path\n"
        "from etl.functions import pickle_function\n"
        "NUMBER = 3\n"
        "class Base: pass\n"
        "class Loader(Base):\n"
        "    def number(self): return NUMBER\n"
        "def load(): return Loader().number()\n"
        "def carry():\n"
        "    name = pickle_function(load, Path('load.pickle'))\n"
        "    code = 'import sys, etl.functions as f; print(f.find_function(sys.argv[1], \"--model\")())'\n"
        "    subprocess.run([sys.executable, '-c', code, name], check=True)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=carry)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )
    done = run_python(script, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("3", "")
