"""`etl inspect STORE`: show what a store holds, and which pipeline made it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import presave
from etl.commands.output import deliver, output_path, save_json, show_facts
from presave import Field, Manifest

SHOWN_SKIPPED = 3
# Without --json, the result is what is shown.
ONLY_SHOWS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, metavar="STORE", help="a store of any format; only its manifest is read")
    parser.add_argument("--json", type=output_path, metavar="FILE", help="write the same to FILE, as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Read the manifest and describe the store."""
    manifest = presave.load_manifest(arguments.store)
    deliver(
        lambda: save_json(arguments.json, describe_store(arguments.store, manifest)),
        show=lambda _: show_store(arguments.store, manifest, []),
    )
    return 0


def describe_store(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Return JSON values: path, format, options, records, fields, size, and the pipeline that made the store."""
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


def show_store(path: Path, manifest: Manifest, more_rows: list[tuple[str, str]]) -> None:
    """Print a table that describes the store."""
    options = "".join(f", {name} {value}" for name, value in manifest.options.items())
    rows = [
        ("records", f"{manifest.records:,}"),
        *((f"field {field.name}", _describe_field(field)) for field in manifest.fields),
        ("format", f"{manifest.format}{options}, {len(manifest.shards)} shards"),
        ("bytes", f"{manifest.nbytes:,}"),
        ("stored after stage", str(manifest.stage)),
        ("pipeline fingerprint", str(manifest.fingerprint)),
        ("made from", str(manifest.provenance.get("source", "unknown"))),
        *_skipped_row(manifest),
    ]
    show_facts(str(path), [*rows, *more_rows])


def _describe_field(field: Field) -> str:
    if field.is_ragged:
        return f"{field.numpy_dtype} ragged ({', '.join('*' * len(field.shape))})"
    return f"{field.numpy_dtype} {field.shape or 'scalar'}"


def _skipped_row(manifest: Manifest) -> list[tuple[str, str]]:
    if not manifest.skipped:
        return []
    causes = [each.cause for each in manifest.skipped[:SHOWN_SKIPPED]]
    more = ["..."] * (len(manifest.skipped) > SHOWN_SKIPPED)
    return [(f"skipped ({len(manifest.skipped):,})", "\n".join([*causes, *more]))]
