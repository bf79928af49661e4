"""The JSON Schemas of `etl compare --json` and `etl tune --json`.

Run `python -m tests.report_schema` when their classes have changed.
"""

from __future__ import annotations

import json
from inspect import getdoc
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from etl.comparison.judge import report
from etl.comparison.judge.report import SCHEMA_VERSION, ReportData
from etl.comparison.judge.section import Section
from etl.comparison.tuning import tuning_results
from etl.comparison.tuning.tuning_results import TunedStrategy, Tuning

SCHEMA = Path(report.__file__).with_name("report.schema.json")
TUNING_SCHEMA = Path(tuning_results.__file__).with_name("tuning.schema.json")


def make_schema() -> dict[str, Any]:
    """Make the schema from the fields, properties and docstrings of the classes of a report."""
    schema: dict[str, Any] = TypeAdapter(ReportData).json_schema(mode="serialization")
    for section in Section.__subclasses__():
        definition = schema if section is ReportData else schema["$defs"][section.__name__]
        for name in section.published():
            if name not in definition["properties"]:
                derived = getattr(section, name).fget
                adapter: TypeAdapter[Any] = TypeAdapter(get_type_hints(derived)["return"])
                title = {"title": name.replace("_", " ").title(), "description": getdoc(derived)}
                definition["properties"][name] = {**title, **adapter.json_schema()}
                definition["required"].append(name)
    schema["title"] = "Report"
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return schema


def make_tuning_schema() -> dict[str, Any]:
    """Make the schema from the fields of the classes in tuning_results.py, and what is derived."""
    schema: dict[str, Any] = TypeAdapter(Tuning).json_schema(mode="serialization")
    strategy = schema["$defs"]["TunedStrategy"]
    schema["properties"]["conclusion"] = {"type": "string", "description": getdoc(Tuning.conclusion)}
    strategy["properties"]["advice"] = {"type": "string", "description": getdoc(TunedStrategy.advice)}
    is_recommended = getdoc(TunedStrategy.is_recommended)
    strategy["properties"]["is_recommended"] = {"type": "boolean", "description": is_recommended}
    name = "The name of the fastest strategy; null if none can be recommended."
    schema["properties"]["fastest"] = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": name}
    schema["properties"]["schema_version"] = {"type": "integer", "const": tuning_results.SCHEMA_VERSION}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    # All fields are written, those with defaults, too, and no others.
    for definition in (schema, *schema["$defs"].values()):
        definition["required"] = list(definition["properties"])
        definition["additionalProperties"] = False
    return schema


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(make_schema(), indent=1) + "\n", encoding="utf-8")
    TUNING_SCHEMA.write_text(json.dumps(make_tuning_schema(), indent=1) + "\n", encoding="utf-8")
