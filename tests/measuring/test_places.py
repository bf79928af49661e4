"""An error is described in one line that names the place in the user's file."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from etl.measuring.places import describe_error, place_in
from etl.measuring.structure import record_count
from presave import interrupts


def describe(function: object, *arguments: object) -> str:
    try:
        function(*arguments)  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001 - of any kind
        return describe_error(error)
    raise AssertionError("nothing was raised")


def fail(message: str) -> None:
    raise ValueError(message)


def parse(text: str) -> None:
    json.loads(text)


def test_an_error_of_the_user_has_its_class_and_place() -> None:
    line = fail.__code__.co_firstlineno + 1
    assert describe(fail, "no\n  image") == f"ValueError: no image, at test_places.py:{line} (fail)"
    assert describe(fail, "") == f"ValueError, at test_places.py:{line} (fail)"


def test_the_place_is_in_the_file_of_the_user_even_if_a_library_raises() -> None:
    assert f"at test_places.py:{parse.__code__.co_firstlineno + 1} (parse)" in describe(parse, "{")
    assert describe(np.stack, []).endswith("(describe)")


def fail_again() -> None:
    try:
        fail("no image")
    except ValueError as error:
        raise error from error


def test_an_error_that_is_its_own_cause_is_described_once() -> None:
    assert describe(fail_again) == f"ValueError: no image, at test_places.py:{fail.__code__.co_firstlineno + 1} (fail)"


def test_an_error_of_this_package_is_its_message() -> None:
    try:
        try:
            fail("3.jpg")
        except ValueError as error:
            raise ValueError("record 3 cannot be read").with_traceback(None) from error
    except ValueError as error:
        wrapped = error.with_traceback(None)
    assert describe_error(wrapped).startswith("record 3 cannot be read, at test_places.py:")


def test_the_place_is_in_the_worker_process_that_failed() -> None:
    with ProcessPoolExecutor(1) as pool:
        text = describe(pool.submit(fail, "5.jpg").result)
    assert text == f"ValueError: 5.jpg, at test_places.py:{fail.__code__.co_firstlineno + 1} (fail)"


def test_the_traceback_in_a_message_of_torch_is_reduced_to_its_last_line() -> None:
    message = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.11/site-packages/torch/utils/data/_utils/worker.py", line 309, in _worker_loop\n'
        '  File "/home/me/data.py", line 7, in __getitem__\nKeyError: 3\n'
    )
    assert describe_error(KeyError(3)) == "KeyError: 3"
    assert describe_error(RuntimeError(message)) == "KeyError: 3, at data.py:7 (__getitem__)"


def test_the_stack_of_a_crash_begins_with_the_innermost_frame() -> None:
    stack = (
        'Fatal Python error: Aborted\n\n  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n'
        '  File "/home/me/data.py", line 7 in load\n  File "/home/me/data.py", line 3 in epoch\n'
        '  File "<frozen runpy>", line 3 in run\n'
    )
    assert place_in(stack, newest_first=True) == "data.py:7 (load)"
    for own in (record_count.__code__.co_filename, interrupts.__file__):
        assert place_in(f'  File "{own}", line 7 in load\n') == ""
