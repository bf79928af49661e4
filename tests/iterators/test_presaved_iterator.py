"""PresavedIterator: which stores fit a pipeline, who closes them, and that they are only read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import etl
import presave
from etl.sources import Record, RecordError
from tests.every_strategy import bits
from tests.few_descriptors import few_descriptors
from tests.readers import open_files_below

PIPELINE = etl.image_pipeline(8)


def write(path: Path, photographs: Path, pipeline: etl.Pipeline, format: str = "npy") -> presave.Store:
    records = etl.records(etl.ImageFolder(photographs), pipeline)
    return presave.write(path, records, format=format, shard_nbytes=8 * 8 * 3 * 9)


@pytest.fixture(scope="module")
def store(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    with write(tmp_path_factory.mktemp("data") / "store", photographs, PIPELINE.until("resize")) as opened:
        yield opened


def test_a_store_of_another_pipeline_is_refused_and_both_are_named(store: presave.Store) -> None:
    other = etl.image_pipeline(9)
    with pytest.raises(ValueError, match=r"was written after stage 'resize' of pipeline .*or presave again") as caught:
        etl.PresavedIterator(store, other.after("resize"))
    message = str(caught.value)
    assert str(store.path) in message
    assert PIPELINE.until("resize").fingerprint in message
    assert other.until("resize").fingerprint in message
    assert "(resize.height was 8 and is 9; resize.width was 8 and is 9)" in message


@pytest.mark.parametrize("stage", ["nothing", "decode", "channels_first", "normalise"])
def test_a_store_split_after_another_stage_is_refused(store: presave.Store, stage: str) -> None:
    rest = PIPELINE if stage == "nothing" else PIPELINE.after(stage)
    with pytest.raises(ValueError, match=f"after stage 'resize' .* this pipeline goes on after '.*{stage}'"):
        etl.PresavedIterator(store, rest)


@pytest.mark.parametrize("load", [etl.RawIterator, etl.records])
def test_a_store_of_another_pipeline_is_refused_as_a_source_too(store: presave.Store, load: Any) -> None:
    torch = pytest.importorskip("torch")
    for source in (store, torch.utils.data.Subset(store, [0, 1])):
        load(source, PIPELINE.after("resize"))
        with pytest.raises(ValueError, match=r"was written after stage 'resize' .*\(resize.height was 8 and is 9; "):
            load(source, etl.image_pipeline(9).after("resize"))


def test_a_part_of_a_store_is_a_source_of_raw_iterator_as_the_error_says(store: presave.Store) -> None:
    torch = pytest.importorskip("torch")
    rest, chosen = PIPELINE.after("resize"), [30, 2, 17]
    held_out = torch.utils.data.Subset(store, chosen)
    with pytest.raises(TypeError, match=r"a Subset is not a store: pass it to etl\.RawIterator"):
        etl.PresavedIterator(held_out, rest)
    (whole,) = etl.PresavedIterator(store, rest, batch_size=40)
    (part,) = etl.RawIterator(held_out, rest)
    np.testing.assert_array_equal(part.features, whole.features[chosen])
    np.testing.assert_array_equal(part.labels, whole.labels[chosen])


def test_an_empty_pipeline_gives_what_is_stored(store: presave.Store) -> None:
    (batch,) = etl.PresavedIterator(store, etl.Pipeline([]), batch_size=40)
    np.testing.assert_array_equal(batch.features, store.gather(range(40))["features"])


def test_a_store_that_no_pipeline_wrote_takes_any_whole_pipeline(tmp_path: Path) -> None:
    records = [{"features": np.full((4, 4), number, np.uint8), "label": number} for number in range(5)]
    with presave.write(tmp_path / "store", records) as plain:
        (batch,) = etl.PresavedIterator(plain, etl.digits_pipeline(), batch_size=5)
        assert batch.features.shape == (5, 1, 4, 4)
        with pytest.raises(ValueError, match="goes on after 'channels_first'"):
            etl.PresavedIterator(plain, etl.digits_pipeline().after("channels_first"))


@pytest.mark.parametrize("make_path", [str, Path])
def test_a_path_is_opened_and_closed_with_the_iterator(photographs: Path, tmp_path: Path, make_path: type) -> None:
    path = tmp_path / "store"
    write(path, photographs, PIPELINE.until("resize"), "hdf5").close()
    with etl.PresavedIterator(make_path(path), PIPELINE.after("resize")) as iterator:
        assert len(list(iterator)) == 2
        assert open_files_below(path)
    assert open_files_below(path) == []
    with pytest.raises(RuntimeError, match="PresavedIterator is closed"):
        iter(iterator)


def test_a_store_that_was_given_stays_open(store: presave.Store) -> None:
    with etl.PresavedIterator(store, PIPELINE.after("resize")) as iterator:
        list(iterator)
    assert len(store[0]["features"]) == 8


def test_closing_a_shard_leaves_the_store_to_the_others(photographs: Path, tmp_path: Path) -> None:
    write(tmp_path / "store", photographs, PIPELINE.until("resize")).close()
    with etl.PresavedIterator(tmp_path / "store", PIPELINE.after("resize"), 10) as whole:
        shards = [whole.shard(rank, 2) for rank in range(2)]
        shards[0].close()
        assert sum(batch.records for batch in shards[1]) == 20
        assert sum(batch.records for batch in whole) == 40


@pytest.mark.parametrize("format", presave.formats())
def test_shards_in_two_threads_at_once_give_what_one_gives_alone(
    photographs: Path, tmp_path: Path, format: str
) -> None:
    together = threading.Barrier(1)

    def meet(record: Record) -> Record:
        together.wait(20)  # both have gathered their batch before either finishes a record
        return record

    pipeline = etl.Pipeline([*PIPELINE.until("resize").stages, meet, *PIPELINE.after("resize").stages])
    with write(tmp_path / "store", photographs, pipeline.until("resize"), format) as store:
        whole = etl.PresavedIterator(store, pipeline.after("resize"), 3, shuffle=True)
        assert len(list(whole)) == 14  # what it has allocated must not be shared
        parts = [whole.shard(rank, 2) for rank in range(2)]
        expected = [[batch.features.tobytes() for batch in whole.shard(rank, 2)] for rank in range(2)]
        found: list[list[bytes]] = [[], []]

        def load(rank: int) -> None:
            found[rank] = [batch.features.tobytes() for batch in parts[rank]]

        together = threading.Barrier(2)
        threads = [threading.Thread(target=load, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert found == expected


@pytest.mark.parametrize("cache", [None, "ram"])
def test_the_rest_of_the_pipeline_is_done_once_in_each_epoch_and_never_in_the_store(
    photographs: Path, tmp_path: Path, cache: str | None
) -> None:
    def inverted(record: Record) -> Record:
        np.subtract(255, record["features"], out=record["features"])  # in place, though it should not be
        return record

    pipeline = etl.Pipeline([*PIPELINE.until("resize").stages, inverted])
    write(tmp_path / "store", photographs, pipeline.until("resize")).close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    store = presave.open_store(tmp_path / "store", cache=cache)  # type: ignore[arg-type]
    stored = store.gather(range(40))["features"].copy()
    iterator = etl.PresavedIterator(store, pipeline.after("resize"), batch_size=16)
    for _ in range(3):
        np.testing.assert_array_equal(np.concatenate([batch.features for batch in iterator]), 255 - stored)
    np.testing.assert_array_equal(store.gather(range(40))["features"], stored)
    assert {path.name: path.read_bytes() for path in (tmp_path / "store").iterdir()} == before
    store.close()


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_a_stage_of_the_users_own_gets_all_fields_as_in_raw(workers: str, tmp_path: Path) -> None:
    def crop(record: Record) -> Record:
        first = record["box"][0]
        factor = record.get("weight", 1.0) * record["outline"].sum()
        return {**record, "features": record["features"][first : first + 4] * factor}

    random = np.random.default_rng(0)
    records = [
        {
            "features": random.standard_normal(10).astype(np.float32),
            "label": number,
            "box": random.integers(0, 6, 2),
            "weight": np.float32(number),
            "outline": np.ones(1 + number % 3),
        }
        for number in range(12)
    ]
    pipeline = etl.Pipeline([crop])
    raw = etl.RawIterator(records, pipeline, 5, shuffle=True)
    with (
        presave.write(tmp_path / "store", records, ragged=["outline"]) as store,
        etl.AsyncIterator(etl.PresavedIterator(store, pipeline, 5, shuffle=True), workers=workers) as saved,
    ):
        assert bits(saved) == bits(raw)


def test_a_store_without_features_is_an_error_that_names_its_fields(tmp_path: Path) -> None:
    with (
        presave.write(tmp_path / "store", [{"box": np.zeros(2), "label": 1}]) as store,
        pytest.raises(RecordError, match=r"it has no field 'features'; it has .*'box'"),
    ):
        list(etl.PresavedIterator(store, etl.Pipeline([])))


def test_a_record_that_fails_is_named_with_its_store(store: presave.Store, photographs: Path, tmp_path: Path) -> None:
    def picky(record: Record) -> Record:
        if record["label"] == 3:
            raise ValueError("no astronauts, please")
        return record

    pipeline = etl.Pipeline([*PIPELINE.until("resize").stages, picky])
    with pytest.raises(RecordError, match=r"record 12 of .*store: failed at stage 'picky': no astronauts"):
        list(etl.PresavedIterator(store, pipeline.after("resize"), 5))


@pytest.mark.parametrize(("workers", "options"), [("thread", {"compression": "gzip"}), ("process", {})])
def test_a_store_of_many_shards_leaves_descriptors_for_the_workers(
    workers: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    records = [{"features": np.full(4, index), "label": index} for index in range(200)]
    with (
        presave.write(tmp_path / "s", records, format="hdf5", shard_nbytes=1, options=options) as store,
        few_descriptors(120),
        etl.AsyncIterator(etl.PresavedIterator(store, etl.Pipeline([]), 50, shuffle=True), workers=workers) as batches,
    ):
        for _ in range(2):
            assert sorted(label for batch in batches for label in batch.labels.tolist()) == list(range(200))


@pytest.mark.parametrize("format", presave.formats())
def test_a_stage_gets_large_rows_where_they_lie_in_a_memory_map(tmp_path: Path, format: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 40, 36, 3), dtype=np.uint8)
    seen: list[np.ndarray] = []

    def look(record: Record) -> Record:
        seen.append(record["features"])
        return {**record, "features": record["features"][:8, :8].copy()}

    records = [{"features": each, "label": number} for number, each in enumerate(pixels)]
    pipeline = etl.Pipeline([look])
    split = pipeline.split("read")
    with presave.write(
        tmp_path / "store", etl.records(records, split[0]), format=format, shard_nbytes=5 * 4320
    ) as store:
        assert len(store.manifest.shards) > 1 or not store.is_mapped
        batches = list(etl.PresavedIterator(store, split[1], 6, shuffle=True))
        for batch in batches:
            np.testing.assert_array_equal(batch.features, pixels[batch.labels][:, :8, :8])
        for row in seen[2:]:  # the first one was loaded to plan the batch, and is kept
            assert row.flags.writeable is not store.is_mapped
