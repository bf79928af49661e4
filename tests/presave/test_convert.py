"""Converting a store changes only its format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave


class Described(list):
    """Records with a stage, a fingerprint and a provenance."""

    stage = "resize"
    fingerprint = "0123456789abcdef"
    provenance: dict[str, Any] = {"source": "photos/", "classes": ["cat", "dog"]}  # noqa: RUF012


RECORDS = Described(
    {"a/b": np.arange(7, dtype=np.float16) * i, "label": i, "mask": np.arange(4) < i, "z": np.complex64(complex(i, -i))}
    for i in range(30)
)


def _bytes(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("through", presave.formats())
@pytest.mark.parametrize("name", presave.formats())
def test_converting_there_and_back_gives_the_original_bytes(name: str, through: str, tmp_path: Path) -> None:
    presave.write(tmp_path / "direct", RECORDS, format=name).close()
    with presave.convert(tmp_path / "direct", tmp_path / "there", format=through, jobs=2, trusted=True) as there:
        assert there.manifest.format == through
        assert there.manifest.stage == RECORDS.stage
        assert there.manifest.fingerprint == RECORDS.fingerprint
        assert there.manifest.provenance == RECORDS.provenance
        for number, record in enumerate(there):
            for field, value in RECORDS[number].items():
                np.testing.assert_array_equal(record[field], value, strict=field != "label")
    presave.convert(tmp_path / "there", tmp_path / "back", format=name, trusted=True).close()
    assert _bytes(tmp_path / "back") == _bytes(tmp_path / "direct")


def test_a_damaged_source_leaves_no_target(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS).close()
    damaged = tmp_path / "s" / "label-00000.npy"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.raises(presave.StoreError, match=r"label-00000\.npy: is not int64 of shape"):
        presave.convert(tmp_path / "s", tmp_path / "t", format="hdf5")
    assert [each.name for each in tmp_path.iterdir()] == ["s"]


def test_converting_a_store_onto_itself_is_refused_and_does_no_damage(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS).close()
    with pytest.raises(presave.StoreError, match="s exists already"):
        presave.convert(tmp_path / "s", tmp_path / "s", format="hdf5")
    assert presave.verify(tmp_path / "s") == []
