"""The level at which a loader does the same work as a reference: what an epoch of each has in common.

There are four levels. An epoch is *identical* if it has the same batches, bit for bit, in the same order; it has the
*same records* if only their order or the batches differ; it is *close* if every record has a partner of its own at a
small distance; and it is the *same amount* if only the number of records, their shapes and dtypes agree. Below that,
the two do different work and are not compared.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from etl.comparison.request.epoch_content import EpochContent, Signatures
from etl.measuring.arrays import ArraySpec
from etl.units import counted

Level = Literal["identical", "same records", "close", "same amount"]

# Records of the reference for which partners are sought, chosen evenly.
MAX_CHECKED = 2048
# Distances are in units of the spread of the reference's records, see `_scale_of`. These were measured over the 512
# photographs of `etl dataset --samples 512`, at 224 x 224, against Pillow's bilinear filter with antialiasing;
# `pytest -s tests/comparison/test_sameness_of_photographs.py` prints those of close ones for 20.
#
#                                                           largest     mean
#   cv2 and torch, with and without antialiasing            0.014       0.006
#   Pillow bicubic, box, nearest                            0.023       0.010
#   libjpeg-turbo, fast DCT and upsampling, cv2             0.025       0.019
#   libjpeg-turbo, scaled while decoding                    0.029       0.008
#   a border of 1.3% cut off                                0.114       0.057
#   one channel less another channel's mean                 0.065       0.065
#   one channel normalised with another's statistics        0.094       0.071
#   means and deviations in BGR order                       0.291       0.270
#   BGR, flipped, or in [0, 1]                              > 1.7       > 0.7
MAX_DISTANCE = 0.06
MAX_MEAN_DISTANCE = 0.035
# Two records may be so alike that a partner proves nothing: another one must be further than this times the distance.
RIVAL_FACTOR = 2.0
# Different records within the distance that are considered as partners of each record.
MAX_CANDIDATES = 32
DISTANCES_AT_ONCE = 1 << 22
# In epochs of fewer batches, the order of shuffled records may be close to that of the source by chance.
MIN_SHUFFLED_BATCHES = 6
# Directions in which the reference varies most: distances along these alone are never longer, and find candidates fast.
PRINCIPAL_AXES = 12


@dataclass(frozen=True)
class Sameness:
    """The level at which an epoch is the same work as another, and what was measured to tell.

    Attributes
    ----------
    level : Level or None
        The highest level that holds. None if none does: the epoch is not comparable.
    reason : text
        Why it is not the next higher level, to follow "because"; empty if it is identical.
    largest_distance, mean_distance : float or None
        Of a close epoch: distances of partners, in units of the spread of the reference's records.
    displacement : float or None
        The mean number of records between where a record came and its place in the source. None if unknown.
    is_shuffled : bool or None
        True if that is a batch or more, or if a second epoch had another order. None if unknown.
    """

    level: Level | None
    reason: str = ""
    largest_distance: float | None = None
    mean_distance: float | None = None
    displacement: float | None = None
    is_shuffled: bool | None = None

    def describe(self) -> str:
        """Return the level in words, with the largest distance of partners."""
        if self.level is None:
            return "different"
        return self.level if self.largest_distance is None else f"{self.level} ({self.largest_distance:.3f})"

    def describe_order(self) -> str:
        """Return how far records are from their place in the source; empty if nothing is known."""
        if self.displacement is not None:
            return f"{self.order} records from their place in the source on average"
        return self.order and f"{self.order} in every epoch"

    @property
    def order(self) -> str:
        """The mean displacement of records; if it is unknown, whether the order changes; empty if that is unknown."""
        if self.displacement is not None:
            return f"{self.displacement:,.1f}"
        if self.is_shuffled is None:
            return ""
        return "another order" if self.is_shuffled else "the same order"


def compare_epochs(
    epoch: EpochContent, reference: EpochContent, name_of_reference: str, source_order: Sequence[str] | None = None
) -> Sameness:
    """Return the highest level at which `epoch` is the same work as `reference`.

    Without the digests of the reference's records in the order of the source, there is no displacement.
    """
    if epoch.samples != reference.samples:
        yielded = counted(epoch.samples, "record", "records")
        return Sameness(None, f"it yields {yielded} and {name_of_reference} {reference.samples:,}")
    if sorted(epoch.records) == sorted(reference.records):
        moved = None if source_order is None else displacement(epoch.records, source_order)
        if epoch.digests == reference.digests:
            return Sameness("identical", displacement=moved)
        what = "the division into batches differs" if epoch.records == reference.records else "the order differs"
        return Sameness("same records", f"{what} from that of {name_of_reference}", displacement=moved)
    different = (Counter(epoch.records) - Counter(reference.records)).total()
    bytes_differ = f"the bytes of {different:,} of {epoch.samples:,} records differ"
    if _amounts(epoch.layouts) != _amounts(reference.layouts):
        return Sameness(None, _layouts_differ(epoch, reference, name_of_reference))
    partners = find_partners(Signatures.load(epoch.signatures), Signatures.load(reference.signatures))
    if partners.reason:
        return Sameness("same amount", f"{bytes_differ}, and {partners.reason}")
    moved = None
    if source_order is not None:
        places = _places(reference.records, source_order)
        moved = _mean_move((position, places[row]) for row, position in partners.positions.items() if row in places)
    return Sameness("close", bytes_differ, partners.largest, partners.mean, moved)


def compare_amounts(epoch: EpochContent, reference: EpochContent, name_of_reference: str) -> Sameness:
    """Return if a part of an epoch is "same amount" work as `reference`: records of the same shapes and dtypes."""
    if _amounts(epoch.layouts) == _amounts(reference.layouts):
        batches = counted(len(epoch.digests), "batch of its epoch was", "batches of its epoch were")
        return Sameness("same amount", f"only {batches} compared")
    return Sameness(None, _layouts_differ(epoch, reference, name_of_reference))


def _layouts_differ(epoch: EpochContent, reference: EpochContent, name_of_reference: str) -> str:
    return (
        f"its records are {describe_layouts(epoch.layouts)} and those of {name_of_reference} "
        f"{describe_layouts(reference.layouts)}"
    )


def displacement(order: Sequence[str], source_order: Sequence[str]) -> float | None:
    """Return the mean number of records between where records came and their place in the source.

    About a third of the number of records if they are shuffled. Of equal records, the first to come is the first of the
    source, and so on. Return None if no record is in the source.
    """
    return _mean_move(_places(order, source_order).items())


def is_shuffled(displacement: float, batch_size: int, records: int) -> bool | None:
    """Return whether records are further from their place in the source than one batch, on average.

    Return None if so few records are no sign of anything: shuffled ones move by a third of their number.
    """
    return displacement >= batch_size if records >= MIN_SHUFFLED_BATCHES * batch_size else None


def describe_layouts(layouts: Iterable[ArraySpec]) -> str:
    """Return dtypes and shapes in words, such as "float32 (3, 224, 224), int64 ()"; "*" for a length that varies."""
    shapes = [(dtype, ", ".join("*" if n == -1 else str(n) for n in shape)) for dtype, shape in layouts]
    return ", ".join(f"{dtype} ({shape})" for dtype, shape in shapes) or "empty"


def _amounts(layouts: Sequence[ArraySpec]) -> list[tuple[str, list[int]]]:
    """Return what must agree. The order of arrays and axes may differ, and the width of a single integer, the label."""
    return sorted(
        ("integer" if not any(n != 1 for n in shape) and "int" in dtype else dtype, sorted(shape))
        for dtype, shape in layouts
    )


def _places(order: Sequence[str], source_order: Sequence[str]) -> dict[int, int]:
    """Return the place in the source for every position of `order` whose record is there."""
    waiting: dict[str, list[int]] = defaultdict(list)
    for place in range(len(source_order) - 1, -1, -1):
        waiting[source_order[place]].append(place)
    return {position: waiting[record].pop() for position, record in enumerate(order) if waiting.get(record)}


def _mean_move(pairs: Iterable[tuple[int, int]]) -> float | None:
    moves = [abs(position - place) for position, place in pairs]
    return float(np.mean(moves)) if moves else None


@dataclass(frozen=True)
class Partners:
    """The records of an epoch that are partners of those of a reference.

    Attributes
    ----------
    reason : text
        Why there are none; empty if there are.
    positions : mapping of int to int
        For each record of the reference that was checked, the position of its partner.
    largest, mean : float
        Distances between partners.
    """

    reason: str = ""
    positions: Mapping[int, int] = field(default_factory=dict)
    largest: float = 0.0
    mean: float = 0.0


def find_partners(epoch: Signatures, reference: Signatures) -> Partners:
    """Give each of `MAX_CHECKED` records of `reference` a partner of its own in `epoch`, with the same label.

    The sum of the distances is the smallest possible. There are no partners if a distance or their mean is too large,
    or if a record has a rival: another record of the epoch at no more than twice the distance of the partner, which no
    other record of the reference explains, for none is as near to it. So a record that is there twice and should be
    there once is found, whereas equal records may be there as often as in the reference.
    """
    if not reference.values.shape[1]:
        return Partners("they have no arrays with numbers to compare")
    if epoch.values.shape[1] != reference.values.shape[1]:
        return Partners("their arrays are laid out in another way")
    if (epoch.labels is None) != (reference.labels is None):
        return Partners("only one of them has a label for each record")
    partners = _find_partners(*_scaled(epoch, reference))
    if not partners.reason or reference.labels is None:
        return partners
    without_labels = _find_partners(*_scaled(Signatures(epoch.values, None), Signatures(reference.values, None)))
    return partners if without_labels.reason else Partners("records that look the same have other labels")


@dataclass(frozen=True)
class _Scaled:
    """Signatures in units of the reference's spread: the distance of two is the root mean square of the differences.

    Attributes
    ----------
    points : float64 array of shape (records, n)
        Scaled so that distances are Euclidean. Other labels, which are integers, are further away than any distance
        that counts.
    shadows : float64 array of shape (records, m)
        The same in fewer dimensions, with distances that are no longer.
    """

    points: np.ndarray
    shadows: np.ndarray


def _scaled(epoch: Signatures, reference: Signatures) -> tuple[_Scaled, _Scaled]:
    sample = reference.values[_checked_rows(len(reference.values))].astype(np.float64)
    origin = np.median(sample, axis=0)
    scale = _scale_of(sample) * np.sqrt(sample.shape[1])
    sample = (sample - origin) / scale
    axes = np.linalg.eigh(sample.T @ sample)[1][:, -PRINCIPAL_AXES:]

    given = [each.labels for each in (epoch, reference) if each.labels is not None]
    different = np.unique(np.concatenate(given)) if given else None

    def convert(signatures: Signatures) -> _Scaled:
        points = (signatures.values.astype(np.float64) - origin) / scale
        labels = np.zeros(len(points))
        if signatures.labels is not None and different is not None:
            labels += np.searchsorted(different, signatures.labels)  # not themselves: float64 rounds above 2**53
        return _Scaled(np.column_stack([points, labels]), np.column_stack([points @ axes, labels]))

    return convert(epoch), convert(reference)


def _checked_rows(records: int) -> np.ndarray:
    """Return the records of the reference for which partners are sought."""
    return np.linspace(0, records - 1, min(MAX_CHECKED, records)).astype(np.int64)


def _scale_of(signatures: np.ndarray) -> np.ndarray:
    """Return the spread of each column: the range of the middle 90%, over that of a normal distribution of deviation 1.

    So a few outliers do not matter. Columns that hardly vary, such as the corners of written digits, count as if they
    had a tenth of the median spread of those that vary; if none varies, distances are in the signatures' own unit.
    """
    low, high = np.quantile(signatures, [0.05, 0.95], axis=0)
    spread = (high - low) / 3.29
    varying = spread[spread > 0]
    return np.asarray(np.maximum(spread, np.median(varying) / 10 if varying.size else 1.0))


def _find_partners(epoch: _Scaled, reference: _Scaled) -> Partners:
    rows = _checked_rows(len(reference.points))
    groups = _group_equal(epoch.points)
    sizes = np.array([len(positions) for positions in groups])
    firsts = np.array([positions[0] for positions in groups])
    row, group = nearest_pairs(reference.shadows[rows], epoch.shadows[firsts], RIVAL_FACTOR * MAX_DISTANCE)
    distance = np.linalg.norm(reference.points[rows[row]] - epoch.points[firsts[group]], axis=1)

    within = distance <= MAX_DISTANCE
    partner_group = assign_groups(row[within], group[within], distance[within], sizes, len(rows))
    alone, records = int((partner_group < 0).sum()), f"of {len(rows):,} records"
    if alone:
        missing = counted(alone, f"{records} has no partner of its own", f"{records} have no partner of their own")
        return Partners(f"{missing} within {MAX_DISTANCE} of the records' spread")
    left = [iter(positions) for positions in groups]
    positions = np.array([next(left[each]) for each in partner_group])
    distances = np.linalg.norm(reference.points[rows] - epoch.points[positions], axis=1)
    if float(distances.mean()) > MAX_MEAN_DISTANCE:
        return Partners(f"partners are {distances.mean():.3f} of the records' spread apart on average")

    # Rivals: other records that are nearly as near, and other copies of the partner itself.
    is_rival = distance <= RIVAL_FACTOR * distances[row]
    is_rival &= (group != partner_group[row]) | (sizes[group] > 1)
    doubtful = {
        int(checked)
        for checked, rival, own in zip(row[is_rival], firsts[group[is_rival]], distance[is_rival], strict=True)
        if not _is_explained(epoch, rival, reference, rows[checked], own)
    }
    if doubtful:
        found = counted(len(doubtful), f"{records} has", f"{records} have")
        return Partners(f"{found} more than one possible partner")
    return Partners(
        positions=dict(zip(rows.tolist(), positions.tolist(), strict=True)),
        largest=float(distances.max()),
        mean=float(distances.mean()),
    )


def nearest_pairs(queries: np.ndarray, points: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of a query and a point at most `reach` apart, for each query those with its nearest points.

    Parameters
    ----------
    queries, points : float64 arrays of shape (n, dimensions)
        At most `MAX_CANDIDATES` pairs are returned for each of the queries.

    Returns
    -------
    two integer arrays of shape (pairs,)
        Rows of `queries` and rows of `points`.
    """
    squares = np.square(points).sum(axis=1)
    pairs = []
    step = max(1, DISTANCES_AT_ONCE // len(points))
    for first in range(0, len(queries), step):
        some = queries[first : first + step]
        lengths = np.square(some).sum(axis=1)[:, None]
        # Differences of large squares are less exact than the squares of differences: leave room for their rounding.
        slack = 16 * np.finfo(np.float64).eps * (lengths.max() + squares.max())
        square = lengths + squares - 2 * some @ points.T
        query, point = np.nonzero(square <= reach**2 + slack)
        order = np.lexsort((square[query, point], query))
        query, point = query[order], point[order]
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        pairs.append((first + query[rank < MAX_CANDIDATES], point[rank < MAX_CANDIDATES]))
    return np.concatenate([each for each, _ in pairs]), np.concatenate([each for _, each in pairs])


def assign_groups(
    row: np.ndarray, group: np.ndarray, distance: np.ndarray, sizes: NDArray[np.int64], rows: int
) -> np.ndarray:
    """Return a group for as many rows as possible, with the smallest sum of distances; -1 for rows left over.

    Each row in turn takes the shortest augmenting path, on which other rows may move on to another group. Potentials
    keep the distances along it positive, as in the Hungarian algorithm (Jonker and Volgenant 1987,
    doi:10.1007/BF02278710).

    Parameters
    ----------
    row, group, distance : arrays of shape (n,)
        Pairs that may be chosen.
    sizes : integer array of shape (groups,)
        Rows that each group can take.
    """
    edges: list[list[tuple[int, float]]] = [[] for _ in range(rows)]
    for one, to, length in zip(row.tolist(), group.tolist(), distance.tolist(), strict=True):
        edges[one].append((to, length))
    taken = np.full(rows, -1)
    takers: dict[int, list[int]] = defaultdict(list)
    of_rows, of_groups = [0.0] * rows, [0.0] * len(sizes)  # potentials
    for start in range(rows):
        far, frontier = 0.0, [start]
        from_start: dict[int, float] = {start: 0.0}
        settled: dict[int, float] = {}
        shortest: dict[int, tuple[float, int]] = {}
        heap: list[tuple[float, int]] = []
        end = -1
        while end < 0:
            for one in frontier:
                from_start[one] = far
                for to, length in edges[one]:
                    total = far + length - of_rows[one] - of_groups[to]
                    if to not in settled and total < shortest.get(to, (math.inf, -1))[0]:
                        shortest[to] = total, one
                        heapq.heappush(heap, (total, to))
            while heap and heap[0][1] in settled:
                heapq.heappop(heap)
            if not heap:
                break  # no group is left for one of these rows, nor will be
            far, to = heapq.heappop(heap)
            settled[to] = far
            if len(takers[to]) < sizes[to]:
                end = to
            frontier = takers[to]
        if end < 0:
            continue
        for one, length in from_start.items():
            of_rows[one] += far - length
        for to, length in settled.items():
            of_groups[to] -= far - length
        to, one = end, -1
        while one != start:
            one = shortest[to][1]
            before, taken[one] = int(taken[one]), to
            takers[to].append(one)
            if one != start:
                takers[before].remove(one)
            to = before
    return taken


def _is_explained(epoch: _Scaled, rival: int, reference: _Scaled, checked: int, distance: float) -> bool:
    """Return whether another record of the reference is as near to `rival` as the record `checked` is."""
    limit = distance * (1 + 1e-9)
    near = np.flatnonzero(np.linalg.norm(reference.shadows - epoch.shadows[rival], axis=1) <= limit + 1e-12)
    near = near[near != checked]
    return bool((np.linalg.norm(reference.points[near] - epoch.points[rival], axis=1) <= limit).any())


def _group_equal(points: np.ndarray) -> list[list[int]]:
    """Return the positions of equal points, in lists."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for position, point in enumerate(points):
        groups[point.tobytes()].append(position)
    return list(groups.values())
