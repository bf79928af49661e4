"""The level at which an epoch is the same work as a reference, and every way to fall below it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from etl.comparison.judge.results import Measurements
from etl.comparison.judge.sameness import (
    MAX_CANDIDATES,
    MAX_CHECKED,
    Sameness,
    assign_groups,
    compare_epochs,
    describe_layouts,
    displacement,
    find_partners,
    is_shuffled,
    nearest_pairs,
)
from etl.comparison.request.answers import CheckedEpoch
from etl.comparison.request.candidates import Candidate
from etl.comparison.request.epoch_content import EpochContent, Signatures
from etl.measuring.arrays import digest_of, layout_of, record_digests
from etl.measuring.signatures import labels_of, signatures_of
from tests.comparison_workloads import make_measurements, make_sample, make_workload

RECORDS = 60
SOURCE = np.random.default_rng(0)
FEATURES = SOURCE.normal(size=(RECORDS, 40)).astype(np.float32)
LABELS = np.arange(RECORDS) % 5
SHUFFLED = np.random.default_rng(1).permutation(RECORDS)
NOISE = np.random.default_rng(2).normal(scale=0.01, size=FEATURES.shape).astype(np.float32)


def content(folder: Path, features: np.ndarray = FEATURES, labels: Any = LABELS) -> EpochContent:
    """Return what an epoch of one batch contains."""
    batch = (features, labels)
    path = str(folder / f"{digest_of(batch)}.npz")
    Signatures(signatures_of(batch), labels_of(batch)).save(path)
    return EpochContent([digest_of(batch)], record_digests(batch), layout_of(batch), [len(features)], path)


def compare(folder: Path, features: np.ndarray, labels: Any = LABELS) -> Sameness:
    reference = content(folder)
    epoch = EpochContent.from_json(content(folder, features, labels).to_json())
    return compare_epochs(epoch, reference, "presaved", reference.records)


def test_the_same_bytes_in_the_same_order_are_identical(tmp_path: Path) -> None:
    assert compare(tmp_path, FEATURES.copy()) == Sameness("identical", displacement=0.0)


def test_the_same_bytes_in_another_order_are_the_same_records(tmp_path: Path) -> None:
    found = compare(tmp_path, FEATURES[SHUFFLED], LABELS[SHUFFLED])
    moved = np.abs(SHUFFLED - np.arange(RECORDS)).mean()
    assert found == Sameness("same records", "the order differs from that of presaved", displacement=moved)


def test_the_same_records_in_other_batches_are_not_identical(tmp_path: Path) -> None:
    reference = content(tmp_path)
    halves = [digest_of((FEATURES[part], LABELS[part])) for part in (slice(30), slice(30, 60))]
    found = compare_epochs(replace(reference, digests=halves), reference, "raw")
    assert found == Sameness("same records", "the division into batches differs from that of raw")


def test_records_that_differ_a_little_are_close_and_their_distances_are_named(tmp_path: Path) -> None:
    found = compare(tmp_path, (FEATURES + NOISE)[SHUFFLED], LABELS[SHUFFLED].astype(np.int32))
    assert (found.level, found.reason) == ("close", "the bytes of 60 of 60 records differ")
    assert found.mean_distance is not None
    assert found.largest_distance is not None
    assert 0 < found.mean_distance <= found.largest_distance < 0.06
    assert found.displacement == np.abs(SHUFFLED - np.arange(RECORDS)).mean()


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (FEATURES + 1, LABELS, "60 of 60 records have no partner of their own within 0.06"),
        (FEATURES[:, ::-1], LABELS, "60 of 60 records have no partner of their own"),
        (FEATURES[np.r_[:59, 58]] + NOISE, LABELS[np.r_[:59, 58]], "1 of 60 records has no partner of its own"),
        (FEATURES + np.float32(0.042), LABELS, "of the records' spread apart on average"),
        (FEATURES + NOISE, LABELS[::-1].copy(), "records that look the same have other labels"),
        (FEATURES, (LABELS + 1) % 5, "the bytes of 60 of 60 records differ, and records that look the same"),
    ],
    ids=["other scale", "reversed", "one record twice", "all a little too far", "labels", "labels of equal bytes"],
)
def test_an_epoch_that_is_not_close_is_at_most_the_same_amount(
    tmp_path: Path, features: np.ndarray, labels: np.ndarray, reason: str
) -> None:
    found = compare(tmp_path, features, labels)
    assert found.level == "same amount"
    assert reason in found.reason


@pytest.mark.parametrize(
    ("features", "labels", "reason"),
    [
        (FEATURES[1:], LABELS[1:], "it yields 59 records and presaved 60"),
        (
            FEATURES.astype(np.float16),
            LABELS,
            "its records are float16 (40), int64 () and those of presaved float32 (40), int64 ()",
        ),
        (
            FEATURES[:, 1:],
            LABELS,
            "its records are float32 (39), int64 () and those of presaved float32 (40), int64 ()",
        ),
        (FEATURES, None, "its records are float32 (40) and those of presaved float32 (40), int64 ()"),
    ],
    ids=["count", "dtype", "shape", "no labels"],
)
def test_below_the_same_amount_there_is_no_level(
    tmp_path: Path, features: np.ndarray, labels: Any, reason: str
) -> None:
    assert compare(tmp_path, features, labels) == Sameness(None, reason)


def test_images_compare_whatever_the_order_of_their_axes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(20, 3, 14, 21)).astype(np.float32)
    reference, epoch = (content(tmp_path, each, LABELS[:20]) for each in (images, images.transpose(0, 2, 3, 1)))
    found = compare_epochs(epoch, reference, "raw")
    assert found.level == "close"
    assert found.largest_distance == pytest.approx(0, abs=1e-6)
    assert found.displacement is None


MINE, RAW, PLAIN = Candidate("my_loaders:mine"), Candidate("raw"), Candidate("my_loaders:plain")


def measured(
    folder: Path, contents: dict[Candidate, EpochContent], gets_all: set[Candidate], **settings: Any
) -> Measurements:
    """Return measurements with these epochs, of which the first is that of the reference; that of raw is `SHUFFLED`."""
    workload = make_workload(folder, strategies=("raw",), **settings)
    names = {each: each.name for each in contents}
    work = replace(workload.prepared(), candidates=list(contents), names=names, gets_all=gets_all)
    work = replace(work, epoch_order=SHUFFLED.tolist())
    checks = {each: CheckedEpoch(seen, None, 2.0, "weights", 8, 0, "", 100) for each, seen in contents.items()}
    samples = {each: {0: make_sample()} for each in contents}
    return make_measurements(workload, samples, work=work, checks=checks)


def test_beside_a_reference_that_cannot_be_given_fewer_records_only_amounts_and_orders_are_compared(
    tmp_path: Path,
) -> None:
    part, whole = content(tmp_path, FEATURES[:20], LABELS[:20]), content(tmp_path)
    in_order = np.argsort(SHUFFLED)
    plain = content(tmp_path, FEATURES[in_order], LABELS[in_order])
    found = measured(tmp_path, {MINE: part, RAW: whole, PLAIN: plain}, {MINE})
    assert [found.sameness(each).level for each in (RAW, PLAIN)] == ["same amount"] * 2
    assert found.sameness(RAW).reason == "only 1 batch of its epoch was compared"
    assert [found.sameness(each).is_shuffled for each in (RAW, PLAIN)] == [True, False]
    other_shape = replace(whole, layouts=[("float32", (39,)), ("int64", ())])
    assert measured(tmp_path, {MINE: part, RAW: other_shape}, {MINE}).sameness(RAW).level is None


@pytest.mark.parametrize(
    ("epoch_batches", "gets_all", "level"),
    [(1, set(), "same amount"), (1, {MINE}, "same amount"), (2, set(), None)],
    ids=["endless", "not given fewer records", "ended before"],
)
def test_an_epoch_that_is_cut_off_may_have_another_number_of_records(
    epoch_batches: int, gets_all: set[Candidate], level: str | None, tmp_path: Path
) -> None:
    contents = {MINE: content(tmp_path, FEATURES[:20], LABELS[:20]), RAW: content(tmp_path)}
    for reference, other in ((MINE, RAW), (RAW, MINE)):
        ordered = {reference: contents[reference], other: contents[other]}
        found = measured(tmp_path, ordered, gets_all, epoch_batches=epoch_batches)
        assert found.sameness(other).level == level


def test_a_record_that_comes_twice_in_a_large_epoch_is_found_although_its_substitute_is_not_checked() -> None:
    records = 2 * MAX_CHECKED
    values = np.random.default_rng(0).normal(size=(records, 20)).astype(np.float32)
    epoch = values + np.float32(0.001)
    assert not find_partners(Signatures(epoch, None), Signatures(values, None)).reason
    epoch[1] = epoch[0]  # record 1 has no partner, but only every other record is checked
    found = find_partners(Signatures(epoch, None), Signatures(values, None))
    assert found.reason == "1 of 2,048 records has more than one possible partner"


@pytest.mark.parametrize("offset", [0, 0.001])
def test_equal_records_do_not_cost_a_level_if_both_have_them_equally_often(offset: float) -> None:
    values = np.random.default_rng(0).normal(size=(300, 20)).astype(np.float32)
    values[:200] = values[0]
    epoch = (values + np.float32(offset))[::-1]
    found = find_partners(Signatures(epoch, None), Signatures(values, None))
    assert not found.reason
    assert sorted(found.positions.values()) == list(range(300))
    fewer = epoch.copy()
    fewer[-1] = values[250]
    assert "no partner of its own" in find_partners(Signatures(fewer, None), Signatures(values, None)).reason


def test_large_labels_that_differ_by_one_are_other_labels() -> None:
    values, labels = np.random.default_rng(0).standard_normal((8, 5)), 2**62 + np.arange(8)
    assert not find_partners(Signatures(values, labels), Signatures(values, labels)).reason
    found = find_partners(Signatures(values, labels[::-1]), Signatures(values, labels))
    assert found.reason == "records that look the same have other labels"


def test_records_that_are_all_equal_are_close_to_each_other_only() -> None:
    values = np.ones((300, 20), np.float32)
    assert not find_partners(Signatures(values, None), Signatures(values, None)).reason
    assert find_partners(Signatures(values + 1, None), Signatures(values, None)).reason


@pytest.mark.parametrize(
    ("epoch", "reference", "reason"),
    [
        (Signatures(np.zeros((3, 0)), None), Signatures(np.zeros((3, 0)), None), "no arrays with numbers"),
        (Signatures(np.zeros((3, 50)), None), Signatures(np.zeros((3, 65)), None), "laid out in another way"),
        (
            Signatures(np.zeros((3, 5)), None),
            Signatures(np.zeros((3, 5)), np.arange(3)),
            "only one of them has a label",
        ),
    ],
)
def test_signatures_that_cannot_be_compared_are_no_partners(
    epoch: Signatures, reference: Signatures, reason: str
) -> None:
    assert reason in find_partners(epoch, reference).reason


@settings(max_examples=40)
@given(st.data())
def test_partners_are_found_in_any_order_with_any_duplicates(data: st.DataObject) -> None:
    distinct = data.draw(st.integers(1, 12))
    which = data.draw(st.lists(st.integers(0, distinct - 1), min_size=1, max_size=40))
    order = data.draw(st.permutations(range(len(which))))
    labels = data.draw(st.sampled_from([None, np.array(which) % 3]))
    values = np.random.default_rng(0).normal(size=(distinct, 30)).astype(np.float32)[which]
    epoch = Signatures((values + np.float32(1e-4))[order], None if labels is None else labels[order])
    found = find_partners(epoch, Signatures(values, labels))
    assert not found.reason
    assert sorted(found.positions) == sorted(found.positions.values()) == list(range(len(which)))
    assert all(which[order[position]] == which[row] for row, position in found.positions.items())


@given(st.lists(st.sampled_from("abcdef"), max_size=30), st.randoms())
def test_displacement_is_the_least_that_equal_records_allow(source: list[str], random: Any) -> None:
    assert displacement(source, source) == (0.0 if source else None)
    order = random.sample(source, len(source))
    moved = displacement(order, source)
    if source:
        places = {each: [n for n, other in enumerate(source) if other == each] for each in set(source)}
        taken = {each: [n for n, other in enumerate(order) if other == each] for each in set(source)}
        # Monotone pairs have the least sum of distances.
        expected = sum(abs(a - b) for each in places for a, b in zip(places[each], taken[each], strict=True))
        assert moved == pytest.approx(expected / len(source))


def test_records_that_are_not_in_the_source_have_no_displacement() -> None:
    assert displacement(["x"], ["a"]) is None
    assert displacement(["x", "b", "a"], ["a", "b"]) == 1.0


def test_a_loader_is_shuffled_if_records_move_by_a_batch_on_average() -> None:
    source = [str(number) for number in range(100)]
    neighbours = [source[n ^ 1] for n in range(100)]
    assert displacement(neighbours, source) == 1.0
    assert is_shuffled(1.0, batch_size=2, records=100) is False
    whole = [source[n] for n in np.random.default_rng(0).permutation(100)]
    moved = displacement(whole, source)
    assert moved is not None
    assert is_shuffled(moved, batch_size=10, records=100) is True
    assert is_shuffled(moved, batch_size=20, records=100) is None  # so few batches may be in order by chance
    assert moved == pytest.approx(100 / 3, rel=0.2)


def test_lengths_that_vary_are_shown_as_a_star() -> None:
    assert describe_layouts([("float32", (3, -1)), ("int64", ())]) == "float32 (3, *), int64 ()"
    assert describe_layouts([]) == "empty"


@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 6), st.floats(0.2, 1.0))
def test_as_many_rows_as_possible_get_a_group_with_the_least_distance(
    seed: int, rows: int, groups: int, density: float
) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, groups)
    lengths = rng.integers(0, 9, (rows, groups)) / 8.0
    may = rng.random((rows, groups)) < density
    row, group = np.nonzero(may)
    found = assign_groups(row, group, lengths[may], sizes, rows)
    assert all(found[each] < 0 or may[each, found[each]] for each in range(rows))
    assert (np.bincount(found[found >= 0], minlength=groups) <= sizes).all()
    # The oracle has a column for each place in a group, and pays more for a row that is left over than for all others.
    left_over = 100.0
    costs = np.repeat(np.where(may, lengths, left_over), sizes, axis=1)
    costs = np.column_stack([costs, np.full((rows, rows), left_over)])
    best = costs[linear_sum_assignment(costs)].sum()
    assigned = np.flatnonzero(found >= 0)
    mine = lengths[assigned, found[assigned]].sum() + left_over * (rows - len(assigned))
    if len(assigned) == rows:
        assert mine == pytest.approx(best)
    assert len(assigned) == (costs[linear_sum_assignment(costs)] < left_over).sum()


@given(st.integers(0, 2**32 - 1), st.integers(1, 80), st.floats(0.01, 2.0), st.sampled_from([0.0, 1e6]))
def test_nearest_pairs_are_those_of_a_tree(seed: int, points: int, reach: float, far: float) -> None:
    rng = np.random.default_rng(seed)
    queries, given_points = rng.normal(size=(9, 3)) + far, rng.normal(size=(points, 3)) + far
    count = min(MAX_CANDIDATES, points)
    _, found = cKDTree(given_points).query(queries, k=range(1, count + 1), distance_upper_bound=reach)
    expected = {(query, int(point)) for query, row in enumerate(found) for point in row if point < points}
    assert expected <= set(zip(*(each.tolist() for each in nearest_pairs(queries, given_points, reach)), strict=True))
