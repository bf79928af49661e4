"""What each commit does in its turns: short epochs, so that a turn of one is a moment away from that of the other."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cell import Cell

IMAGE_SIZE = 64
PHOTOGRAPHS = 32
ETL, WALL = FIGURES = ("etl", "wall")
# A turn is as many epochs as take this long, and at least one. A virtual CPU's speed changes by a tenth from one
# millisecond to the next and by not much more within a second, so many short turns average out more than few long ones.
TURN_SECONDS = 0.002
MOST_EPOCHS = 100


@dataclass(frozen=True)
class Work:
    """An epoch of so many of `PHOTOGRAPHS`, loaded as `cell` says."""

    cell: Cell
    photographs: int


WORKS = {
    "raw": Work(Cell("raw", batch_size=2), 2),
    "async-raw": Work(Cell("async-raw", batch_size=1), 2),
    "presaved": Work(Cell("presaved", batch_size=16), PHOTOGRAPHS),
    "async-presaved": Work(Cell("async-presaved", batch_size=16), PHOTOGRAPHS),
}


def overlaps(strategy: str, figure: str) -> bool:
    """Whether loading and compute go on at the same time in what `figure` of `strategy` measures."""
    return figure == WALL and WORKS[strategy].cell.is_async
