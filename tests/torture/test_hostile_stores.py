"""Stores that somebody forged: manifests that cannot be true, files that are none, arrays larger than their file."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import presave
from etl.commands import main
from presave.files import checksum_file
from presave.manifest_file import MANIFEST_NAME
from tests.torture.conftest import HowMany, Tally
from tests.torture.hostile import attempt, refusal
from tests.torture.mutated_stores import with_checksum

RECORDS = [{"x": np.arange(3) + number} for number in range(5)]
MAPPED = ["npy", "hdf5", "safetensors", "torch"]
REFUSED = ("StoreError",)


def _store(folder: Path, format: str = "npy") -> Path:
    presave.write(folder, RECORDS, format=format).close()
    return folder


def _data_file(store: Path) -> Path:
    (file,) = (path for path in store.iterdir() if path.name != MANIFEST_NAME)
    return file


def _forge(store: Path, change: Callable[[dict[str, Any]], object] | None = None) -> Path:
    """Change the manifest, or have it say of the data file what is true now, and mend its checksum."""
    path = store / MANIFEST_NAME
    content = json.loads(path.read_text())
    del content["checksum"]
    if change is None:
        file = _data_file(store)
        content["shards"][0]["files"][0] |= {"nbytes": file.stat().st_size, "xxh3_128": checksum_file(file)}
    else:
        change(content)
    path.write_bytes(with_checksum(json.dumps(content, indent=1).encode()))
    return store


def _read_all(store: Path) -> Any:
    with presave.open_store(store) as opened:
        return opened.gather(range(len(opened)))["x"].sum()


def _claim(records: int, nbytes: int) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["shards"][0] |= {"records": records}
        content["shards"][0]["files"][0] |= {"nbytes": nbytes}

    return change


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        place: Any = content
        for each in path[:-1]:
            place = place[each]
        place[path[-1]] = value

    return change


FIELD, SHARD, FILE = ("fields", 0), ("shards", 0), ("shards", 0, "files", 0)
FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "2^60 records": _claim(2**60, 264),
    "2^60 records in files of 2^63 bytes": _claim(2**58, 2**63 - 1),
    "2^63 records": _claim(2**63, 264),
    "16 shards of 2^60 records": lambda content: content.update(
        shards=[{**content["shards"][0], "records": 2**60}] * 16
    ),
    "infinitely many records": _put(*SHARD, "records", value=float("inf")),
    "records that are no number": _put(*SHARD, "records", value=float("nan")),
    "records as a text": _put(*SHARD, "records", value="5"),
    "a negative file": _put(*FILE, "nbytes", value=-1),
    "rows of 2^60 bytes": _put(*FIELD, "shape", value=[2**30, 2**30]),
    "rows of nothing": _put(*FIELD, "shape", value=[0]),
    "64 axes": _put(*FIELD, "shape", value=[1] * 64),
    "a size of infinity": _put(*FIELD, "shape", value=[float("inf")]),
    "objects": _put(*FIELD, "dtype", value="|O"),
    "a dtype that numpy parses": _put(*FIELD, "dtype", value="(" * 5000 + "2" + ")" * 5000 + "f4"),
    "a dtype of many": _put(*FIELD, "dtype", value="2000000000f8,f8"),
    "a name that is no text": _put(*FIELD, "name", value="\ud800"),
    "a name without end": _put(*FIELD, "name", value="x" * 5000),
    "no name": _put(*FIELD, "name", value=""),
    "two fields of one name": lambda content: content["fields"].append(content["fields"][0]),
    "a file above": _put(*FILE, "name", value="../../etc/passwd"),
    "a file at an absolute path": _put(*FILE, "name", value="/etc/passwd"),
    "a file with a zero byte": _put(*FILE, "name", value="x\0y"),
    "deep provenance": _put("provenance", value={"x": _nested(900)}),
    "a list for a mapping": _put("shards", value=[[]]),
    "null for a list": _put("fields", value=None),
}


READS: list[Callable[[Path], object]] = [presave.open_store, presave.load_manifest, presave.verify]


@pytest.mark.parametrize("name", FORGED)
def test_a_manifest_that_cannot_be_true_is_refused(name: str, tmp_path: Path, how_many: HowMany, tally: Tally) -> None:
    store = _forge(_store(tmp_path / "s"), FORGED[name])
    for read in READS[: how_many(1, 3)]:
        refusal(partial(read, store), str(store / MANIFEST_NAME), "presave the data again", kinds=REFUSED)
        tally("hostile input, forged manifest", "refused, with file and reason")


@pytest.mark.parametrize("format", presave.formats())
def test_2_to_60_records_are_refused_in_every_format(format: str, tmp_path: Path, tally: Tally) -> None:
    store = _forge(_store(tmp_path / "s", format), _claim(2**60, 1 << 40))
    open_store: Callable[[], object] = lambda: presave.open_store(store, trusted=True)  # noqa: E731
    refusal(open_store, str(store / MANIFEST_NAME), "records", kinds=REFUSED)
    tally("hostile input, manifest that claims 2^60 records", "refused, with file and reason")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"layout": 2, "shards": ' + b"9" * 1_000_000 + b"}",
        b'{"layout": ' + b"1" + b"0" * 5000 + b"}",
        b"\xff\xfe{",
        b"\0" * 1000,
    ],
    ids=["nested lists", "nested mappings", "a number of a million digits", "a layout of 5000", "UTF-16", "zeros"],
)
def test_text_that_json_chokes_on_is_refused(text: bytes, tmp_path: Path, tally: Tally) -> None:
    (_store(tmp_path / "s") / MANIFEST_NAME).write_bytes(text)
    refusal(lambda: presave.open_store(tmp_path / "s"), str(tmp_path / "s" / MANIFEST_NAME), kinds=REFUSED)
    tally("hostile input, forged manifest", "refused, with file and reason")


@pytest.mark.parametrize("kind", ["pipe", "device", "terabyte", "folder"])
def test_a_manifest_that_is_no_plain_file_is_refused(kind: str, tmp_path: Path, tally: Tally) -> None:
    path = _store(tmp_path / "s") / MANIFEST_NAME
    _replace(path, kind)
    refusal(lambda: presave.open_store(tmp_path / "s"), str(path), kinds=REFUSED)
    tally("hostile input, pipe, device or endless file in a store", "refused, with file and reason")


@pytest.mark.parametrize("kind", ["pipe", "device", "link"])
@pytest.mark.parametrize("format", presave.formats())
def test_a_shard_that_is_no_plain_file_is_refused_and_not_opened(
    format: str, kind: str, tmp_path: Path, tally: Tally
) -> None:
    store = _store(tmp_path / "s", format)
    file = _data_file(store)
    other = tmp_path / "secret"
    other.write_bytes(file.read_bytes())
    _replace(file, kind, other)

    def gather() -> object:
        with presave.open_store(store, trusted=format == "pickle" and kind != "link") as opened:
            return opened.gather([0])

    ending = attempt(gather)
    assert ending.kind == "StoreError", ending
    assert "trusted=True" in ending.message or "is not a regular file" in ending.message
    assert str(other) not in ending.opened
    faults = attempt(lambda: presave.verify(store))
    assert f"{file}: is" in faults.message
    assert str(other) not in faults.opened
    tally("hostile input, pipe, device or link in a store", "refused, with file and reason")


def test_links_are_read_where_the_store_is_trusted(tmp_path: Path) -> None:
    store = _store(tmp_path / "s")
    file = _data_file(store)
    file.rename(tmp_path / "blob")
    file.symlink_to("../blob")
    with presave.open_store(store, trusted=True, verify=True) as opened:
        assert opened[1]["x"].tolist() == [1, 2, 3]
    assert main(["verify", str(store)]) == 1
    assert main(["verify", str(store), "--trusted"]) == 0
    assert main(["convert", str(store), str(tmp_path / "t"), "--format", "npy"]) == 2
    assert main(["convert", str(store), str(tmp_path / "t"), "--format", "npy", "--trusted"]) == 0


def _replace(path: Path, kind: str, other: Path | None = None) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "terabyte":
        path.touch()
        os.truncate(path, 1 << 40)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(other or path)


def _safetensors(header: Any, nbytes: int | None = None, rest: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if nbytes is None else nbytes).to_bytes(8, "little") + text + rest


def _x(**other: Any) -> dict[str, Any]:
    return {"x": {"dtype": "I64", "shape": [5, 3], "data_offsets": [0, 120], **other}}


@pytest.mark.parametrize(
    "content",
    [
        _safetensors(b"{}", 2**60),
        _safetensors(b"{}", 2**64 - 1),
        _safetensors(b"[" * 50_000),
        _safetensors(b'{"a":' * 50_000),
        _safetensors(b"[" + b"[]," * (8 << 20)),
        _safetensors(_x(shape=[2**70, 3])),
        _safetensors(_x(shape=[-1, 3]), rest=bytes(24)),
        _safetensors(_x(data_offsets=[0, 2**70]), rest=bytes(8)),
        _safetensors(_x(data_offsets=[-120, 2**62]), rest=bytes(120)),
        _safetensors(_x(data_offsets=["0", None])),
        _safetensors(_x(dtype="O"), rest=bytes(120)),
        _safetensors(_x(shape=[float("nan")]), rest=bytes(120)),
        b"",
        b"\1",
    ],
    ids=lambda content: f"{len(content)} bytes",
)
def test_a_forged_safetensors_file_is_refused(content: bytes, tmp_path: Path, tally: Tally) -> None:
    store = _store(tmp_path / "s", "safetensors")
    _data_file(store).write_bytes(content)
    refusal(lambda: _read_all(store), str(_data_file(store)), kinds=REFUSED)
    tally("hostile input, forged safetensors file", "refused, with file and reason")


@pytest.mark.parametrize("kind", ["stride 0", "compressed", "packed members", "not an archive"])
def test_a_torch_file_that_grows_is_refused(kind: str, tmp_path: Path, tally: Tally) -> None:
    store = _store(tmp_path / "s", "torch")
    file = _data_file(store)
    if kind == "stride 0":
        torch.save({"x": torch.zeros(1, 1, dtype=torch.int64).expand(5, 1 << 22)}, file)
        _forge(store)
        _forge(store, lambda content: (_put(*FIELD, "shape", value=[1 << 22])(content), _claim(5, 5 << 25)(content)))
    elif kind == "not an archive":
        file.write_bytes(pickle.dumps({"x": 1}))
    else:
        with zipfile.ZipFile(file) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            if kind == "packed members":
                archive.writestr("archive/data.pkl", bytes(64 << 20))
    refusal(lambda: _read_all(store), str(file), kinds=REFUSED)
    tally("hostile input, torch file that holds more than its size", "refused, with file and reason")


@pytest.mark.parametrize("command", ["inspect", "verify", "convert"])
@pytest.mark.parametrize("format", MAPPED)
def test_a_pickle_is_not_run_whatever_the_manifest_calls_it(
    format: str, command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], tally: Tally
) -> None:
    class Mark:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    store = _store(tmp_path / "s", format)
    _data_file(store).write_bytes(pickle.dumps({"x": Mark(), "room": bytes(4096)}))
    _forge(store)
    more = [str(tmp_path / "t"), "--format", "npy"] if command == "convert" else []
    code = main([command, str(store), *more])
    assert code == (2 if command == "convert" else 0)
    assert not (tmp_path / "ran").exists()
    tally("hostile input, pickle in a store, command without --trusted", "not run")


def test_an_interrupted_write_takes_up_nothing_that_is_no_plain_file(tmp_path: Path, tally: Tally) -> None:
    folder = tmp_path / ".s.partial"
    for kind in ("pipe", "deep"):
        folder.mkdir()
        marker = folder / "00000.done.json"
        if kind == "pipe":
            os.mkfifo(marker)
        else:
            marker.write_bytes(b"[" * 100_000)
        ending = attempt(lambda: len(presave.write(tmp_path / "s", RECORDS)))
        assert (ending.kind, ending.message) == (None, "5")
        for path in (tmp_path / "s").iterdir():
            path.unlink()
        (tmp_path / "s").rmdir()
    folder.mkdir()
    os.mkfifo(folder / "plan.json")
    refusal(lambda: presave.write(tmp_path / "s", RECORDS), "regular file", kinds=REFUSED)
    tally("hostile input, forged remains of an interrupted write", "not waited for, nothing taken from them", 3)


def test_a_write_empties_no_folder_that_a_link_leads_to(tmp_path: Path, tally: Tally) -> None:
    """A link that somebody left where the folder of an interrupted write would be."""
    (tmp_path / "home" / "letters").mkdir(parents=True)
    (tmp_path / "home" / "letters" / "1").write_text("dear")
    (tmp_path / ".s.partial").symlink_to(tmp_path / "home")
    refusal(lambda: presave.write(tmp_path / "s", RECORDS), ".s.partial is a link", kinds=REFUSED)
    assert [path.name for path in (tmp_path / "home").rglob("*")] == ["letters", "1"]
    tally("hostile input, link in the place of an unfinished write", "refused, nothing outside was written")
