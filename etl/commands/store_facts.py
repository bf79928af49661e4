"""What there is to say of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from etl.commands.output import show_facts
from presave import Field, Manifest

SHOWN_SKIPPED = 3


def describe_store(path: Path, manifest: Manifest) -> dict[str, Any]:
    """JSON values: path, format, options, records, skipped, fields, bytes, shards, stage, fingerprint, provenance."""
    return {
        "store": str(path),
        "format": manifest.format,
        "options": manifest.options,
        "records": manifest.records,
        "skipped": [{"record": each.record, "cause": each.cause} for each in manifest.skipped],
        "fields": {
            field.name: {"dtype": str(field.numpy_dtype), "shape": list(field.shape)} for field in manifest.fields
        },
        "nbytes": manifest.nbytes,
        "shards": len(manifest.shards),
        "stage": manifest.stage,
        "fingerprint": manifest.fingerprint,
        "provenance": manifest.provenance,
    }


def show_store(path: Path, manifest: Manifest, further: list[tuple[str, str]]) -> None:
    """Print the same as a table, with `further` rows at its end."""
    options = "".join(f", {name} {value}" for name, value in manifest.options.items())
    rows = [
        ("records", f"{manifest.records:,}"),
        *((f"field {field.name}", _kind(field)) for field in manifest.fields),
        ("format", f"{manifest.format}{options}, {len(manifest.shards)} shards"),
        ("bytes", f"{manifest.nbytes:,}"),
        ("stored after stage", str(manifest.stage)),
        ("pipeline fingerprint", str(manifest.fingerprint)),
        ("made from", str(manifest.provenance.get("source", "unknown"))),
        *_skipped(manifest),
    ]
    show_facts(str(path), [*rows, *further])


def _kind(field: Field) -> str:
    if field.is_ragged:
        return f"{field.numpy_dtype} ragged ({', '.join('*' * len(field.shape))})"
    return f"{field.numpy_dtype} {field.shape or 'scalar'}"


def _skipped(manifest: Manifest) -> list[tuple[str, str]]:
    if not manifest.skipped:
        return []
    causes = [each.cause for each in manifest.skipped[:SHOWN_SKIPPED]]
    more = ["..."] * (len(manifest.skipped) > SHOWN_SKIPPED)
    return [(f"skipped ({len(manifest.skipped):,})", "\n".join([*causes, *more]))]
