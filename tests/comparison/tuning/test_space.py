"""Which configurations of a strategy are tried."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from etl.comparison.request.candidates import Candidate, CpuSplit
from etl.comparison.request.settings import Settings
from etl.comparison.run.workload import Workload
from etl.comparison.tuning.space import Dimension, Space, space_of
from etl.stages import Decode
from tests.comparison_workloads import TRIED, make_workload


def workload_of(folder: Path, *strategies: str) -> Workload:
    return make_workload(folder, 64, strategies=strategies, batch_size=8)


def names_of(space: Space) -> list[tuple[str, ...]]:
    return [each.names for each in space.dimensions]


def test_each_strategy_varies_what_it_has(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, "raw", "async-raw", "presaved", "async-presaved")
    raw, ahead, saved, saved_ahead = [space_of(workload, each, False) for each in workload.candidates()]
    assert names_of(raw) == [("compute_threads",)]
    assert names_of(ahead) == [("compute_threads", "loading_threads"), ("workers",), ("prefetch_size",)]
    assert names_of(saved) == [("compute_threads",), ("format", "compression")]
    assert names_of(saved_ahead) == names_of(ahead) + names_of(saved)[1:]
    assert saved_ahead.given["format"] == "npy"
    assert len(saved_ahead) > 100


def test_all_splits_are_tried_with_shared_cpus_among_them(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, "async-raw")
    space = space_of(workload, workload.candidates()[0], False)
    candidates = [space.candidate(each) for each in space.neighbours({})]
    threads = {workload.threads(each) for each in candidates}
    assert {CpuSplit(1, 1), CpuSplit(2, 2), CpuSplit(2, 1)} <= threads | {workload.threads(space.candidate({}))}


def test_decoders_are_varied_unless_pixels_must_be_the_same(photographs: Path) -> None:
    workload = Workload(Settings(source=str(photographs), strategies=("raw",)), photographs / "work", 2)
    assert ("decoder",) in names_of(space_of(workload, workload.candidates()[0], False))
    assert ("decoder",) not in names_of(space_of(workload, workload.candidates()[0], True))


@pytest.mark.parametrize(("size", "are_scaled"), [(16, True), (32, False)])
def test_decoders_that_scale_are_tried_where_photographs_are_large(
    photographs: Path, size: int, are_scaled: bool
) -> None:
    settings = Settings(source=str(photographs), strategies=("raw",), size=size)
    workload = Workload(settings, photographs / "work", 2)
    space = space_of(workload, workload.candidates()[0], False)
    (decoders,) = (each.values for each in space.dimensions if each.names == ("decoder",))
    assert {("pillow-scaled",), ("turbo-scaled",)} <= set(decoders) if are_scaled else len(decoders) == 2
    scaled = workload.decoded_by("turbo-scaled").stages[0]
    assert scaled == Decode("turbo", (size, size))


def test_a_photograph_that_cannot_be_opened_adds_no_decoders(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = Workload(Settings(source=str(photographs), strategies=("raw",), size=16), photographs / "work", 2)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    (decoders,) = (
        each.values
        for each in space_of(workload, workload.candidates()[0], False).dimensions
        if "decoder" in each.names
    )
    assert len(decoders) == 2


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for number in range(4):
        path = tmp_path / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (40, 40), (number, 0, 0)).save(path)
    return tmp_path


def loader_space(folder: Path, settings: tuple[tuple[str, object], ...] = ()) -> Space:
    workload = workload_of(folder, "mine=my_loaders:load")
    candidate = Candidate("my_loaders:load", label="mine", settings=settings)
    workload.tried[candidate.origin] = TRIED
    return space_of(workload, candidate, False)


def test_a_loader_of_the_user_varies_what_it_declares_and_the_compute_threads_beside_it(tmp_path: Path) -> None:
    space = loader_space(tmp_path)
    assert names_of(space) == [("num_workers",), ("prefetch_factor",), ("persistent_workers",), ("compute_threads",)]
    assert space.given["num_workers"] == 0


def test_configurations_that_differ_without_effect_are_one(tmp_path: Path) -> None:
    space = loader_space(tmp_path)
    assert space.changes({**space.given, "persistent_workers": True}) == {}
    # Without workers two numbers of compute threads; with one or two of them also two factors, and kept or not.
    assert len(space) == 2 * (1 + 2 * 2 * 2)
    chosen = space.first_choice(100, seed=3)
    assert len(chosen) == len({tuple(sorted(each.items())) for each in chosen}) == len(space)


def test_settings_that_were_given_are_the_first_configuration(tmp_path: Path) -> None:
    space = loader_space(tmp_path, (("num_workers", 2),))
    assert space.given["num_workers"] == 2
    assert space.candidate({}).settings == (("num_workers", 2),)
    assert space.first_choice(5, seed=0)[0] == {}


def test_the_configuration_of_experts_and_what_is_near_it_come_next(tmp_path: Path) -> None:
    space = loader_space(tmp_path)
    chosen = space.first_choice(8, seed=0)
    assert chosen[:2] == [{}, {"num_workers": 2, "persistent_workers": True}]
    near = list(space.neighbours(chosen[1]))  # one of them has no workers, which is the given configuration
    assert all(each in near for each in chosen[2:5])


def test_experts_let_as_many_threads_load_as_there_are_cpus(tmp_path: Path) -> None:
    workload = workload_of(tmp_path, "async-raw", "raw")
    ahead, raw = (space_of(workload, each, False) for each in workload.candidates())
    assert ahead.expert() == {"compute_threads": 2, "loading_threads": 2}
    assert raw.expert() == {}


def test_neighbours_differ_in_one_setting(tmp_path: Path) -> None:
    space = loader_space(tmp_path)
    changes = {"num_workers": 1}
    for each in space.neighbours(changes):
        differing = {name for name in {**each, **changes} if each.get(name) != changes.get(name)}
        assert len(differing) == 1


def test_what_is_not_allowed_is_not_tried() -> None:
    dimensions = [Dimension(("format",), (("npy",), ("hdf5",), ("torch",)))]
    space = Space(Candidate("presaved", "npy", "resize"), dimensions, 2)
    chosen = space.first_choice(10, 0, lambda each: each.get("format") != "torch")
    assert {each.get("format", "npy") for each in chosen} == {"npy", "hdf5"}
