"""Reading a store that is not trusted runs no code from it and opens no file outside it."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import presave
from etl.commands import main
from presave.files import checksum_file
from presave.manifest import StoredFile
from presave.manifest_file import load_manifest, save_manifest

RECORDS = [{"x": np.arange(3) + number} for number in range(5)]


class Mark:
    """An object that creates the folder `path` when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def malicious(tmp_path: Path) -> Path:
    """A pickle store with a matching manifest that creates the folder `ran` beside it when it is unpickled."""
    presave.write(tmp_path / "s", RECORDS, format="pickle").close()
    file = tmp_path / "s" / "batch-00000.pickle"
    file.write_bytes(pickle.dumps({"x": Mark(tmp_path / "ran"), "room": bytes(1000)}))  # large enough for the records
    _accept(tmp_path / "s", file)
    return tmp_path / "s"


def _accept(folder: Path, file: Path) -> None:
    """Update the manifest to match the present content of `file`, as a forger would."""
    manifest = load_manifest(folder)
    stored = StoredFile(file.name, file.stat().st_size, checksum_file(file))
    shard = replace(manifest.shards[0], files=(stored,))
    save_manifest(replace(manifest, shards=(shard,)), folder)


def test_a_pickle_store_opens_only_if_trusted_and_the_error_says_why(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS, format="pickle").close()
    with pytest.raises(
        presave.StoreError, match=r"reading it runs any code that its author put into it\. Pass trusted=True"
    ):
        presave.open_store(tmp_path / "s")
    with pytest.raises(presave.StoreError, match="trusted=True"):
        presave.convert(tmp_path / "s", tmp_path / "t", format="npy")
    assert not (tmp_path / "t").exists()
    with presave.open_store(tmp_path / "s", trusted=True) as store:
        assert store[2]["x"].tolist() == [2, 3, 4]
        assert pickle.loads(pickle.dumps(store))[2]["x"].tolist() == [2, 3, 4]


@pytest.mark.parametrize("settings", [{}, {"verify": True}, {"cache": "ram"}], ids=str)
def test_opening_without_trust_runs_nothing(settings: dict[str, Any], malicious: Path) -> None:
    with pytest.raises(presave.StoreError, match="trusted=True"):
        presave.open_store(malicious, **settings)
    assert not (malicious.parent / "ran").exists()


def test_the_malicious_store_runs_its_code_if_trusted(malicious: Path) -> None:
    with pytest.raises(presave.StoreError), presave.open_store(malicious, trusted=True) as store:
        store.gather([0])
    assert (malicious.parent / "ran").is_dir()


@pytest.mark.parametrize("command", ["verify", "inspect", "convert"])
def test_no_command_runs_code_in_a_store_without_trust(
    command: str, malicious: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = [str(malicious.parent / "t"), "--format", "npy"] if command == "convert" else []
    assert main([command, str(malicious), *more]) == (2 if command == "convert" else 0)
    assert ("runs any code that its author put into it" in capsys.readouterr().err) is (command == "convert")
    assert not (malicious.parent / "ran").exists()


def test_code_in_a_torch_file_is_refused_and_not_run(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS, format="torch").close()
    file = tmp_path / "s" / "shard-00000.pt"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            evil = pickle.dumps({"x": Mark(tmp_path / "ran")}, protocol=2)
            archive.writestr(name, evil if name.endswith("data.pkl") else content)
    with presave.open_store(tmp_path / "s") as store, pytest.raises(presave.StoreError, match="cannot be read"):
        store.gather([0])
    assert not (tmp_path / "ran").exists()
    torch.load(file, weights_only=False)
    assert (tmp_path / "ran").exists()  # the file does contain code


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(5, 3, dtype=torch.bfloat16), torch.zeros(5, 3).to_sparse(), torch.zeros(5, 3, requires_grad=True)],
    ids=["bfloat16", "sparse", "requires_grad"],
)
def test_tensors_without_a_numpy_equivalent_are_refused(tensor: torch.Tensor, tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS, format="torch").close()
    file = tmp_path / "s" / "shard-00000.pt"
    torch.save({"x": tensor}, file)
    with presave.open_store(tmp_path / "s") as store, pytest.raises(presave.StoreError) as raised:
        store.gather([0])
    assert str(raised.value).startswith(f"{file}: cannot be read (")


def test_a_pickled_array_in_an_npy_file_is_refused_and_not_run(tmp_path: Path) -> None:
    presave.write(tmp_path / "s", RECORDS).close()
    with (tmp_path / "s" / "x-00000.npy").open("wb") as file:
        np.save(file, np.array([Mark(tmp_path / "ran")], dtype=object), allow_pickle=True)
    with presave.open_store(tmp_path / "s") as store, pytest.raises(presave.StoreError, match="is not int64 of shape"):
        store.gather([0])
    assert not (tmp_path / "ran").exists()


def _external_link(file: h5py.File, secret: Path) -> None:
    file["x"] = h5py.ExternalLink(str(secret), "secret")


def _soft_link(file: h5py.File, secret: Path) -> None:
    file["elsewhere"] = h5py.ExternalLink(str(secret), "secret")
    file["x"] = h5py.SoftLink("/elsewhere")


def _virtual(file: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((5, 3), "<i8")
    layout[:] = h5py.VirtualSource(str(secret), "secret", (5, 3))
    file.create_virtual_dataset("x", layout)


def _external_storage(file: h5py.File, secret: Path) -> None:
    file.create_dataset("x", (5, 3), "<i8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


ELSEWHERE, OTHER_FILES = "'x' is a link to somewhere else", "'x' is kept in other files"
FORGED: dict[str, tuple[Callable[[h5py.File, Path], object], str]] = {
    "external link": (_external_link, ELSEWHERE),
    "dangling external link": (lambda file, secret: _external_link(file, Path(f"{secret}nowhere")), ELSEWHERE),
    "soft link": (_soft_link, ELSEWHERE),
    "virtual": (_virtual, OTHER_FILES),
    "external storage": (_external_storage, OTHER_FILES),
    "objects": (lambda file, _: file.create_dataset("x", (5, 3), h5py.string_dtype()), "'x' holds object of shape"),
    "references": (lambda file, _: file.create_dataset("x", (5, 3), h5py.ref_dtype), "'x' holds object of shape"),
    "a group": (lambda file, _: file.create_group("x"), "'x' is not a data set"),
    "nothing": (lambda file, _: file.create_group("y"), "has no data set 'x'"),
}


@pytest.mark.parametrize(("make", "message"), FORGED.values(), ids=FORGED)
def test_hdf5_data_that_are_not_plain_data_sets_in_the_file_are_refused(
    make: Callable[[h5py.File, Path], object], message: str, tmp_path: Path
) -> None:
    presave.write(tmp_path / "s", RECORDS, format="hdf5").close()
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["secret"] = np.full((5, 3), 42)
    with h5py.File(tmp_path / "s" / "shard-00000.h5", "w") as file:
        make(file, tmp_path / "secret.h5")
    with presave.open_store(tmp_path / "s") as store, pytest.raises(presave.StoreError) as raised:
        store.gather([0])
    assert str(raised.value).startswith(f"{tmp_path / 's' / 'shard-00000.h5'}: ")
    assert message in str(raised.value)
