"""The result of tuning as JSON, for programs: `etl tune --json`, with the schema in tuning.schema.json."""

from __future__ import annotations

from typing import Any

from etl.comparison.tuning.tuning_results import Tuning

SCHEMA_VERSION = 1


def tuning_json(tuning: Tuning) -> dict[str, Any]:
    """Return JSON values: the fields of the result, and what is derived from them.

    Derived values are the name of the `fastest` strategy, None if none can be recommended; the `conclusion`; and for
    each strategy its `advice`, and `is_recommended`. `Tuning.from_json` does not take them.
    """
    values = tuning.to_json()
    fastest = tuning.fastest
    strategies = [
        {**strategy, "advice": each.advice(), "is_recommended": each.is_recommended}
        for strategy, each in zip(values.pop("strategies"), tuning.strategies, strict=True)
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        **values,
        "strategies": strategies,
        "fastest": None if fastest is None else fastest.name,
        "conclusion": tuning.conclusion(),
    }
