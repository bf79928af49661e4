"""The check that two arms did the same work, without which their times cannot be compared."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .values import JsonValues

# Several threads, and a GPU, add in another order. On one thread of a CPU equal work gives equal scores, to the bit.
SCORE_TOLERANCE = 1e-2


class DifferentWork(RuntimeError):  # noqa: N818 - names the condition
    """An error: arms did not do the same work."""


@dataclass(frozen=True)
class DoneWork(JsonValues):
    """The work of an epoch; None for what is unknown, or may differ.

    Attributes
    ----------
    samples : int or None
        Records.
    digest : str or None
        Digest of all batches.
    score : float or None
        Score of the compute.
    """

    samples: int | None = None
    digest: str | None = None
    score: float | None = None


def check_same_work(name: str, done: DoneWork, other: str, expected: DoneWork) -> None:
    """Raise `DifferentWork`, which names both arms, if one of them did other work."""
    for part, found, wanted, is_equal in (
        ("number of records", done.samples, expected.samples, done.samples == expected.samples),
        ("digest of the batches", done.digest, expected.digest, done.digest == expected.digest),
        ("score", done.score, expected.score, _is_close(done.score, expected.score)),
    ):
        if not is_equal:
            raise DifferentWork(
                f"not the same work: the {part} is {found} in {name} and {wanted} in {other}, so their times cannot be "
                "compared"
            )


def _is_close(score: float | None, other: float | None) -> bool:
    return score is None or other is None or math.isclose(score, other, rel_tol=SCORE_TOLERANCE)
