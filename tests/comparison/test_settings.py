"""What a comparison is asked for: every wrong setting is named, and says what there is."""

from __future__ import annotations

import json
from typing import Any

import pytest

import presave
from etl.comparison.settings import Settings, parse_seconds
from etl.strategies import default_names, names

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"strategies": ("raw", "turbo")}, "--strategies: no strategy is called 'turbo'; there are raw, async-raw"),
    ({"strategies": ("raw", "again=turbo")}, "--strategies: no strategy is called 'turbo'; there are raw, async-raw"),
    ({"strategies": ("raw", "=raw")}, "--strategies: '=raw' has no name before the =, such as again=raw"),
    ({"strategies": ("raw", "raw=presaved")}, "--strategies: raw, raw=presaved names one of them twice"),
    ({"strategies": ()}, "--strategies needs at least one of raw"),
    ({"strategies": ("raw", "raw")}, "--strategies: raw, raw names one of them twice"),
    ({"formats": ("zip",)}, "--formats: unknown 'zip'; known: npy"),
    ({"decoder": "gpu"}, "--decoder: unknown 'gpu'; known: pillow"),
    ({"cache": "hot"}, "--cache: unknown 'hot'; known: warm, cold"),
    ({"backend": "tpu"}, "--backend: unknown 'tpu'; known: auto, cpu, cuda"),
    ({"dtype": "int3"}, "int3"),
    ({"batch_size": 0}, "--batch-size must be a whole number of at least 1, not 0"),
    ({"threads": 0}, "--threads must be a whole number of at least 1, not 0"),
    ({"rounds": 0}, "--rounds must be"),
    ({"records": -1}, "--records must be"),
    ({"size": 1.5}, "--size must be"),
    ({"prefetch_size": -1}, "--prefetch-size must be a whole number of at least 0"),
    ({"memory_nbytes": 0}, "--memory must be a whole number of at least 1, not 0"),
    ({"memory_nbytes": -5}, "--memory must be"),
    ({"budget_seconds": 0.0}, "--budget must be a time above 0"),
    ({"budget_seconds": float("inf")}, "--budget must be"),
    ({"budget_seconds": float("nan")}, "--budget must be"),
    ({"compute": "gpu"}, "--compute must be training, simulated:20ms or simulated:20ms,sync, not 'gpu'"),
    ({"compute": "simulated"}, "--compute must be training, simulated:20ms or simulated:20ms,sync, not 'simulated'"),
    ({"compute": "simulated:soon"}, "--compute simulated must be a time such as 60s, 20ms or 2min, not 'soon'"),
    ({"compute": "simulated:-5ms"}, "--compute simulated must be a time"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=lambda each: str(each))
def test_a_wrong_setting_is_named_with_what_there_is(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as raised:
        Settings("photographs", **settings)
    assert message in str(raised.value)


def test_every_strategy_and_format_there_is_may_be_asked_for() -> None:
    Settings("photographs", strategies=names(), formats=tuple(presave.formats()))
    assert Settings("photographs").strategies == default_names()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("20ms", 0.02), ("1.5min", 90), ("2m", 120), ("60", 60), (" 250us ", 250e-6), ("0.5s", 0.5)],
)
def test_a_time_is_a_number_with_a_unit_and_without_one_of_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text, "--budget") == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1e3s", "1 h", "20 milliseconds", "1.s", "inf"])
def test_what_is_no_time_is_refused_with_the_option_it_was_given_to(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--budget must be a time such as 60s"):
        parse_seconds(text, "--budget")


def test_simulated_compute_is_told_in_seconds_and_training_has_none() -> None:
    assert Settings("photographs", compute="simulated:20ms").simulated_seconds == pytest.approx(0.02)
    assert Settings("photographs").simulated_seconds is None


def test_settings_come_back_from_json_as_they_were() -> None:
    settings = Settings(
        "table.csv",
        strategies=("raw", "presaved"),
        formats=("npy", "hdf5"),
        batch_size=7,
        table_options={"label": "kind", "features": ["a", "b"]},
        unchecked=("noise",),
        memory_nbytes=10**9,
    )
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
