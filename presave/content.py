"""The identity of records: of those in a store, and of what a write reads.

The content of a store identifies its records in their order. It does not depend on format, shards or jobs, so a store
has the content of the one that it was converted from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np
import xxhash

from presave.errors import StoreError

# The content of records is a polynomial over their digests, modulo a prime: that of two runs of records follows from
# those of each, wherever the records are divided into shards.
PRIME = 2**127 - 1
BASE = 0x9E3779B97F4A7C15F39CC0605CEDC835 % PRIME
# Changes that a message names, and characters of each value: one may be a list of a thousand classes.
MAX_SHOWN, MAX_SHOWN_CHARACTERS = 3, 300


def digest_record(arrays: Mapping[str, np.ndarray]) -> int:
    """Return the digest of a record, as `validate_record` returns it."""
    digest = xxhash.xxh3_128()
    for array in arrays.values():
        if array.ndim:  # a shape that may differ between records
            digest.update(str(array.shape).encode())
        if array.size:
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.intdigest()


def add_record(content: int, digest: int) -> int:
    """Return the content of some records and one more."""
    return (content * BASE + digest) % PRIME


def content_of(digests: Iterable[int]) -> str:
    """Return the content of records with these digests."""
    return format_content(reduce(add_record, digests, 0))


def join_contents(contents: Iterable[tuple[int, str | None]]) -> str | None:
    """Return the content of consecutive runs of records, each with its number of records; None if one has none."""
    joined = 0
    for records, content in contents:
        if content is None:
            return None
        joined = (joined * pow(BASE, records, PRIME) + int(content, 16)) % PRIME
    return format_content(joined)


def format_content(content: int) -> str:
    """Return a content as 32 hexadecimal digits."""
    return f"{content:032x}"


def identity_of(records: Any) -> dict[str, Any]:
    """Return what identifies the origin of `records` now, by name, as JSON values; empty if they do not say."""
    identity = getattr(records, "identity", None)
    return {} if identity is None else json_values(identity, "identity")


def json_values(values: Any, name: str) -> dict[str, Any]:
    """Return a mapping as it will be read back from JSON: tuples become lists, and keys become strings.

    Raises `StoreError`, which calls the values by `name`, if JSON cannot represent them.
    """
    try:
        read_back: dict[str, Any] = json.loads(json.dumps({**values}))
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(
            f"the {name} of the records cannot be kept: {error}; use a mapping of names to JSON values"
        ) from error
    return read_back


def origins_of(records: Any, span: range) -> list[str]:
    """Return what each record of `span` is read from now, if `records` say so; otherwise an empty list."""
    origin = getattr(records, "origin", None)
    return [origin(index) for index in span] if callable(origin) else []  # of a medical image, it is a point


def digest_json(value: Any) -> str:
    """Return the digest of JSON values, such as what records are read from."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value).encode())


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the differences of two identities in words."""
    changes = [
        f"{name} is gone"
        if name not in now
        else f"{name} is new"
        if name not in before
        else f"{name} was {_shown(before[name])} and is {_shown(now[name])}"
        for name in {**before, **now}
        if name not in now or name not in before or before[name] != now[name]
    ]
    more = f"; and {len(changes) - MAX_SHOWN:,} more" if len(changes) > MAX_SHOWN else ""
    return f"{'; '.join(changes[:MAX_SHOWN]) or 'their order'}{more}"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."
