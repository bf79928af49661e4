"""Results of tuning: the Pareto front, advice, settings as text, and JSON that is valid by its schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etl.comparison.tuning.tuning_results import (
    SCHEMA_VERSION,
    Costs,
    Limits,
    TriedConfiguration,
    TunedStrategy,
    Tuning,
    tuning_json,
    with_front,
)
from etl.measuring.statistics import Interval
from etl.units import describe_settings
from tests import tuning_results
from tests.report_schema import TUNING_SCHEMA, make_tuning_schema
from tests.tuning_results import ABOVE, TUNINGS, configuration, strategy

AFTER = "one was tuned after the other; etl compare measures them in turns"
# Few values, so that configurations are often equal in one cost.
FEW = st.integers(1, 4)
CONFIGURATIONS = st.lists(
    st.builds(
        TriedConfiguration,
        settings=st.just({}),
        costs=st.builds(Costs, FEW.map(float), FEW.map(float), FEW, FEW),
        trials=st.just(1),
        dropped=st.sampled_from(["", "", ABOVE]),
    ),
    max_size=9,
)


@given(CONFIGURATIONS)
def test_the_front_is_what_nothing_allowed_dominates(tried: list[TriedConfiguration]) -> None:
    marked = with_front(tried)
    assert sorted(each.costs.seconds for each in tried) == [each.costs.seconds for each in marked]
    allowed = [each for each in marked if not each.dropped]
    for each in marked:
        dominating = [other for other in allowed if other.costs.dominates(each.costs)]
        assert each.is_on_front == (not each.dropped and not dominating)
        # What is not on the front is dominated by one that is: nobody needs the others.
        assert each.dropped or each.is_on_front or any(other.is_on_front for other in dominating)
    assert any(each.is_on_front for each in marked) == bool(allowed)
    assert with_front(marked) == marked


@given(CONFIGURATIONS)
def test_no_two_configurations_dominate_each_other_and_none_itself(tried: list[TriedConfiguration]) -> None:
    costs = [each.costs for each in tried]
    assert not any(one.dominates(other) and other.dominates(one) for one in costs for other in costs)


def test_configurations_of_equal_costs_are_all_on_the_front() -> None:
    marked = with_front([configuration({"a": 1}, 2.0), configuration({}, 2.0), configuration({"a": 2}, 2.5)])
    assert [each.is_on_front for each in marked] == [True, True, False]


@pytest.mark.parametrize(
    ("given_settings", "text"),
    [
        ({}, ""),
        ({"num_workers": 2}, "num_workers=2"),
        ({"num_workers": 2, "persistent_workers": True}, "num_workers=2 and persistent_workers"),
        (
            {"num_workers": 0, "pin_memory": False, "prefetch_factor": None},
            "num_workers=0, pin_memory=False and prefetch_factor=None",
        ),
        ({"stage": "resize", "format": "npy"}, "stage=resize and format=npy"),
        ({"share": 0.5, "file": "a/b.c:d"}, "share=0.5 and file=a/b.c:d"),
        ({"name": "x and y=2", "other": ""}, "name='x and y=2' and other=''"),
        ({"sizes": [1, 2]}, "sizes=[1, 2]"),
    ],
)
def test_settings_read_as_they_are_set(given_settings: dict[str, Any], text: str) -> None:
    assert describe_settings(given_settings) == text


def tuned(ratio: Interval | None, **more: Any) -> TunedStrategy:
    """Return a strategy whose chosen configuration takes 0.71 of the time."""
    settings = {"num_workers": 2, "persistent_workers": True}
    best = replace(configuration(settings, 3.55), ratio=ratio)
    return strategy("mine", [best, configuration({}, 5.0, **more)], {"num_workers": 0}, settings)


def test_advice_says_what_to_set_and_what_it_gains() -> None:
    assert tuned(Interval(0.71, 0.68, 0.74, 9)).advice() == (
        "mine: set num_workers=2 and persistent_workers: 0.71 of the time (95% interval 0.68 to 0.74)."
    )
    assert tuned(Interval(0.71, None, None, 3)).advice() == (
        "mine: set num_workers=2 and persistent_workers: 0.71 of the time."
    )
    assert tuned(None).advice() == (
        "mine: set num_workers=2 and persistent_workers: 0.71 of the time, without rounds to confirm it."
    )
    assert tuned(Interval(1.2, 1.1, 1.3, 9), dropped=ABOVE).advice() == (
        "mine: set num_workers=2 and persistent_workers: 1.20 of the time (95% interval 1.10 to 1.30); as given, "
        "it takes 1,204 MB on disk, above --max-disk."
    )


def test_advice_without_a_better_configuration_is_to_leave_the_settings() -> None:
    tried = [configuration({"threads": number}, 2.0 + number) for number in (1, 2, 3)]
    alone, two, four = ([configuration({}, 2.0), *tried[:count]] for count in (0, 1, 3))
    leave = "mine: leave the settings as they are;"
    assert strategy("mine", alone, {}).advice() == f"{leave} no other configuration was measured."
    assert (
        strategy("mine", two, {}).advice() == f"{leave} the only other configuration has not been shown to be faster."
    )
    assert strategy("mine", four, {}).advice() == f"{leave} none of the 3 others has been shown to be faster."
    dropped = strategy("mine", [configuration({}, 2.0, dropped=ABOVE)], {})
    assert dropped.advice() == (
        "mine: no configuration can be recommended: as given, it takes 1,204 MB on disk, above --max-disk."
    )
    assert not dropped.is_recommended


def result(*strategies: TunedStrategy) -> Tuning:
    return replace(tuning_results.photographs(), strategies=list(strategies))


def simple(name: str, wall: float, dropped: str = "") -> TunedStrategy:
    return strategy(name, [configuration({}, wall, dropped=dropped)], {})


def test_the_conclusion_names_the_fastest_and_by_how_much_others_are_slower() -> None:
    fast = strategy("fast", [configuration({"threads": 2}, 2.0), configuration({}, 9.0)], {}, {"threads": 2})
    found = "Fastest: fast with threads=2, 2.00 s for an epoch"
    assert result(fast).conclusion() == f"{found}."
    assert result(simple("slow", 3.0), fast).conclusion() == f"{found}; slow takes 1.50 times as long ({AFTER})."
    assert result(simple("slow", 3.0), fast, simple("mid", 2.5)).conclusion() == (
        f"{found}; mid takes 1.25 times as long, and slow, the slowest, 1.50 times ({AFTER})."
    )
    assert result(simple("same", 2.02), fast).conclusion() == f"{found}; all strategies are within 2% of each other."


def test_what_exceeds_a_limit_is_not_the_fastest() -> None:
    both = result(simple("large", 1.0, ABOVE), simple("small", 2.0))
    assert both.fastest is both.strategies[1]
    assert both.conclusion() == ("Fastest: small as given, 2.00 s for an epoch; no other strategy can be recommended.")
    for none in (tuning_results.all_dropped(), tuning_results.all_failed()):
        assert none.fastest is None
        assert none.conclusion() == "No strategy can be recommended."


def test_limits_say_which_costs_exceed_them() -> None:
    costs = Costs(1.0, 30.0, 2_000_000_000, 3_000_000_000)
    assert Limits().exceeded_by(costs) == ""
    assert Limits().as_dict() == {}
    assert Limits(memory_nbytes=10**9).exceeded_by(costs) == "it takes 3,000 MB of memory, above --max-memory"
    assert Limits(disk_nbytes=10**9).exceeded_by(costs) == "it takes 2,000 MB on disk, above --max-disk"
    assert Limits(prepare_seconds=9).exceeded_by(costs) == "its preparation takes 30 s, above --max-prepare"
    assert Limits(3_000_000_000, 2_000_000_000, 30.0).exceeded_by(costs) == ""


def test_the_schema_is_that_of_the_classes() -> None:
    assert json.loads(TUNING_SCHEMA.read_text()) == make_tuning_schema(), "run python -m tests.report_schema"


@pytest.mark.parametrize("make", TUNINGS.values(), ids=list(TUNINGS))
def test_every_result_as_json_is_valid_by_the_schema_and_comes_back(make: Callable[[], Tuning]) -> None:
    tuning = make()
    values = json.loads(json.dumps(tuning_json(tuning)))
    jsonschema.Draft202012Validator(make_tuning_schema()).validate(values)
    assert values["schema_version"] == SCHEMA_VERSION
    assert values["conclusion"] == tuning.conclusion()
    assert [each["advice"] for each in values["strategies"]] == [each.advice() for each in tuning.strategies]
    assert Tuning.from_json(json.loads(json.dumps(tuning.to_json()))) == tuning


def test_no_settings_are_recommended_if_a_cpu_quota_stopped_the_processes() -> None:
    tried = [configuration({}, 2.0), configuration({"threads": 1}, 1.0, 0.5)]
    stopped = strategy("async-raw", tried, {}, throttled=0.97)
    assert not stopped.is_recommended
    assert "a CPU quota was used up in 97% of its periods" in stopped.advice()
    assert strategy("async-raw", tried, {}, throttled=0.05).is_recommended
