"""The JSON Schema of `etl compare --json`: `python tests/report_schema.py` writes it after the classes were changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

import etl.comparison
from etl.comparison.report import SCHEMA_VERSION, Report

SCHEMA = Path(etl.comparison.__file__).with_name("report.schema.json")


def make_schema() -> dict[str, Any]:
    """What the classes of etl/comparison/report.py and their docstrings say."""
    schema: dict[str, Any] = TypeAdapter(Report).json_schema(mode="serialization")
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return schema


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(make_schema(), indent=1) + "\n", encoding="utf-8")
