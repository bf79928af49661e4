"""The JSON Schema of `etl compare --json`: run `python -m tests.report_schema` when its classes have changed."""

from __future__ import annotations

import json
from inspect import getdoc
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter

import etl.comparison
from etl.comparison.report import SCHEMA_VERSION, Report, Section

SCHEMA = Path(etl.comparison.__file__).with_name("report.schema.json")


def make_schema() -> dict[str, Any]:
    """Make the schema from the fields, properties and docstrings of the classes in etl/comparison/report.py."""
    schema: dict[str, Any] = TypeAdapter(Report).json_schema(mode="serialization")
    for section in Section.__subclasses__():
        definition = schema if section is Report else schema["$defs"][section.__name__]
        for name in section.published():
            if name not in definition["properties"]:
                derived = getattr(section, name).fget
                adapter: TypeAdapter[Any] = TypeAdapter(get_type_hints(derived)["return"])
                title = {"title": name.replace("_", " ").title(), "description": getdoc(derived)}
                definition["properties"][name] = {**title, **adapter.json_schema()}
                definition["required"].append(name)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return schema


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(make_schema(), indent=1) + "\n", encoding="utf-8")
