"""Configurations: files say how to load, and `etl.from_config` loads so."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import etl
import presave
from etl.commands import main
from etl.configuration import Configuration
from etl.iterators import BatchIterator
from etl.runtime.resources import available_cpus
from tests.every_strategy import bits
from tests.programs import output_of
from tests.readers import open_files_below
from tests.sequences import Sequences, sequences
from tests.user_modules import user_module

SIZE = 32
GUIDE = (Path(__file__).parents[1] / "docs" / "tuning.md").read_text()
ORDER: dict[str, Any] = {"batch_size": 8, "shuffle": True, "seed": 3, "dtype": "float32"}

LOADERS = """
    from pathlib import Path

    import numpy as np

    def listed(source, batch_size, seed, dtype, records, rank, world_size, window=1):
        listed.asked = dict(batch_size=batch_size, seed=seed, dtype=dtype, records=records, rank=rank, size=world_size)
        return [(np.array([source[index]["label"]]), window) for index in range(3)]

    def by_path(path, pipeline):
        return [(path, len(pipeline.names))]

    class Prepared:
        def __init__(self, folder):
            self.file = Path(folder) / "labels.npy"

        def prepare(self, source):
            np.save(self.file, np.array([record["label"] for record in source]))

        def __iter__(self):
            yield np.load(self.file)
"""


@pytest.fixture
def folder(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with photographs in it."""
    (tmp_path / "photos").symlink_to(photographs)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def torch_threads() -> Iterator[None]:
    """Torch's threads as they were, afterwards."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def configuration(strategy: str = "raw", **more: Any) -> Configuration:
    return Configuration("photos", strategy, size=SIZE, batch_size=8, seed=3, **more)


@pytest.mark.parametrize(
    "given",
    [
        Configuration("photos", "raw"),
        configuration("async-raw", settings={"decoder": "turbo", "prefetch_size": 0, "loading_threads": 2}),
        configuration("presaved", store="stores/photos.store", settings={"stage": "resize", "format": "npy"}),
        configuration("presaved", store="s", settings={"format": "hdf5", "compression": "gzip", "workers": "process"}),
        Configuration(
            "table.csv",
            "raw",
            split="test",
            table_options={
                "label": 1,
                "features": [0, 2],
                "classes": ["no", 'a "yes"'],
                "header": False,
                "delimiter": "\t",
                "missing": 0,
            },
            dtype=None,
            shuffle=False,
        ),
        Configuration("/data/photos", "my.loaders:dataloader", store="/cache/files", pipeline="my.stages:pipeline"),
        Configuration(
            "my_data:dataset", "mine:load", settings={"window": 4, "fast": True, "mode": "a", "factor": None}
        ),
        Configuration(
            "lmdb://photos.lmdb", "raw", result={"ratio": 0.71, "on": date(2026, 1, 2), "versions": {"a": "1"}}
        ),
    ],
    ids=lambda given: f"{given.source} {given.strategy}",
)
def test_a_file_says_all_that_was_written(given: Configuration, folder: Path) -> None:
    given.write("one.toml", "Settings\nof two lines")
    assert Configuration.read("one.toml") == given
    assert (folder / "one.toml").read_text().startswith("# Settings\n# of two lines\n")
    assert [each.name for each in folder.iterdir() if each.name != "photos"] == ["one.toml"]


def test_paths_in_a_file_are_relative_to_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "settings").mkdir()
    file = folder / "settings" / "photos.toml"
    configuration("presaved", store="stores/photos.store").write(file)
    assert 'source = "../photos"\n' in file.read_text()
    assert 'path = "../stores/photos.store"' in file.read_text()
    found = Configuration.read("settings/photos.toml")
    assert (found.source, found.store) == ("settings/../photos", "settings/../stores/photos.store")
    monkeypatch.chdir(folder / "settings")
    assert Configuration.read("photos.toml").source == "../photos"
    assert len(Configuration.read("photos.toml").open_source()) == 40


def test_a_file_that_cannot_be_written_keeps_its_content(folder: Path) -> None:
    configuration().write("one.toml")
    before = (folder / "one.toml").read_text()
    with pytest.raises(ValueError, match=r"\[result\] cannot be written to .*one.toml"):
        configuration(result={"ratio": object()}).write("one.toml")
    assert (folder / "one.toml").read_text() == before


DATA = '[data]\nsource = "photos"\n'
RAW = f'{DATA}[loader]\nstrategy = "raw"\n'
PRESAVED = f'{DATA}[loader]\nstrategy = "presaved"\n'
MINE = f'{DATA}[loader]\nstrategy = "mine:load"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[data\n", "it cannot be read as TOML: .*line 1"),
        ("", r"\[data\] has no source"),
        (DATA, r"\[loader\] has no strategy"),
        (f"{RAW}[store]\n", r"\[store\] has no path"),
        (f"batch_size = 3\n{RAW}", r"batch_size belongs in \[loader\]"),
        (f"{RAW}[setings]\n", r"there is no table setings; .*did you mean settings\?"),
        (f"[[data]]\nsource = 'photos'\n{RAW[len(DATA) :]}", "data must be a table, not a list of 1"),
        (f"{RAW}batchsize = 3\n", r"\[loader\] batchsize: there is no such key; .*did you mean batch_size\?"),
        (f"{RAW}size = 3\n", r"\[loader\] size: there is no such key in \[loader\]; it belongs in \[data\]"),
        (f"{RAW}batch_size = '8'\n", r"\[loader\] batch_size: it must be a whole number of at least 1, not '8'"),
        (f"{RAW}seed = true\n", r"\[loader\] seed: it must be a whole number"),
        (f"{RAW}shuffle = 1\n", r"\[loader\] shuffle: it must be true or false, not 1"),
        (f"{RAW}dtype = 'float23'\n", r"\[loader\] dtype: .*not 'float23'; did you mean float32\?"),
        (RAW.replace("raw", "rwa"), r"\[loader\] strategy: no strategy is called 'rwa'.*did you mean raw\?"),
        (RAW.replace('"photos"', "3"), r"\[data\] source: it must be text, not 3"),
        (f"classes = 'a'\n{RAW}".replace("classes", "[data]\nclasses").replace(DATA, DATA[7:]), r"a list of names"),
        (RAW.replace("[loader]", "pipeline = 'mine'\n[loader]"), r"\[data\] pipeline: give package.module:function"),
        (
            f"{RAW}[settings]\ndecodr = 'turbo'\n",
            r"\[settings\] decodr: there is no such key; .*did you mean decoder\?",
        ),
        (f"{RAW}[settings]\ndecoder = 'turbot'\n", r"\[settings\] decoder: .*did you mean turbo\?"),
        (f"{RAW}[settings]\nstage = 'resize'\n", r"\[settings\] stage: raw reads no store; leave it out"),
        (f"{RAW}[settings]\nprefetch_size = 2\n", r"\[settings\] prefetch_size: raw does not load ahead"),
        (f"{RAW}[settings]\ncompute_threads = 0\n", r"\[settings\] compute_threads: it must be .* at least 1"),
        (f"{RAW}[store]\npath = 's'\n", r"\[store\] path: raw reads no store"),
        (PRESAVED, r"presaved needs a table \[store\]"),
        (f"{PRESAVED}[store]\npath = 's'\n[settings]\ncompression = 'gzip'\n", 'it is for format = "hdf5"'),
        (f"{PRESAVED}[store]\npath = 's'\n[settings]\nformat = 'nyp'\n", r"\[settings\] format: .*did you mean npy"),
        (f"{MINE}[settings]\nsizes = [1, 2]\n", r"\[settings\] sizes: it must be text, a number, or true or false"),
    ],
)
def test_an_error_names_file_table_and_key(text: str, said: str, folder: Path) -> None:
    (folder / "one.toml").write_text(text)
    with pytest.raises(ValueError, match=f"^one.toml: .*{said}|^one.toml: {said}"):
        etl.from_config("one.toml")


def test_a_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "one.toml").write_text(f"\ufeff{RAW}")
    assert Configuration.read("one.toml").strategy == "raw"


def test_without_a_file_the_error_says_so(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no such configuration: 'one.toml'"):
        etl.from_config("one.toml")


def test_functions_of_a_script_cannot_be_named_in_a_file(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"\[loader\] strategy: a function of a script or notebook"):
        Configuration("photos", "pickled:/tmp/load.pickle")


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("raw", {}),
        ("raw", {"decoder": "turbo", "compute_threads": 1}),
        ("raw", {"workers": "thread", "loading_threads": 2}),
        ("async-raw", {"loading_threads": 1, "prefetch_size": 3}),
        ("async-raw", {}),
        ("process-raw", {"loading_threads": 1}),
        ("presaved", {"stage": "resize"}),
        ("async-presaved", {"stage": "decode", "decoder": "turbo", "loading_threads": 2}),
        ("async-presaved", {"workers": "process", "loading_threads": 1}),
        ("presaved", {"stage": "normalise", "format": "hdf5", "compression": "gzip"}),
    ],
    ids=str,
)
@pytest.mark.usefixtures("torch_threads")
def test_it_loads_what_an_iterator_made_by_hand_loads(strategy: str, settings: dict[str, Any], folder: Path) -> None:
    source = etl.ImageFolder("photos")
    pipeline = etl.image_pipeline(SIZE, settings.get("decoder", "pillow"))
    expected: BatchIterator = etl.RawIterator(source, pipeline, **ORDER)
    store = None
    if "presaved" in strategy:
        store, stage = "photos.store", settings.get("stage", "resize")
        written = presave.write(
            store, etl.records(source, pipeline.until(stage)), format=settings.get("format", "npy"), jobs=2
        )
        expected = etl.PresavedIterator(written, pipeline.after(stage), **ORDER)
    configuration(strategy, store=store, settings=settings).write("photos.toml")
    with etl.from_config("photos.toml") as loaded:
        assert (loaded.batch_size, loaded.dtype, len(loaded)) == (8, "float32", 5)
        for _ in range(2):
            assert bits(loaded) == bits(expected)
        if hasattr(loaded, "prefetch_size"):
            assert loaded.prefetch_size == settings.get("prefetch_size", 2)
            kind = "processes" if settings.get("workers") == "process" or strategy == "process-raw" else "threads"
            assert getattr(loaded, kind) == settings.get("loading_threads", available_cpus())


def test_an_iterator_resumes_and_is_divided_among_ranks(folder: Path) -> None:
    configuration("async-raw", settings={"loading_threads": 1}).write("photos.toml")
    with etl.from_config("photos.toml") as whole, etl.from_config("photos.toml") as resumed:
        expected = bits(whole)
        begun = iter(whole)
        next(begun)
        resumed.load_state_dict(whole.state_dict())
        left = bits(begun)
        assert bits(resumed) == left
        assert left != expected[1:]  # of the second epoch
    parts = [etl.from_config("photos.toml").shard(rank, 2) for rank in range(2)]
    again = [etl.from_config("photos.toml", rank=rank, world_size=2) for rank in range(2)]
    assert [bits(each) for each in parts] == [bits(each) for each in again]
    assert parts[0].world_size == again[1].world_size == 2
    with pytest.raises(ValueError, match="rank must be at least 0 and below world_size 1, not 1"):
        etl.from_config("photos.toml", rank=1)  # all records, without the number of ranks


def test_a_part_of_sequences_is_padded_as_the_whole(tmp_path: Path) -> None:
    whole: Any = Sequences(sequences(8, per_step=True))
    Configuration("sequences", "raw", batch_size=4).write(tmp_path / "raw.toml")
    part = torch.utils.data.Subset(whole, range(8))
    with etl.from_config(tmp_path / "raw.toml", source=part) as loaded:
        found = bits(loaded)
    with etl.from_config(tmp_path / "raw.toml", source=whole) as loaded:
        assert found == bits(loaded)


@pytest.mark.usefixtures("torch_threads")
def test_torch_gets_the_threads_that_the_loader_was_tuned_beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration(settings={"compute_threads": 3}).write("photos.toml")
    torch.set_num_threads(1)
    etl.from_config("photos.toml", threads=False)
    assert torch.get_num_threads() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("etl.runtime.resources.cgroup_quota", lambda: None)
    etl.from_config("photos.toml")
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("torch_threads")
def test_ranks_of_torchrun_share_its_cpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))  # torchrun binds none of its ranks
    monkeypatch.setattr("etl.runtime.resources.cgroup_quota", lambda: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    configuration(settings={"compute_threads": 3}).write("photos.toml")
    etl.from_config("photos.toml")
    assert torch.get_num_threads() == 2
    configuration("async-raw").write("photos.toml")
    with etl.from_config("photos.toml") as loaded:
        assert loaded.threads == 2
    assert etl.runtime.ThreadPolicy(loaders=1).compute == 1
    with user_module(folder, "loaders_of_a_rank", "def load(cpus, workers):\n    return [(cpus, workers)]\n"):
        configuration("loaders_of_a_rank:load").write("own.toml")
        assert etl.from_config("own.toml") == [(2, 2)]


def test_torch_is_loaded_only_to_set_its_threads(folder: Path) -> None:
    configuration("async-raw").write("photos.toml")
    program = "import sys, etl; [*etl.from_config('photos.toml')]; print('torch' in sys.modules)"
    assert output_of("-c", program) == "False\n"


def test_a_missing_store_is_an_error_with_the_command_that_writes_it(folder: Path) -> None:
    configuration("presaved", store="photos.store").write("photos.toml")
    with pytest.raises(
        presave.StoreError,
        match=r"photos.toml: \[store\] path: there is no store at photos.store; .*`etl presave --config photos.toml`",
    ):
        etl.from_config("photos.toml")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"stage": "decode"}, "was written after stage 'resize'.*goes on after 'decode'"),
        ({"decoder": "turbo"}, "was written after stage 'resize' of pipeline"),
        ({"stage": "resiz"}, r"\[settings\] stage: the pipeline has no stage 'resiz'; it has decode, resize"),
    ],
    ids=str,
)
def test_a_store_of_another_pipeline_is_refused(settings: dict[str, Any], said: str, folder: Path) -> None:
    presave.write("s", etl.records(etl.ImageFolder("photos"), etl.image_pipeline(SIZE).until("resize"))).close()
    configuration("presaved", store="s", settings=settings).write("photos.toml")
    with pytest.raises(ValueError, match=f"photos.toml: .*{said}"):
        etl.from_config("photos.toml")


def test_a_store_of_other_records_is_refused(folder: Path) -> None:
    some = [etl.ImageFolder("photos")[index] for index in range(8)]
    pipeline = etl.image_pipeline(SIZE)
    presave.write("s", etl.records(some, pipeline.until("resize"))).close()
    configuration("presaved", store="s").write("photos.toml")
    with pytest.raises(ValueError, match="s was written from 8 records, but the source has 40"):
        etl.from_config("photos.toml")
    with etl.from_config("photos.toml", source=some) as loaded:  # the stages are then those of records as they are
        assert sum(batch.records for batch in loaded) == 8


def test_a_store_that_left_records_out_is_that_of_its_source_after_a_conversion(folder: Path) -> None:
    some = [etl.ImageFolder("photos")[index] for index in range(8)]
    some[3] = {**some[3], "features": np.zeros(9, np.uint8)}  # no image
    presave.write("s", etl.records(some, etl.image_pipeline(SIZE).until("resize")), on_error="skip").close()
    presave.convert("s", "t", format="hdf5").close()
    for store in ("s", "t"):
        configuration("presaved", store=store).write(f"{store}.toml")
        with etl.from_config(f"{store}.toml", source=some) as loaded:
            assert sum(batch.records for batch in loaded) == 7


def test_other_records_and_their_store_can_be_given(folder: Path) -> None:
    source, pipeline = etl.ImageFolder("photos"), etl.image_pipeline(SIZE)
    configuration("presaved", store="nowhere").write("photos.toml")
    with presave.write("other", etl.records(source, pipeline.until("resize")), format="pickle") as store:
        pass
    with pytest.raises(presave.StoreError, match="trusted=True"):
        etl.from_config("photos.toml", store="other")
    with presave.open_store("other", trusted=True) as store:
        with etl.from_config("photos.toml", source=folder / "photos", store=store) as loaded:
            assert bits(loaded) == bits(etl.RawIterator(source, pipeline, **ORDER))
        assert len(store[0]["features"]) == SIZE  # open still


def test_a_store_that_the_strategy_does_not_take_is_refused(folder: Path) -> None:
    pipeline = etl.image_pipeline(SIZE)
    configuration("async-raw").write("photos.toml")
    configuration("my_loaders:by_path").write("mine.toml")
    with presave.write("s", etl.records(etl.ImageFolder("photos"), pipeline.until("resize"))) as store:
        with pytest.raises(ValueError, match=r"photos.toml: async-raw reads no store; leave out `store`"):
            etl.from_config("photos.toml", store=store)
        with pytest.raises(ValueError, match=r"mine.toml: my_loaders:by_path takes the path of a folder as `store`"):
            etl.from_config("mine.toml", store=store)


def test_the_store_is_closed_with_the_iterator(folder: Path) -> None:
    source, pipeline = etl.ImageFolder("photos"), etl.image_pipeline(SIZE)
    presave.write("s", etl.records(source, pipeline.until("resize"))).close()
    configuration("async-presaved", store="s").write("photos.toml")
    with etl.from_config("photos.toml") as loaded:
        list(loaded)
        assert open_files_below((folder / "s").resolve())
    del loaded
    assert not open_files_below((folder / "s").resolve())


def test_a_loader_of_the_user_is_called_with_its_task_and_settings(folder: Path) -> None:
    with user_module(folder, "my_loaders", LOADERS):
        file = Configuration("photos", "my_loaders:listed", batch_size=8, seed=3, settings={"window": 4})
        file.write("photos.toml")
        loaded = etl.from_config("photos.toml", rank=1, world_size=2)
        asked = sys.modules["my_loaders"].listed.asked
    assert isinstance(loaded, list)
    assert asked == {"batch_size": 8, "seed": 3, "dtype": "float32", "records": 40, "rank": 1, "size": 2}
    assert [window for _, window in loaded] == [4, 4, 4]


def test_a_loader_that_reads_files_by_itself_gets_their_path(folder: Path) -> None:
    with user_module(folder, "my_loaders", LOADERS):
        configuration("my_loaders:by_path").write("photos.toml")
        assert etl.from_config("photos.toml") == [(str(folder / "photos"), 4)]
        with pytest.raises(ValueError, match=r"there is no path"):
            etl.from_config("photos.toml", source=[{"features": np.zeros(3)}])


def test_a_loader_that_prepares_files_gets_the_folder_of_them(folder: Path) -> None:
    with user_module(folder, "my_loaders", LOADERS):
        configuration("my_loaders:Prepared", store="files").write("photos.toml")
        with pytest.raises(ValueError, match=r"\[store\] path: there is no folder files; .*`etl presave --config"):
            etl.from_config("photos.toml")
        Configuration.read("photos.toml").prepare()
        (labels,) = etl.from_config("photos.toml")
        with pytest.raises(ValueError, match="files exists already"):
            Configuration.read("photos.toml").prepare()
        configuration("my_loaders:Prepared").write("photos.toml")
        with pytest.raises(ValueError, match=r"photos.toml: .*\[store\]"):
            etl.from_config("photos.toml")
    assert len(labels) == 40
    assert [each.name for each in (folder / "files").iterdir()] == ["labels.npy"]


def test_a_missing_loader_is_an_error_that_names_the_file(folder: Path) -> None:
    configuration("nowhere_to_find:load").write("photos.toml")
    with pytest.raises(ValueError, match=r"photos.toml: \[loader\] strategy nowhere_to_find:load: ModuleNotFoundError"):
        etl.from_config("photos.toml")


@pytest.mark.usefixtures("torch_threads")
def test_the_guide_works(folder: Path) -> None:
    (file, _) = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    ((name, script),) = re.findall(r"```python\n# (\S+)\n(.*?)```", GUIDE, re.DOTALL)
    (command,) = re.findall(r"```console\netl (presave .*?)\n```", GUIDE)
    (folder / "photos.toml").write_text(file)
    assert main(command.split()) == 0
    exec(compile(script, name, "exec"), {})  # noqa: S102 - the very text that users copy
    assert torch.get_num_threads() == 1


def test_the_guide_has_every_key() -> None:
    from etl.configuration_file import KEYS

    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", GUIDE, re.MULTILINE))
    for table, keys in KEYS.items():
        assert set(keys) <= set(re.findall(r"`(\w+)`", rows[table])), table
