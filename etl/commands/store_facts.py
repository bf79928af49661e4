"""What there is to say of a store."""

from __future__ import annotations

from typing import Any

import numpy as np

from etl.commands.output import show_facts
from presave import Store


def describe_store(store: Store) -> dict[str, Any]:
    """JSON values: path, format, records, fields, bytes, shards, stage, fingerprint, provenance."""
    manifest = store.manifest
    return {
        "store": str(store.path),
        "format": manifest.format,
        "records": len(store),
        "fields": {
            field.name: {"dtype": str(np.dtype(field.dtype)), "shape": list(field.shape)} for field in manifest.fields
        },
        "nbytes": store.nbytes,
        "shards": len(manifest.shards),
        "stage": manifest.stage,
        "fingerprint": manifest.fingerprint,
        "provenance": manifest.provenance,
    }


def show_store(store: Store, further: list[tuple[str, str]]) -> None:
    """Print the same as a table, with `further` rows at its end."""
    facts = describe_store(store)
    rows = [
        ("records", f"{facts['records']:,}"),
        *(
            (f"field {name}", f"{field['dtype']} {tuple(field['shape']) or 'scalar'}")
            for name, field in facts["fields"].items()
        ),
        ("format", f"{facts['format']}, {facts['shards']} shards"),
        ("bytes", f"{facts['nbytes']:,}"),
        ("stored after stage", str(facts["stage"])),
        ("pipeline fingerprint", str(facts["fingerprint"])),
        ("made from", str(facts["provenance"].get("source", "unknown"))),
    ]
    show_facts(facts["store"], [*rows, *further])
