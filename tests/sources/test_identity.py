"""Sources are identified by what they read: neither a write nor a state goes on over others of equal number."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl.loading import Padding
from etl.sources import tar_index
from etl.sources.identity import source_digests, stamp
from etl.sources.idx import write_idx
from tests import csv_files, tar_files

COUNT = 12
NOTHING = etl.Pipeline([])


def _class_folders(folder: Path, suffix: str, content: Callable[[int], bytes]) -> Path:
    for number in range(COUNT):
        path = folder / "data" / f"class{number % 2}" / f"{number}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    return folder / "data"


def _images(folder: Path) -> Path:
    return _class_folders(folder, "png", lambda number: bytes([number] * 40))


def _csv(folder: Path) -> Path:
    return csv_files.write(folder, "a,label\n" + "".join(f"{number:02d},{number % 2}\n" for number in range(COUNT)))


def _tar(folder: Path) -> Path:
    members = [(f"{number}.jpg", bytes([number] * 40)) for number in range(10, 10 + COUNT)]
    labels = [(f"{number}.cls", b"%d" % number) for number in range(10, 10 + COUNT)]
    return tar_files.write(folder / "s.tar", [each for pair in zip(members, labels, strict=True) for each in pair])


def _idx(folder: Path) -> Path:
    (folder / "data").mkdir()
    write_idx(folder / "data" / "train-images-idx3-ubyte", np.arange(COUNT * 4, dtype=np.uint8).reshape(COUNT, 2, 2))
    write_idx(folder / "data" / "train-labels-idx1-ubyte", np.arange(COUNT, dtype=np.uint8))
    return folder / "data"


def _cifar(folder: Path) -> Path:
    rows = np.repeat(np.arange(COUNT, dtype=np.uint8)[:, None] % 10, 3073, axis=1)
    (folder / "some.bin").write_bytes(rows.tobytes())
    return folder / "some.bin"


KINDS: dict[str, Callable[[Path], Path]] = {
    "images": _images,
    "csv": _csv,
    "tar": _tar,
    "idx": _idx,
    "cifar": _cifar,
    "sequences": lambda folder: _class_folders(folder, "csv", lambda number: b"a\n1%02d\n" % number),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


def _open(path: Path) -> Any:
    return etl.open_source(path, **({"label": "label"} if path.suffix == ".csv" else {}))


def _file(path: Path) -> Path:
    """Return the file of record 0, or the last of those that hold all records."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return files[-1 if len(files) < COUNT else 0]


def _change(path: Path) -> None:
    """Change one byte of the data that stays valid, in a file whose size and time of modification stay."""
    file = _file(path)
    status, content = file.stat(), bytearray(file.read_bytes())
    place = content.rfind(b"1") if path.suffix in (".csv", ".tar") or file.suffix == ".csv" else len(content) - 1
    content[place] ^= 1
    with file.open("r+b") as opened:
        opened.write(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace(path: Path) -> None:
    """The same with another file of that name."""
    _change(path)
    file = _file(path)
    os.replace(shutil.copy2(file, file.with_name("new")), file)


def _begin(target: Path, source: Any) -> None:
    def stop(_: presave.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _write(target, source, progress=stop)


def _write(target: Path, source: Any, **settings: Any) -> None:
    presave.write(target, etl.records(source, NOTHING), shard_nbytes=1, **settings).close()


@every_kind
def test_a_source_stays_that_of_its_files_though_the_working_folder_changes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = KINDS[kind](tmp_path)
    monkeypatch.chdir(tmp_path)
    source = _open(path.relative_to(tmp_path))
    monkeypatch.chdir("/")
    expected = _open(path)
    for each in (source, pickle.loads(pickle.dumps(source))):
        found = [each[index]["features"].tobytes() for index in range(COUNT)]
        assert found == [expected[index]["features"].tobytes() for index in range(COUNT)]
        assert source_digests(each) == source_digests(expected)


@every_kind
def test_an_interrupted_write_refuses_a_file_that_changed_at_equal_size_and_time(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    _begin(tmp_path / "store", _open(path))
    _change(path)
    with pytest.raises(presave.StoreError, match=rf"{_file(path).name}.* and (is|now it is) .*; delete that folder"):
        _write(tmp_path / "store", _open(path))
    assert not (tmp_path / "store").exists()


@every_kind
@pytest.mark.parametrize("in_same_process", [True, False])
def test_an_interrupted_write_goes_on_over_unchanged_files(kind: str, in_same_process: bool, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    source = _open(path)
    _begin(tmp_path / "store", source)
    _write(tmp_path / "store", source if in_same_process else _open(path))
    assert presave.verify(tmp_path / "store") == []


@pytest.mark.parametrize("kind", ["images", "sequences"])
def test_files_that_moved_between_classes_are_refused(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    _begin(tmp_path / "store", _open(path))
    first, second = (min(path.glob(f"class{number}/*")) for number in range(2))
    first.rename(path / "class1" / first.name)
    second.rename(path / "class0" / second.name)
    with pytest.raises(
        presave.StoreError, match=rf"record 0 was read from class0/{first.name}, .*, and now it is class0/"
    ):
        _write(tmp_path / "store", _open(path))


@pytest.mark.parametrize("kind", ["images", "sequences"])
def test_an_interrupted_write_goes_on_over_a_file_that_it_had_not_read(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    _begin(tmp_path / "store", _open(path))
    file = path / "class1" / next(path.glob("class1/*")).name
    file.write_bytes(file.read_bytes().replace(b"0", b"7").replace(b"\1", b"\7"))
    _write(tmp_path / "store", _open(path))
    source = _open(path)
    with presave.open_store(tmp_path / "store") as store:
        for index in range(COUNT):
            assert np.array_equal(store[index]["features"], source[index]["features"])


def _link(file: Path) -> None:
    """Change the time at which the inode of a file was changed."""
    file.with_name("link").hardlink_to(file)
    file.with_name("link").unlink()


def _copy(file: Path) -> None:
    os.replace(shutil.copy(file, file.with_name("copy")), file)


@pytest.mark.parametrize("kind", ["images", "sequences"])
@pytest.mark.parametrize("change", [_link, os.utime, _copy], ids=["linked", "touched", "copied"])
def test_a_write_goes_on_over_files_with_other_times_and_the_same_content(
    change: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    path = KINDS[kind](tmp_path)
    files = [each for each in path.rglob("*") if each.is_file()]

    def change_in_the_middle(progress: presave.Progress) -> None:
        if progress.records == COUNT // 2:
            for file in files:
                change(file)

    _begin(tmp_path / "store", _open(path))
    change(_file(path))
    _write(tmp_path / "store", _open(path), progress=change_in_the_middle)
    assert presave.verify(tmp_path / "store") == []


def test_a_file_is_the_same_if_its_file_system_has_numbered_it_anew() -> None:
    files: list[Any] = [SimpleNamespace(st_size=40, st_mtime_ns=1, st_ctime_ns=2, st_ino=number) for number in (3, 4)]
    assert stamp(files[0]) == stamp(files[1])


@pytest.mark.parametrize("kind", ["images", "sequences"])
def test_a_file_that_changes_after_it_was_read_gives_no_store(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)

    def change(progress: presave.Progress) -> None:
        if progress.records == COUNT:
            _change(path)

    with pytest.raises(presave.StoreError, match=r"record 0 was read from .*, and now it is"):
        _write(tmp_path / "store", _open(path), progress=change)
    assert not (tmp_path / "store").exists()


@every_kind
def test_a_state_is_refused_by_other_records_of_the_same_number(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    state = json.loads(json.dumps(etl.RawIterator(_open(path), NOTHING, 2).state_dict()))
    _change(path)
    with pytest.raises(ValueError, match=r"other records than this iterator has: their .* differ"):
        etl.RawIterator(_open(path), NOTHING, 2).load_state_dict(state)


@every_kind
def test_a_state_fits_a_copy_of_the_files_and_a_store_of_them(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    iterator = etl.RawIterator(_open(path), NOTHING, 2)
    next(iter(iterator))
    state = json.loads(json.dumps(iterator.state_dict()))
    _write(tmp_path / "store", _open(path))
    stored = etl.PresavedIterator(tmp_path / "store", NOTHING, 2)
    copy = shutil.copytree(path, tmp_path / "copy") if path.is_dir() else shutil.copy(path, tmp_path / f"x{path.name}")
    for other in (stored, etl.RawIterator(_open(Path(copy)), NOTHING, 2), etl.AsyncIterator(stored)):
        other.load_state_dict(state)
        assert other.state_dict()["position"] == 2
    stored.close()


def test_states_of_lists_and_stores_of_other_records_are_refused(tmp_path: Path) -> None:
    records = [[{"features": np.arange(4) + first, "label": 1} for _ in range(COUNT)] for first in range(2)]
    one, other = (presave.write(tmp_path / f"{number}", each) for number, each in enumerate(records))
    with one, other:
        pairs = [
            tuple(etl.RawIterator(each, NOTHING) for each in records),
            tuple(etl.PresavedIterator(each, NOTHING) for each in (one, other)),
            tuple(etl.RawIterator(each, NOTHING) for each in (one, other)),
            tuple(etl.RawIterator(etl.MapDataset(each), NOTHING) for each in records),
            tuple(etl.AsyncIterator(etl.RawIterator(each, NOTHING)) for each in records),
        ]
        for first, second in pairs:
            second.load_state_dict(second.state_dict())
            with pytest.raises(ValueError, match="other records"):
                second.load_state_dict(first.state_dict())


def test_sequences_and_tensors_in_memory_are_identified(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def sequences(first: int) -> Any:
        return etl.Sequences.from_arrays([np.full((2, 1), first + number) for number in range(COUNT)], range(COUNT))

    def tensors(first: int) -> Any:
        data = torch.arange(COUNT)
        return etl.MapDataset(torch.utils.data.TensorDataset(data.double()[:, None] + first, data))

    for number, make in enumerate((sequences, tensors)):
        iterators = [etl.RawIterator(make(first), NOTHING, padding=Padding()) for first in (0, 0, 1)]
        iterators[1].load_state_dict(iterators[0].state_dict())
        with pytest.raises(ValueError, match="other records"):
            iterators[2].load_state_dict(iterators[0].state_dict())
        _begin(tmp_path / f"{number}", make(0))
        with pytest.raises(presave.StoreError, match=r"record 0 was read from .*, and now it is"):
            _write(tmp_path / f"{number}", make(1))
        _write(tmp_path / f"{number}", make(0))


def test_tensors_that_require_a_gradient_are_identified(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def tensors(value: float) -> Any:
        data = torch.full((COUNT, 2), value, requires_grad=True)
        return etl.MapDataset(torch.utils.data.TensorDataset(data, torch.arange(COUNT)))

    state = etl.AsyncIterator(etl.RawIterator(tensors(1.0), NOTHING, 2)).state_dict()
    etl.RawIterator(tensors(1.0), NOTHING, 2).load_state_dict(state)
    with pytest.raises(ValueError, match="other records"):
        etl.RawIterator(tensors(2.0), NOTHING, 2).load_state_dict(state)
    _write(tmp_path / "store", tensors(1.0))


def test_a_pipe_among_the_files_is_not_waited_for(tmp_path: Path) -> None:
    path = _images(tmp_path)
    file = next(path.glob("class0/*"))
    file.unlink()
    os.mkfifo(file)
    iterator = etl.RawIterator(_open(path), NOTHING, 2)
    iterator.load_state_dict(iterator.state_dict())


def test_a_state_of_a_store_fits_its_conversion(tmp_path: Path) -> None:
    presave.write(tmp_path / "a", [{"features": np.arange(4), "label": number} for number in range(COUNT)]).close()
    presave.convert(tmp_path / "a", tmp_path / "b", format="hdf5", shard_nbytes=100).close()
    state = etl.PresavedIterator(tmp_path / "a", NOTHING, 2).state_dict()
    etl.PresavedIterator(tmp_path / "b", NOTHING, 2).load_state_dict(state)


def test_a_source_of_a_user_is_identified_by_its_attribute(tmp_path: Path) -> None:
    class Mine(list[Any]):
        identity: dict[str, Any]

    records = [{"features": np.arange(4), "label": number} for number in range(COUNT)]
    one, other = Mine(records), Mine(records)
    one.identity, other.identity = {"version": 1}, {"version": 2}
    _begin(tmp_path / "store", one)
    with pytest.raises(presave.StoreError, match="version was 1 and is 2"):
        _write(tmp_path / "store", other)
    with pytest.raises(ValueError, match="other records"):
        etl.RawIterator(other, NOTHING).load_state_dict(etl.RawIterator(one, NOTHING).state_dict())


@pytest.mark.parametrize("change", [_change, _replace], ids=["in place", "replaced"])
@pytest.mark.usefixtures("user_cache")
def test_labels_rewritten_at_equal_size_and_time_are_read_again(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar_index, "MIN_CACHED_MEMBERS", 1)
    path = tar_files.numbered(tmp_path / "s.tar", 10, COUNT)
    assert etl.Tar(path)[11]["label"] == 21
    change(path)
    assert etl.Tar(path)[11]["label"] == 20


@pytest.mark.usefixtures("user_cache")
def test_a_tar_file_that_changes_while_it_is_indexed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tar_files.numbered(tmp_path / "s.tar", 10, COUNT)
    scan = tar_index._scan

    def change_after(*arguments: Any) -> Any:
        found = scan(*arguments)
        _change(path)
        return found

    monkeypatch.setattr(tar_index, "_scan", change_after)
    with pytest.raises(ValueError, match=r"s\.tar has changed while it was read"):
        etl.Tar(path)


def test_a_configuration_refuses_a_store_of_other_records_of_the_same_number(tmp_path: Path) -> None:
    path = _idx(tmp_path)
    _write(tmp_path / "store", _open(path))
    (tmp_path / "c.toml").write_text(
        '[data]\nsource = "data"\n[loader]\nstrategy = "presaved"\nbatch_size = 2\n[store]\npath = "store"\n'
    )
    _change(path)
    with pytest.raises(ValueError, match="was written from other records than those of the source: their content"):
        etl.from_config(tmp_path / "c.toml")


class _Listed:
    """A data set that lists its files and labels, as torchvision's `DatasetFolder` does."""

    def __init__(self, folder: Path) -> None:
        self.samples = sorted((str(path), int(path.parent.name[-1])) for path in folder.glob("*/*.png"))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        path, label = self.samples[index]
        return np.fromfile(path, np.uint8), label


def _subset(folder: Path) -> Any:
    torch = pytest.importorskip("torch")
    return torch.utils.data.Subset(_Listed(folder), range(COUNT - 1))


@pytest.mark.parametrize("make", [_Listed, _subset])
def test_the_files_that_a_data_set_lists_identify_its_items(make: Callable[[Path], Any], tmp_path: Path) -> None:
    folder = _images(tmp_path)
    state = etl.RawIterator(etl.MapDataset(make(folder)), NOTHING, 4).state_dict()
    _begin(tmp_path / "s", etl.MapDataset(make(folder)))
    (folder / "class0" / "0.png").rename(folder / "class1" / "0.png")
    moved = etl.MapDataset(make(folder))
    with pytest.raises(presave.StoreError, match=r"record 0 was read from .*class0/0\.png .* and now it is"):
        _write(tmp_path / "s", moved)
    with pytest.raises(ValueError, match="other records than this iterator has"):
        etl.RawIterator(moved, NOTHING, 4).load_state_dict(state)


def test_a_state_is_refused_by_another_subset_of_the_same_records(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    source = _open(_images(tmp_path))
    for records in (source, list(source), etl.MapDataset(_Listed(tmp_path / "data"))):
        first, second = torch.utils.data.random_split(records, [COUNT // 2] * 2)
        state = json.loads(json.dumps(etl.RawIterator(first, NOTHING, 2).state_dict()))
        same = torch.utils.data.Subset(records, torch.tensor(first.indices))
        etl.RawIterator(same, NOTHING, 2).load_state_dict(state)
        for other in (second, torch.utils.data.Subset(torch.utils.data.Subset(records, second.indices), range(6))):
            with pytest.raises(ValueError, match="other records than this iterator has: their indices differ"):
                etl.RawIterator(other, NOTHING, 2).load_state_dict(state)


def test_a_state_of_a_subset_fits_a_store_of_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    chosen, others = torch.utils.data.random_split(_open(_images(tmp_path)), [COUNT // 2] * 2)
    states = [etl.RawIterator(each, NOTHING, 2).state_dict() for each in (chosen, others)]
    _write(tmp_path / "store", chosen)
    with etl.PresavedIterator(tmp_path / "store", NOTHING, 2) as stored:
        stored.load_state_dict(states[0])
        with pytest.raises(ValueError, match="other records than this iterator has: their indices differ"):
            stored.load_state_dict(states[1])


@pytest.mark.parametrize("kind", ["csv", "tar", "idx", "cifar"])
def test_an_interrupted_write_of_a_subset_refuses_another_choice_and_a_changed_file(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = KINDS[kind](tmp_path)

    def chosen(*indices: int) -> Any:
        return torch.utils.data.Subset(_open(path), indices)

    _begin(tmp_path / "store", chosen(0, 1, 2))
    with pytest.raises(presave.StoreError, match=r"the choice of records was .* and is .*; delete that folder"):
        _write(tmp_path / "store", chosen(0, 2, 1))
    _change(path)
    with pytest.raises(presave.StoreError, match=rf"{_file(path).name} was .* and is .*; delete that folder"):
        _write(tmp_path / "store", chosen(0, 1, 2))


def test_an_interrupted_write_of_a_subset_refuses_other_options_of_its_source(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = csv_files.write(tmp_path, "a\n0\n?\n?\n")
    first, second = (torch.utils.data.Subset(etl.Csv(path, missing=each), range(3)) for each in (1, 2))
    _begin(tmp_path / "store", first)
    with pytest.raises(presave.StoreError, match=r"in provenance, options was .* and is .*; delete that folder"):
        _write(tmp_path / "store", second)
