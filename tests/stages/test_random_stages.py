"""Random stages: draws depend on record and epoch, not on the iterator, and have the right distribution."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

import etl
import presave
from etl.images import jpeg_crop
from etl.iterators import BatchIterator
from etl.sources import RecordError
from etl.stages import (
    ChannelsFirst,
    ColourJitter,
    Decode,
    Normalise,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    RecordRng,
    Resize,
)
from etl.stages.rng import LoaderRng

AUGMENT = etl.Pipeline(
    [
        Decode(),
        Resize(16, 16),
        RandomResizedCrop(12, 12),
        RandomCrop(10, 10, padding=2),
        RandomFlip(),
        ColourJitter(),
        ChannelsFirst(),
        Normalise(),
    ]
)
PIXELS = np.random.default_rng(0).integers(0, 256, (16, 12, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def store(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[presave.Store]:
    records = etl.records(etl.ImageFolder(photographs), AUGMENT.until("resize"))
    with presave.write(tmp_path_factory.mktemp("data") / "store", records) as written:
        yield written


def by_record(iterator: BatchIterator) -> dict[int, bytes]:
    """The augmented features of each record of an epoch that is not shuffled."""
    features = [each.tobytes() for batch in iterator for each in batch.features]
    return dict(enumerate(features))


def make_raw(photographs: Path, batch_size: int = 7, **options: Any) -> etl.RawIterator:
    return etl.RawIterator(etl.ImageFolder(photographs), AUGMENT, batch_size, seed=5, **options)


def test_every_strategy_augments_a_record_alike_in_an_epoch_and_otherwise_in_the_next(
    photographs: Path, store: presave.Store
) -> None:
    def presaved(batch_size: int) -> etl.PresavedIterator:
        return etl.PresavedIterator(store, AUGMENT.after("resize"), batch_size, seed=5)

    raw = make_raw(photographs)
    expected = [by_record(raw) for _ in range(3)]
    assert len(set().union(*(epoch.values() for epoch in expected))) == 3 * 40
    others: list[BatchIterator] = [
        make_raw(photographs, 1),
        make_raw(photographs, 40),
        presaved(9),
        etl.AsyncIterator(make_raw(photographs), 3, threads=4),
        etl.AsyncIterator(presaved(5), 2, threads=3),
    ]
    for iterator in others:
        assert [by_record(iterator) for _ in range(3)] == expected


def test_shuffling_sharding_and_resuming_change_no_draw(photographs: Path) -> None:
    labels = etl.ImageFolder(photographs).labels
    numbered = [{"features": PIXELS, "label": number} for number in range(len(labels))]
    pipeline = etl.Pipeline([RandomCrop(5, 5), ColourJitter()])

    def make(**options: Any) -> etl.RawIterator:
        return etl.RawIterator(numbered, pipeline, 4, **options)

    def found(batches: Iterator[etl.Batch] | BatchIterator) -> dict[int, bytes]:
        return {int(label): each.tobytes() for batch in batches for each, label in zip(*batch, strict=True)}

    expected = found(make())
    assert found(make(shuffle=True)) == expected
    shards = [make(shuffle=True).shard(rank, 3) for rank in range(3)]
    assert {number: each for shard in shards for number, each in found(shard).items()} == expected
    for threads in (1, 3):
        first, second = make(shuffle=True), etl.AsyncIterator(make(shuffle=True), 2, threads=threads)
        seen = found(islice(first, 4))
        second.load_state_dict(first.state_dict())
        assert {**seen, **found(second)} == expected
        assert len(seen) == 16


def test_another_seed_and_another_place_draw_otherwise() -> None:
    draws = [RecordRng(seed, 0, 0).generator(place).random() for seed in range(3) for place in range(3)]
    assert len(set(draws)) == 9
    first, second = RandomFlip(), RandomFlip(0.4999)
    object.__setattr__(second, "name", "again")  # a pipeline is split by name
    twice = etl.Pipeline([first, second])
    turned = {
        twice({"features": np.arange(2)[None]}, RecordRng(0, 0, record))["features"][0, 0] for record in range(20)
    }
    assert turned == {0, 1}  # two draws that were the same would cancel out


def test_draws_are_what_they_were_when_runs_were_begun() -> None:
    # A change would continue a training from its checkpoint with another augmentation.
    assert RecordRng(1, 2, 3).generator(4).bit_generator.random_raw(2).tolist() == [
        479415053854723494,
        8851612858779230248,
    ]


NUMBERS = st.integers(0, 2**64 - 1)


@given(NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 99), st.integers(0, 5)), max_size=5))
def test_a_loader_draws_the_same_with_one_generator(seed: int, asked: list[tuple[int, int, int, int]]) -> None:
    loader = pickle.loads(pickle.dumps(LoaderRng(seed)))
    for epoch, record, place, drawn in asked:
        loader.epoch, loader.record = epoch, record
        one, other = loader.generator(place), RecordRng(seed, epoch, record).generator(place)
        # Of 32 bits, half of what the generator draws is left for the next.
        assert (
            one.integers(1000, size=drawn, dtype=np.uint32).tolist()
            == other.integers(1000, size=drawn, dtype=np.uint32).tolist()
        )
        assert (one.random(), int(one.integers(7))) == (other.random(), int(other.integers(7)))


def test_threads_of_a_loader_do_not_share_a_generator() -> None:
    loader = LoaderRng(1)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(loader.generator, 0).result()
    assert other is not loader.generator(0)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 1.0])
def test_images_are_mirrored_as_often_as_asked_for(probability: float) -> None:
    pipeline = etl.Pipeline([RandomFlip(probability)])
    pixels = np.arange(6).reshape(2, 3)
    mirrored = 0
    for record in range(2000):
        found = pipeline({"features": pixels}, RecordRng(0, 0, record))["features"]
        mirrored += found[0, 0] == 2
        np.testing.assert_array_equal(found, pixels[:, ::-1] if found[0, 0] == 2 else pixels)
    assert abs(mirrored / 2000 - probability) < 0.05


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crops_come_from_every_place_about_as_often(padding: int) -> None:
    pixels = np.arange(1, 31, dtype=np.uint8).reshape(5, 6)
    padded = np.pad(pixels, padding)
    stage = RandomCrop(4, 3, padding)
    places = {
        padded[row : row + 4, column : column + 3].tobytes(): 0
        for row in range(padded.shape[0] - 3)
        for column in range(padded.shape[1] - 2)
    }
    windows = (padded.shape[0] - 3) * (padded.shape[1] - 2)
    for record in range(60 * windows):
        crop = stage({"features": pixels}, RecordRng(0, 0, record).generator(0))["features"]
        assert crop.shape == (4, 3)
        places[crop.tobytes()] += 1  # raises where it is no part of the padded image
    counts = [count for window, count in places.items() if any(window)]
    assert min(counts) > 20
    assert max(counts) < 120


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (50, 50), (7, 300), (1, 1)])
def test_resized_crops_keep_to_their_areas_and_proportions(height: int, width: int) -> None:
    stage = RandomResizedCrop(8, 8, scale=(0.2, 0.7), ratio=(0.5, 1.5))
    shares = []
    for record in range(400):
        row, column, rows, columns = stage.draw(height, width, RecordRng(0, 0, record).generator(0))
        assert 0 <= row <= row + rows <= height
        assert 0 <= column <= column + columns <= width
        assert rows > 0
        assert columns > 0
        if min(height, width) >= 40:  # sides are rounded, and a thin image has only its middle
            assert 0.47 <= columns / rows <= 1.6
            shares.append(rows * columns / (height * width))
    if shares:
        assert min(shares) < 0.25
        assert max(shares) > 0.6
        assert 0.18 < min(shares) <= max(shares) < 0.72


@pytest.mark.parametrize(("resizer", "decoder"), [("pillow", "pillow"), ("opencv", "turbo")])
def test_a_resized_crop_of_everything_is_a_resize(photographs: Path, resizer: str, decoder: str) -> None:
    record = etl.ImageFolder(photographs)[0]
    pixels = Decode(decoder)(record)["features"]
    ratio = pixels.shape[1] / pixels.shape[0]
    whole = RandomResizedCrop(9, 11, resizer, scale=(1, 1), ratio=(ratio, ratio))
    found = etl.Pipeline([Decode(decoder), whole])(record, RecordRng(0, 0, 0))["features"]
    np.testing.assert_array_equal(found, Resize(9, 11, resizer)({"features": pixels})["features"])


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("changed", ["brightness", "contrast", "saturation"])
def test_jitter_changes_each_property_as_pillow_does(changed: str, strength: float) -> None:
    names = ["brightness", "contrast", "saturation"]
    enhance = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color][names.index(changed)]
    stage = ColourJitter(**{**dict.fromkeys(names, 0.0), changed: strength})
    for record in range(10):
        rng = RecordRng(0, 0, record)
        factor = 1 + strength * rng.generator(0).uniform(-1, 1, 3)[names.index(changed)]
        found = stage({"features": PIXELS}, rng.generator(0))["features"]
        assert (found.dtype, found.shape) == (np.uint8, PIXELS.shape)
        expected = np.asarray(enhance(Image.fromarray(PIXELS)).enhance(factor))
        assert np.abs(found.astype(int) - expected).max() <= (2 if strength else 0)  # Pillow cuts fractions off


def test_a_record_is_not_changed_by_what_is_drawn_for_it() -> None:
    before = PIXELS.copy()
    for stage in (RandomCrop(4, 4, 1), RandomFlip(1.0), ColourJitter(), RandomResizedCrop(4, 4)):
        stage({"features": PIXELS}, RecordRng(0, 0, 0).generator(0))
        np.testing.assert_array_equal(PIXELS, before)


def test_an_image_smaller_than_its_crop_is_an_error_that_gives_both_sizes() -> None:
    iterator = etl.RawIterator([{"features": PIXELS, "label": 0}], etl.Pipeline([RandomCrop(20, 8, padding=1)]))
    message = "failed at stage 'random_crop': an image of 16 x 12 with padding 1 is smaller than the crop, 20 x 8"
    with pytest.raises(RecordError, match=message):
        list(iterator)


@pytest.mark.parametrize("stage", [RandomFlip(0.0), RandomCrop(4, 4)])
def test_a_mask_beside_the_image_is_an_error_since_it_would_stay_as_it_is(stage: Any) -> None:
    mask, boxes = PIXELS[:, :, 0], np.ones((3, 4))
    message = rf"record 0 of list: failed at stage '{stage.name}': label has shape \(16, 12\), as large as the image"
    for label in (mask, (boxes, mask)):
        with pytest.raises(RecordError, match=message):
            list(etl.RawIterator([{"features": PIXELS, "label": label}], etl.Pipeline([stage]), 1))
    assert len(list(etl.RawIterator([{"features": PIXELS, "label": boxes}], etl.Pipeline([stage]), 1))) == 1


def test_features_that_have_no_colours_are_refused_by_jitter() -> None:
    iterator = etl.RawIterator([{"features": np.ones((4, 4)), "label": 0}], etl.Pipeline([ColourJitter()]))
    with pytest.raises(RecordError, match=r"'colour_jitter': features are float64 of shape \(4, 4\), not uint8 of"):
        list(iterator)


def test_a_random_pipeline_that_is_called_by_itself_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg_crop, "find_library", object)  # with it, "decode" draws the crop of the stage after it
    for pipeline in (AUGMENT, etl.Pipeline([Decode("turbo"), RandomResizedCrop(8, 8)])):
        with pytest.raises(ValueError, match="stage 'random_resized_crop' is random, which needs a seed, an epoch"):
            pipeline({"features": PIXELS})


def test_random_stages_are_not_presaved_and_what_comes_before_them_is(photographs: Path) -> None:
    source = etl.ImageFolder(photographs)
    for last in ("random_resized_crop", "normalise"):
        with pytest.raises(
            ValueError, match="Split the pipeline before 'random_resized_crop', and give the rest to the"
        ):
            etl.records(source, AUGMENT.until(last))
    assert len(etl.records(source, AUGMENT.until("resize"))) == 40


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandomFlip(1.5), "probability must be from 0 to 1, not 1.5"),
        (lambda: RandomCrop(0, 4), "both sides must be at least 1"),
        (lambda: RandomCrop(4, 4, -1), "padding at least 0"),
        (lambda: RandomResizedCrop(4, 0), "cannot be resized to 4 x 0"),
        (lambda: RandomResizedCrop(4, 4, "cubic"), "unknown resizer 'cubic'; known: pillow, opencv"),
        (lambda: RandomResizedCrop(4, 4, scale=(0.5, 0.2)), "scale .* must be two shares of the area"),
        (lambda: RandomResizedCrop(4, 4, ratio=(0, 1)), "ratio .* must be two numbers above 0"),
        (lambda: ColourJitter(contrast=2), "strengths must be from 0 to 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
