"""What each commit does in its turns: short epochs, so that a turn of one is a moment away from that of the other."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.cell import Cell

IMAGE_SIZE = 64
ETL, WALL = FIGURES = ("etl", "wall")
# A turn is as many epochs as take this long, and at least one. Others on the machine have a CPU for milliseconds at
# a time: of many short turns some meet nobody, of few long ones none. Of 12 photographs decoding takes about 25 ms.
TURN_SECONDS = 0.015
MOST_EPOCHS = 100


@dataclass(frozen=True)
class Work:
    """An epoch of so many photographs, loaded as `cell` says."""

    cell: Cell
    photographs: int


WORKS = {
    "raw": Work(Cell("raw", batch_size=4), 12),
    "async-raw": Work(Cell("async-raw", batch_size=4), 16),
    "presaved": Work(Cell("presaved", batch_size=16), 32),
    "async-presaved": Work(Cell("async-presaved", batch_size=16), 32),
}
