"""The manifest keeps what was written, and is refused if it was changed or is inconsistent."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import presave
from presave.manifest import Shard, Skipped, StoredFile
from presave.manifest_file import load_manifest, save_manifest
from tests.presave.records import Numbered

DESCRIBED: dict[str, Any] = {
    "stage": "resize",
    "fingerprint": "0123456789abcdef",
    "provenance": {"source": "photos/ä", "classes": ["cat", "dog"], "mean": [0.1, 1e-300]},
}


@pytest.fixture
def manifest_file(tmp_path: Path) -> Path:
    presave.write(tmp_path / "s", Numbered(2, **DESCRIBED)).close()
    return tmp_path / "s" / "manifest.json"


def test_stage_fingerprint_and_provenance_are_kept(manifest_file: Path) -> None:
    with presave.open_store(manifest_file.parent) as store:
        assert {name: getattr(store.manifest, name) for name in DESCRIBED} == DESCRIBED
        assert store.manifest.fields == (presave.Field("x", "<i8", (4,)), presave.Field("y", "<i8", ()))
        assert store.manifest.records == 2
        assert store.nbytes == sum(f.stat().st_size for f in manifest_file.parent.iterdir() if f != manifest_file)


def test_plain_records_have_no_stage_and_no_provenance(tmp_path: Path) -> None:
    with presave.write(tmp_path / "s", [{"x": 1}]) as store:
        assert (store.manifest.stage, store.manifest.fingerprint, store.manifest.provenance) == (None, None, {})


def test_provenance_is_read_back_as_json_holds_it(tmp_path: Path) -> None:
    records = Numbered(1, provenance={"classes": {2: "cat", 10: "dog"}, "size": (3, 4)})
    with presave.write(tmp_path / "s", records) as store:
        assert store.manifest.provenance == {"classes": {"2": "cat", "10": "dog"}, "size": [3, 4]}


def test_saving_a_loaded_manifest_gives_the_same_file(manifest_file: Path, tmp_path: Path) -> None:
    save_manifest(load_manifest(manifest_file.parent), tmp_path)
    assert (tmp_path / "manifest.json").read_bytes() == manifest_file.read_bytes()


def _edit(content: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> str:
    change(content)
    return json.dumps(content, indent=1)  # as presave writes it


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another stage": lambda content: content.update(stage="decode"),
    "another dtype": lambda content: content["fields"][0].update(dtype="<u8"),
    "more records": lambda content: content["shards"][0].update(records=3),
    "a checksum of zeros": lambda content: content.update(checksum="0" * 32),
    "no checksum": lambda content: content.pop("checksum"),
    "a new key": lambda content: content.update(note="mine"),
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_an_edited_manifest_is_refused(change: Callable[[dict[str, Any]], None], manifest_file: Path) -> None:
    manifest_file.write_text(_edit(json.loads(manifest_file.read_text()), change))
    for read in (presave.open_store, presave.verify):
        with pytest.raises(presave.StoreError, match=r"manifest\.json: the manifest was changed after it was written"):
            read(manifest_file.parent)


@pytest.mark.parametrize("layout", [0, 1, 3, "2", None])
def test_another_layout_version_raises_an_error_that_names_the_supported_one(layout: Any, manifest_file: Path) -> None:
    manifest_file.write_text(
        _edit(json.loads(manifest_file.read_text()), lambda content: content.update(layout=layout))
    )
    with pytest.raises(presave.StoreError, match=rf"store layout {layout!r}; this version of presave reads 2"):
        presave.open_store(manifest_file.parent)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"{}\0"])
def test_a_file_that_is_not_a_manifest_raises_an_error_that_names_it(text: bytes, manifest_file: Path) -> None:
    manifest_file.write_bytes(text)
    with pytest.raises(presave.StoreError) as raised:
        presave.open_store(manifest_file.parent)
    assert str(raised.value).startswith(f"{manifest_file}: not a presave manifest (")


FILE = StoredFile("x.npy", 1, "0" * 32)
FIELD = presave.Field("x", "<f8", ())


@pytest.mark.parametrize(
    ("fields", "shards", "message"),
    [
        *(
            ((FIELD,), (Shard(1, (StoredFile(name, 1, ""),)),), f"file name {name!r} leaves the store's folder")
            for name in ("../x.npy", "/etc/passwd", "sub/x.npy", "..", ".", "")
        ),
        ((FIELD,), (Shard(0, (FILE,)),), "a shard of 0 records"),
        ((FIELD,), (Shard(-1, (FILE,)),), "-1 is not a whole number"),
        ((presave.Field("x", "|O", ()),), (Shard(1, (FILE,)),), "field 'x' has dtype |O"),
        ((presave.Field("x", "<f8", (-1,)),), (Shard(1, (FILE,)),), "-1 is not a whole number"),
        ((presave.Field("x", "<f8", (None,)),), (Shard(1, (FILE,)),), "of exactly the ragged fields: x"),
        ((FIELD,), (Shard(1, (FILE,), {"x": 1}),), "of exactly the ragged fields: none"),
        ((presave.Field("x", "<f8", (None,)),), (Shard(1, (FILE,), {"x": -1}),), "-1 is not a whole number"),
        (
            (presave.Field("x", "<f8", (None, 2)),),
            (Shard(1, (FILE,)),),
            r"field 'x' has dtype <f8 and shape \(None, 2\)",
        ),
        ((presave.Field("x", "nonsense", ()),), (Shard(1, (FILE,)),), "nonsense"),
        ((FIELD,), (Shard(1, (StoredFile("x\0", 8, ""),)),), "is not text"),
        ((FIELD,), (Shard(1, (StoredFile("x\ud800", 8, ""),)),), "is not text"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    fields: tuple[presave.Field, ...], shards: tuple[Shard, ...], message: str, tmp_path: Path
) -> None:
    save_manifest(presave.Manifest("npy", fields, shards), tmp_path)
    for read in (presave.open_store, presave.verify):
        with pytest.raises(presave.StoreError, match=message):
            read(tmp_path)


def test_compressed_records_larger_than_any_array_are_refused(tmp_path: Path) -> None:
    # A file's size says little about the size of its rows if HDF5 compresses them.
    field, file = presave.Field("x", "<i2", (2**60,)), StoredFile("x.h5", 2000, "")
    save_manifest(presave.Manifest("hdf5", (field,), (Shard(2, (file,)),) * 2), tmp_path)
    with pytest.raises(presave.StoreError, match="claims records of 2,305,843,009,213,693,952 bytes each"):
        presave.open_store(tmp_path)


def test_an_unknown_format_in_a_manifest_raises_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    save_manifest(presave.Manifest("zip", (FIELD,), (Shard(1, (StoredFile("x.zip", 9, "0"),)),)), tmp_path)
    with pytest.raises(presave.StoreError, match=f"^{tmp_path}: unknown format 'zip'; known: npy, hdf5"):
        presave.open_store(tmp_path)


def test_errors_tell_a_missing_path_from_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(presave.StoreError, match="nowhere does not exist; write it with"):
        presave.open_store(tmp_path / "nowhere")
    with pytest.raises(presave.StoreError, match=r"is not a store: it has no manifest\.json"):
        presave.open_store(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(presave.StoreError, match="file is a file; a store is a folder"):
        presave.open_store(tmp_path / "file")


SKIPPED = [Skipped(record, "ValueError: damaged") for record in range(1_000)]


@pytest.mark.parametrize(
    ("described", "shards", "advice"),
    [
        ({"skipped": tuple(SKIPPED)}, 1, "1,000 skipped records take most of that: leave them out of the source"),
        (
            {"provenance": {"skipped": [dataclasses.asdict(each) for each in SKIPPED]}},
            1,
            "1,000 skipped records take most of that: leave them out of the source",
        ),
        ({"skipped": tuple(SKIPPED[:9])}, 1_000, "write larger shards"),
        ({"provenance": {"skipped": 9}}, 1_000, "write larger shards"),
    ],
    ids=["skipped", "converted", "shards", "another value"],
)
def test_a_manifest_that_would_be_too_long_is_refused_with_what_shortens_it(
    described: dict[str, Any], shards: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presave.manifest_file.MAX_MANIFEST_NBYTES", 10_000)
    with pytest.raises(presave.StoreError, match=rf"manifest\.json would have [\d,]+ bytes; {advice}$"):
        save_manifest(presave.Manifest("npy", (FIELD,), (Shard(1, (FILE,)),) * shards, **described), tmp_path)


@pytest.mark.parametrize("format", [name for name in presave.formats() if name != "pickle"])
def test_a_shard_with_a_file_too_many_is_refused_when_it_is_read(format: str, tmp_path: Path) -> None:
    presave.write(tmp_path / "s", [{"x": np.zeros(3)}], format=format).close()
    manifest = load_manifest(tmp_path / "s")
    (shard,) = manifest.shards
    forged = dataclasses.replace(manifest, shards=(dataclasses.replace(shard, files=shard.files * 2),))
    save_manifest(forged, tmp_path / "s")
    message = f"the manifest names 2 files for shard 0, format '{format}' has 1"
    with presave.open_store(tmp_path / "s") as store, pytest.raises(presave.StoreError, match=message):
        store[0]
