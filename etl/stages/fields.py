"""Records with several inputs or labels: a tuple under one name, or an array under each of `name.0`, `name.1`, ...

Stages and models see tuples; stores and the arrays of a batch in the making have a field for each of their arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from etl.sources.record import Record

# The fields of a record that become a batch.
GROUPS = ("features", "label", "features_mask", "labels_mask")
MASKS = {"features": "features_mask", "label": "labels_mask"}


def flatten(record: Record) -> Record:
    """`record` with the fields `name.0`, `name.1`, ... in place of each tuple; None in a tuple of masks is left out.

    Raises `ValueError` for what is no record, and for a tuple that is empty or holds tuples.
    """
    if not isinstance(record, Mapping):
        raise ValueError(f"it is a {type(record).__name__}; a record is a mapping with 'features' and 'label'")
    for name in GROUPS:
        if isinstance(record.get(name), tuple):
            break
    else:
        return record
    fields: dict[str, Any] = {}
    for name, value in record.items():
        if name not in GROUPS or not isinstance(value, tuple):
            fields[name] = value
            continue
        if not value or any(isinstance(each, tuple) for each in value):
            raise ValueError(f"{name!r} is {'a tuple in a tuple' if value else 'an empty tuple'}; use one of arrays")
        is_mask = name in MASKS.values()
        fields |= {f"{name}.{place}": each for place, each in enumerate(value) if not (is_mask and each is None)}
    return fields


def put_together(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The record that `flatten` made `fields` of; a tuple of masks has as many places as that of what they mask."""
    record: dict[str, Any] = {}
    for name, value in fields.items():
        group = group_of(name)
        if group == name or group not in GROUPS:
            record[name] = value
        elif group not in record:
            places = count_places(masked_by(group), fields) or count_places(group, fields)
            record[group] = tuple(fields.get(f"{group}.{place}") for place in range(places))
    return record


def group_of(name: str) -> str:
    """`"features"` of `"features.0"`, and of `"features"`."""
    group, _, place = name.rpartition(".")
    return group if place.isdecimal() and group else name


def mask_of(name: str) -> str:
    """The name of the mask of a field: `"features_mask.0"` of `"features.0"`."""
    group = group_of(name)
    return MASKS[group] + name[len(group) :]


def masked_by(name: str) -> str:
    """The name of the field that a mask belongs to, the inverse of `mask_of`; that of any other field itself."""
    group = group_of(name)
    return next((field for field, mask in MASKS.items() if mask == group), group) + name[len(group) :]


def count_places(group: str, names: Collection[str]) -> int:
    """Of how many arrays the tuple `group` is made; 0 where it is one array, or not there."""
    return max((int(name[len(group) + 1 :]) + 1 for name in names if group_of(name) == group != name), default=0)


def batch_fields(names: Iterable[str]) -> list[str]:
    """Those of `names` that become a batch, in the order in which they stand there."""
    return sorted(filter(lambda name: group_of(name) in GROUPS, names), key=_place)


def check_as_many(found: Collection[str], wanted: Collection[str]) -> None:
    """Raise `ValueError` where a record of the fields `found` has more or fewer inputs or labels than those before."""
    for group in MASKS:
        here, before = count_places(group, found), count_places(group, wanted)
        if here != before:
            raise ValueError(
                f"its {group!r} is {_amount(here)}, that of the records before it {_amount(before)}; "
                "give all records as many"
            )


def _amount(places: int) -> str:
    return f"a tuple of {places}" if places else "no tuple"


def _place(name: str) -> tuple[int, int]:
    group = group_of(name)
    return GROUPS.index(group), 0 if group == name else int(name[len(group) + 1 :])
