"""The label of a sample in a tar file: a whole number in its own member, or a value in a JSON member."""

from __future__ import annotations

import json
import os
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_NUMBER = re.compile(rb"\s*[+-]?[0-9]{1,18}\s*")  # int64 holds any of these
MAX_NUMBER_NBYTES = 40
MAX_JSON_NBYTES = 16 << 20
MAX_NAME_CHARACTERS = 1_000
MAX_KEYS_SHOWN, MAX_CHARACTERS_SHOWN = 10, 40
_KINDS: dict[type, str] = {list: "a list", dict: "an object"}


@dataclass(frozen=True)
class LabelMember:
    """The member that holds a sample's label.

    Attributes
    ----------
    extension : str
        Extension of the member, in lower case.
    key : str or None
        Key in the JSON object of the member; None if the member is a whole number.
    """

    extension: str
    key: str | None = None

    @classmethod
    def parse(cls, label: str) -> LabelMember:
        """Parse "cls" or "json:key"; raise `ValueError` for any other form."""
        extension, colon, key = label.partition(":")
        extension = extension.lower().removeprefix(".")
        if not extension or (colon and not key):
            raise ValueError(f"label is the extension of a member, such as 'cls', or 'json:key', not {label!r}")
        return cls(extension, key if colon else None)

    def read(self, shard: Path, file: BinaryIO, member: tarfile.TarInfo) -> int | str:
        """Return the label in `member`: a whole number, or a class name.

        Raises `ValueError` that names shard, member and key if there is no valid label.
        """
        if self.key is None:
            text = os.pread(file.fileno(), min(member.size, MAX_NUMBER_NBYTES), member.offset_data)
            if not _NUMBER.fullmatch(text) or member.size > MAX_NUMBER_NBYTES:
                raise ValueError(f"{shard}: {member.name} holds {text!r}, not a whole number of at most 18 digits")
            return int(text)
        if member.size > MAX_JSON_NBYTES:
            raise ValueError(
                f"{shard}: {member.name} has {member.size:,} bytes, and labels are read from at most "
                f"{MAX_JSON_NBYTES:,}"
            )
        try:
            value = _find(json.loads(os.pread(file.fileno(), member.size, member.offset_data)), self.key)
        except KeyError as error:
            raise ValueError(f"{shard}: {member.name} has no key {self.key!r}{error.args[0]}") from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{shard}: {member.name} is not JSON: {error}") from None
        if not _is_label(value):
            found = _KINDS.get(type(value)) or json.dumps(value)[:MAX_CHARACTERS_SHOWN]
            raise ValueError(
                f"{shard}: {member.name}: {self.key!r} is {found}, neither a whole number of at most 18 digits nor the "
                "name of a class"
            )
        return value  # type: ignore[no-any-return]


def _find(content: Any, key: str) -> Any:
    """Return the value of `key`; "a.b" is also the key "b" in the object under "a".

    The `KeyError` for a missing key says which keys there are.
    """
    if not isinstance(content, dict):
        raise KeyError(f"; it holds {_KINDS.get(type(content), 'a value')}, not an object")
    if key in content:
        return content[key]
    first, _, rest = key.partition(".")
    if rest and first in content:
        return _find(content[first], rest)
    shown = [repr(each)[:MAX_CHARACTERS_SHOWN] for each in [*content][:MAX_KEYS_SHOWN]]
    raise KeyError(f"; there are {', '.join(shown) or 'none'}")


def _is_label(value: Any) -> bool:
    if isinstance(value, str):
        is_text = not any("\ud800" <= each <= "\udfff" for each in value)  # JSON may hold lone surrogates
        return is_text and bool(value.strip()) and len(value) <= MAX_NAME_CHARACTERS
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**18
