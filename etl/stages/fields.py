"""The two forms of a record with several inputs or labels.

Stages and models see a tuple of arrays. Stores and the arrays of a batch have flat fields instead, one for each array
of the tuple: `name.0`, `name.1`, ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from presave import Record
from presave.schema import group_of

# The fields of a record that become a batch.
GROUPS = ("features", "label", "features_mask", "labels_mask")
MASKS = {"features": "features_mask", "label": "labels_mask"}


def flatten(record: Record) -> Record:
    """Return `record` with fields `name.0`, `name.1`, ... in place of each tuple.

    None in a tuple of masks is left out. Raises `ValueError` if `record` is not a mapping, or has a tuple that is empty
    or holds tuples.
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
            raise ValueError(
                f"{name!r} is {'a tuple in a tuple' if value else 'an empty tuple'}; use a tuple of arrays"
            )
        is_mask = name in MASKS.values()
        fields |= {f"{name}.{place}": each for place, each in enumerate(value) if not (is_mask and each is None)}
    return fields


def unflatten(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with tuples whose flat fields are `fields`; the inverse of `flatten`.

    A tuple of masks is as long as the tuple that it masks, with None for a mask that is missing.
    """
    record: dict[str, Any] = {}
    for name, value in fields.items():
        group = group_of(name)
        if group == name or group not in GROUPS:
            record[name] = value
        elif group not in record:
            places = count_places(masked_by(group), fields) or count_places(group, fields)
            record[group] = tuple(fields.get(f"{group}.{place}") for place in range(places))
    return record


def mask_of(name: str) -> str:
    """Return the name of a field's mask: "features_mask.0" for "features.0"."""
    group = group_of(name)
    return MASKS[group] + name[len(group) :]


def masked_by(name: str) -> str:
    """Return the field that the mask `name` belongs to, the inverse of `mask_of`; any other `name` unchanged."""
    group = group_of(name)
    return next((field for field, mask in MASKS.items() if mask == group), group) + name[len(group) :]


def count_places(group: str, names: Collection[str]) -> int:
    """Return how many arrays the tuple `group` has; 0 if it is a single array or missing."""
    return max((int(name[len(group) + 1 :]) + 1 for name in names if group_of(name) == group != name), default=0)


def batch_fields(names: Iterable[str]) -> list[str]:
    """Return those of `names` that become part of a batch, in the order of the batch."""
    return sorted(filter(lambda name: group_of(name) in GROUPS, names), key=_place)


def check_same_places(found: Collection[str], expected: Collection[str]) -> None:
    """Raise `ValueError` if a record with the fields `found` has more or fewer inputs or labels than `expected`."""
    for group in MASKS:
        here, before = count_places(group, found), count_places(group, expected)
        if here != before:
            raise ValueError(
                f"its {group!r} is {_amount(here)}, but {_amount(before)} in the records before it; "
                "give every record the same number of arrays"
            )


def _amount(places: int) -> str:
    return f"a tuple of {places}" if places else "no tuple"


def _place(name: str) -> tuple[int, int]:
    group = group_of(name)
    return GROUPS.index(group), 0 if group == name else int(name[len(group) + 1 :])
